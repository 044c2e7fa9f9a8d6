#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# python.sh BUILD: checks the Python package as its users get it: the wheel in BUILD/wheel, installed into virtual
# environments below BUILD.
#
#   types      mypy --strict, as the oldest and the newest Python version
#   tests      client/python/tests with torch and the packages that ours replaces, and the examples of docs/python.md;
#              those of engines need the engines
#   versions   the tests that need only numpy, in every other Python that is installed
#   user       the commands of docs/python.md, by a user who is not root
set -eu
build=$(realpath "$1")
export STREAMERD_BUILD=$build
cd "$(dirname "$0")/.."
wheel=$(ls "$build"/wheel/streamerd-*.whl)
packages='numpy ml_dtypes cryptotensors==0.2.3 torch==2.13.0 safetensors runai-model-streamer transformers accelerate diffusers tqdm mypy pytest'

# Installed once; the wheel each time. $3 says what else is in it.
environment() { # PATH PYTHON PACKAGES
        if [ "$(cat "$1/complete" 2>/dev/null)" != "$3" ]; then
                rm -rf "$1"
                "$2" -m venv "$1"
                # shellcheck disable=SC2086 # one word for each package
                "$1/bin/pip" install --quiet --disable-pip-version-check $3
                echo "$3" >"$1/complete"
        fi
        "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
}

# As root the tests run as nobody, unless he cannot run the environment's Python: /root/.pyenv, say, is closed to him.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
nobody=()
if [ "$(id -u)" = 0 ]; then
        chown nobody "$folder"
        nobody=(setpriv --reuid nobody --regid nogroup --clear-groups
                env "HOME=$folder" "TMPDIR=$folder" USER=nobody PYTHONDONTWRITEBYTECODE=1)
fi

pytest() { # ENVIRONMENT TESTS
        local python=$1/bin/python user=()
        shift
        "${nobody[@]}" "$python" -c 'import pytest' 2>/dev/null && user=("${nobody[@]}")
        echo "as $("${user[@]}" id -un)"
        "${user[@]}" "$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=120 --rootdir client/python/tests "$@"
}

echo '--- types'
main=$build/venv-python
environment "$main" "${PYTHON:-python3}" "$packages"
for version in 3.10 3.14; do
        (cd client/python && "$main/bin/python" -m mypy --python-version "$version" --cache-dir "$build/mypy")
done

echo '--- tests'
pytest "$main" --ignore client/python/tests/vllm client/python/tests

echo '--- versions'
tested=$("$main/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for python in python3.{10,11,12,13,14} ~/.pyenv/versions/3.1[0-4].*/bin/python3; do
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        case " $tested " in *" $version "*) continue ;; esac
        tested="$tested $version"
        environment "$build/venv-python$version" "$python" 'numpy pytest'
        pytest "$build/venv-python$version" client/python/tests/test_{autostart,numpy,structures}.py
done
echo "Python $tested"

echo '--- user'
tests/python_user.sh "$wheel"
