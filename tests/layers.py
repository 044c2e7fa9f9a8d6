#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layers.py BUILD: checks the dependency rules of the code, and prints each breach.

- A file includes only its own rank and lower ones.
- A module is a source file and its header; modules do not include each other in a circle. A header without a source
  belongs to the module whose header it includes and whose source includes it: it is private to that one's parts.
- No file name occurs twice in daemon/.
- Code that needs libuv, libcurl or CUDA is in the folders named below.
- Source files of daemon/ do not call each other in a circle. A call is a relocation of a branch in an object file of
  BUILD, so a callback that is passed as an address is none.

Tests may include every header."""

import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent

# Lowest first; entries on one line have the same rank. The longest entry that a module's path begins with is its own.
RANKS = """
proto
daemon/base/error daemon/base/util
daemon/base/json
daemon/model
daemon/base
daemon/base/text daemon/base/metric
daemon/base/thread/threads daemon/base/thread/wake
daemon/base/log
daemon/base/thread
daemon/base/sys
daemon/base/fallback
daemon/crypt/key_memory
daemon/crypt/cipher
daemon/crypt/keyring
daemon/crypt
daemon/device
daemon/device/host daemon/device/cuda
daemon/io/object daemon/io/staging
daemon/io/reader
daemon/io/file daemon/io/http
daemon/io/readback
daemon/io/disk
daemon/io/remote
daemon/source/source
daemon/source/probe daemon/source/roots
daemon/source/listing daemon/source/sums daemon/source/stored
daemon/source/local daemon/source/web daemon/source/store
daemon/source/s3/s3_reply
daemon/source/aws
daemon/source/hf daemon/source/s3 daemon/source/gcs daemon/source/azure
daemon/source
daemon/resident
daemon/resident/unload
daemon/resident/persist
daemon/resident/hostcache
daemon/resident/admission
daemon/load/content
daemon/load
daemon/publish
daemon/serve/access/role daemon/serve/conn daemon/serve/events/changes
daemon/serve/limits
daemon/serve/desired
daemon/serve/server_state
daemon/serve/access daemon/serve/reply
daemon/serve/events
daemon/serve/session
daemon/serve/deferred
daemon/serve/verb_task
daemon/serve/monitor
daemon/serve/server
daemon/serve/verbs
daemon/config
daemon/main
"""
RANK = {entry: number for number, line in enumerate(RANKS.strip().split("\n")) for entry in line.split()}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]*)"|<([^>]*)>)')
PUBLIC = "streamer/client.h"
# What a folder includes beside itself and the public header.
ALLOWED = {"client/streamerctl": (), "client/publish": ("client", "proto"), "client": ("proto",), "proto": ()}
SYSTEM = [
    ("uv", r"daemon/(serve/|base/thread/(wake|poll_set)\.|main\.c)", "daemon/serve, two of daemon/base/thread and daemon/main.c"),
    ("curl/", "daemon/io/http/", "daemon/io/http"),
    ("cuda", "daemon/device/cuda/", "daemon/device/cuda"),
]
IMPURE = re.compile(r"(pthread|fcntl|poll|threads|time|sys/(stat|socket|time|uio))\.h$")
BRANCHES = {"R_X86_64_PLT32", "R_AARCH64_CALL26", "R_AARCH64_JUMP26"}

breaches = 0


def breach(text: str) -> None:
    global breaches
    breaches += 1
    print(text)


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE, text=True).stdout


def folder(path: str) -> str:
    return path.rpartition("/")[0]


def module(path: str) -> str:
    return path[:-2]


def rank(path: str) -> int | None:
    while path and path not in RANK:
        path = folder(path)
    return RANK.get(path)


def is_pure(path: str) -> bool:
    return folder(path) in ("daemon/model", "daemon/base/json")


def is_below(path: str, name: str) -> bool:
    return path.startswith(name + "/")


def wrong_in_daemon(file: str, what: str) -> str | None:
    own, other = rank(module(file)), rank(module(what))
    if own is None:
        return "a folder without a rank"
    if what == PUBLIC or module(what) == module(file):
        return None
    if other is None:
        return "outside daemon/ and proto/"
    if other > own:
        return "a higher rank"
    if is_pure(file) and not is_pure(what) and folder(what) != "proto":
        if module(what) not in ("daemon/base/error", "daemon/base/util"):
            return "pure code includes pure code, errors and proto/ only"
    return None


def wrong_include(file: str, what: str) -> str | None:
    if is_below(file, "include"):
        return "a public header stands alone"
    if is_below(file, "daemon"):
        return wrong_in_daemon(file, what)
    for name, others in ALLOWED.items():
        if is_below(file, name):
            own = folder(what) == folder(file) or name == "proto" and is_below(what, name)
            good = own or what == PUBLIC or any(folder(what) == o or o == "proto" and is_below(what, o) for o in others)
            return None if good else f"{name}/ includes {', '.join([name + '/', *others])} and the public header only"
    return None


def wrong_system(file: str, what: str) -> str | None:
    for library, users, names in SYSTEM:
        if re.match(library, what) and not re.match(users, file):
            return f"it belongs to {names}"
    return "pure code has no I/O, no threads, no clock" if is_pure(file) and IMPURE.match(what) else None


def check_circles(edges: dict[str, set[str]], what: str) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as e:
        breach(f"these {what} each other in a circle: {' '.join(reversed(e.args[1]))}")


def check_includes() -> int:
    files = output_of("git", "ls-files", "*.c", "*.h").split()
    names = [Path(f).name for f in files if is_below(f, "daemon")]
    for name in sorted({n for n in names if names.count(n) > 1}):
        breach(f"{name}: two files in daemon/ have this name")
    includes: dict[str, set[str]] = {}
    seen = 0
    for file in files:
        for number, line in enumerate((TOP / file).read_text().splitlines(), 1):
            if not (m := INCLUDE.match(line)):
                continue
            seen += 1
            if is_below(file, "tests"):
                continue
            if why := wrong_include(file, m[1]) if m[1] else wrong_system(file, m[2]):
                breach(f"{file}:{number}: {m[1] or m[2]}: {why}")
            if m[1] and is_below(file, "daemon") and m[1] != PUBLIC:
                includes.setdefault(module(file), set()).add(module(m[1]))

    def owner(m: str) -> str:
        """The module that a private header belongs to."""
        parts = [o for o in sorted(includes.get(m, ())) if m in includes.get(o, ()) and o + ".c" in files]
        return m if m + ".c" in files or not parts else parts[0]

    edges: dict[str, set[str]] = {}
    for own, others in includes.items():
        edges.setdefault(owner(own), set()).update(owner(o) for o in others if owner(o) != owner(own))
    check_circles(edges, "include")
    return seen


def check_calls(build: Path) -> int:
    objects = sorted((build / "obj" / "daemon").rglob("*.o"))
    sources = {str(o): str(o.relative_to(build / "obj").with_suffix(".c")) for o in objects}
    objects = [o for o, source in sources.items() if (TOP / source).exists()]  # not of a source that was removed since
    defined: dict[str, str] = {}
    calls: set[tuple[str, str]] = set()
    source = ""
    for line in output_of("readelf", "-sW", "-rW", *objects).splitlines():
        word = line.split()
        if line.startswith("File: "):
            source = sources[word[1]]
        elif len(word) > 7 and word[3] == "FUNC" and word[4] in ("GLOBAL", "WEAK") and word[6] != "UND":
            defined[word[7]] = source
        elif len(word) > 4 and word[2] in BRANCHES:
            calls.add((source, word[4]))
    edges: dict[str, set[str]] = {}
    for source, function in calls:
        if defined.get(function, source) != source:
            edges.setdefault(source, set()).add(defined[function])
    check_circles(edges, "call")
    return len(objects)


def main() -> int:
    includes, objects = check_includes(), check_calls(Path(sys.argv[1]).resolve())
    print(f"layers: {includes} includes, calls of {objects} files, {breaches} breaches")
    return breaches > 0 or includes == 0 or objects == 0


if __name__ == "__main__":
    sys.exit(main())
