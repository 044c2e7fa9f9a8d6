#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py BUILD: what the runs of a build with --coverage have reached in daemon/, client/ and proto/.

Prints the percentage of lines and of branches by folder, and each line that reports a failure and was never reached."""

import json
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
FAILURE = re.compile(r"\b(?:\w+_)?(?:error|fail|failed|errno)(?:_\w+)?\s*\(|return STREAMER_E\w+;|goto \w*(?:fail|err)\w*;")
BATCH = 50

Lines = dict[int, int]
Branches = dict[int, list[int]]


def is_own(path: str) -> bool:
    return path.startswith(("daemon/", "client/", "proto/"))


def add(files: dict[str, tuple[Lines, Branches]], report: dict) -> None:
    """A source is compiled twice if it is in the library and elsewhere: a line is reached if one of its copies is."""
    for file in report["files"]:
        path = file["file"].removeprefix("./").removeprefix(str(TOP) + "/")
        if not is_own(path):
            continue
        lines, branches = files.setdefault(path, ({}, {}))
        for line in file["lines"]:
            number = line["line_number"]
            lines[number] = max(lines.get(number, 0), line["count"])
            counts = [b["count"] for b in line["branches"]]
            before = branches.get(number, [])
            if len(before) == len(counts):
                counts = [max(a, b) for a, b in zip(before, counts)]
            branches[number] = counts if len(counts) >= len(before) else before


def measure(build: Path) -> dict[str, tuple[Lines, Branches]]:
    files: dict[str, tuple[Lines, Branches]] = {}
    notes = sorted(str(p) for folder in ("obj", "pic") for p in (build / folder).rglob("*.gcno"))
    notes = [n for n in notes if is_own(n.split("/obj/")[-1].split("/pic/")[-1])]
    for first in range(0, len(notes), BATCH):
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", *notes[first : first + BATCH]]
        output = subprocess.run(command, cwd=TOP, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in output.stdout.splitlines():
            if line.startswith("{"):
                add(files, json.loads(line))
    return files


def share(counts: list[int]) -> str:
    return f"{100 * sum(c > 0 for c in counts) / len(counts):5.1f} %" if counts else "      -"


def main() -> int:
    files = measure(Path(sys.argv[1]))
    if not files:
        print("coverage: no source has been measured")
        return 1
    print("reports of failures that were never reached:")
    missed = 0
    for path in sorted(files):
        source = (TOP / path).read_text().splitlines()
        for number, count in sorted(files[path][0].items()):
            if count == 0 and FAILURE.search(source[number - 1]):
                print(f"  {path}:{number}: {source[number - 1].strip()}")
                missed += 1
    folders = sorted({str(Path(p).parent) for p in files})
    print(f"\n{'':32}{'lines':>8}{'':8}  {'branches':>8}")
    for folder in [*folders, "all"]:
        mine = [files[p] for p in files if folder in ("all", str(Path(p).parent))]
        lines = [count for f in mine for count in f[0].values()]
        branches = [count for f in mine for counts in f[1].values() for count in counts]
        print(f"{folder:32}{len(lines):8}{share(lines):>8}  {len(branches):8}{share(branches):>8}")
    print(f"lines {share(lines).strip()}, branches {share(branches).strip()}, {missed} reports of failures never reached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
