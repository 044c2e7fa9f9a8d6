#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""json_page.py STREAMERCTL SOCKET ROOT: compares the JSON of streamerctl with docs/json.md.

Each member of each object is on the page with its type, and each one that is not optional is in the object. Every verb
that prints JSON has a section. The daemon has the model "witness", with a lease. Prints the differences."""

import json
import re
import subprocess
import sys
from pathlib import Path

CTL, SOCKET, ROOT = sys.argv[1:]
PAGE = Path("docs/json.md").read_text()
TYPES = {dict: "object", list: "array", str: "string", int: "integer", bool: "boolean", type(None): "null", float: "real"}
WITHOUT_JSON = {"cat", "top", "run", "help"}

# Section: arguments, in this order.
COMMANDS = [
    ("load --dry-run", "load {root}/m.safetensors --dry-run"),
    ("load", "load {root}/m.safetensors"),
    ("load", "load {root}/m.safetensors"),
    ("load --detach", "load {root}/n.safetensors --detach"),
    ("wait", "wait n"),
    ("export", "export n {root}/n-copy.safetensors"),
    ("fetch", "fetch {root}/m.safetensors --list"),
    ("list", "list"),
    ("show", "show witness --tensors"),
    ("verify", "verify witness"),
    ("pin", "pin witness"),
    ("unpin", "unpin witness"),
    ("keep-alive", "keep-alive witness default"),
    ("set-priority", "set-priority witness 100"),
    ("unload --dry-run", "unload bad --dry-run"),
    ("unload", "unload bad"),
    ("explain", "explain bad"),
    ("diff", "diff witness {root}/m.safetensors"),
    ("ps", "ps"),
    ("status", "status"),
    ("metrics", "metrics"),
    ("whoami", "whoami"),
    ("config", "config"),
    ("ping", "ping"),
    ("version", "version"),
    ("doctor", "doctor"),
    ("cache list", "cache list"),
    ("cache verify", "cache verify"),
]
# Exit code, socket, arguments: code and model of the error.
ERRORS = [
    (2, SOCKET, "lod", "invalid", None),
    (2, SOCKET, "list --no-such-flag", "invalid", None),
    (3, SOCKET, "show nobody", "not-found", "nobody"),
    (1, SOCKET, "load /etc/passwd --no-progress", "failed", "passwd"),
    (1, SOCKET, "load {root}/bad.safetensors --no-progress", "failed", "bad"),
    (4, "/nowhere/sock", "list", "unreachable", None),
]

problems = []


def require(condition, text):
    if not condition:
        problems.append(text)


def run(socket, arguments):
    words = arguments.format(root=ROOT).split()
    return subprocess.run([CTL, "--socket", socket, "--json", *words], capture_output=True, text=True)


def section(name):
    """{path: (type, whether it is optional)} of the table below the heading with this name."""
    for part in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        if f"`{name}`" in part.partition("\n")[0]:
            rows = re.findall(r"^\| `([^`]+)` \| ([^|]*?) *\|", part, re.M)
            return {path.partition("?")[0]: (kind, "?" in path) for path, kind in rows}
    problems.append(f"docs/json.md has no section of {name}")
    return {}


def compare_members(name, rows, path, members):
    prefix = f"{path}." if path else ""
    for key, value in members.items():
        if path or key != "schema":
            compare(name, rows, prefix + key, value)
    for row, (_, optional) in rows.items():
        key = row[len(prefix) :]
        if row.startswith(prefix) and not optional and not re.search(r"[.\[]", key):
            require(key in members, f"{name}: '{row}' is missing")


def compare(name, rows, path, value):
    kind, _ = rows.get(path, (None, None))
    if kind is None:
        require(path.endswith("[]") and isinstance(value, dict), f"docs/json.md: {name} has no '{path}'")
    else:
        require(TYPES[type(value)] in kind, f"{name}: '{path}' is {TYPES[type(value)]}, not {kind}")
        if ", see " in kind:
            return
    if isinstance(value, dict):
        compare_members(name, rows, path, value)
    for item in value if isinstance(value, list) else ():
        compare(name, rows, f"{path}[]", item)


def check(name, text):
    """The object in the text."""
    value = json.loads(text)
    require(value["schema"] == 1, f"{name}: schema {value['schema']}")
    compare_members(name, section(name), "", value)
    return value


for code, socket, arguments, error, model in ERRORS:
    done = run(socket, arguments)
    require(done.returncode == code, f"{arguments}: {done.returncode}")
    said = check("error", done.stderr)["error"]
    require((said["code"], said["model"]) == (error, model), f"{arguments}: {said}")
    require("passwd:" not in said["text"], f"{arguments}: the text repeats the model: {said}")
resident = [check(name, run(SOCKET, arguments).stdout).get("resident") for name, arguments in COMMANDS]
require(resident[1:3] == [False, True], f"load: resident: {resident[1:3]}")
verbs = re.findall(r"^  (\S+)", run(SOCKET, "help").stdout.partition("Verbs:\n")[2].partition("\n\n")[0], re.M)
require(len(verbs) > 20, f"verbs: {verbs}")
for verb in set(verbs) - WITHOUT_JSON:
    section(verb)
print("\n".join(problems), end="")
