#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fault_sites.py BUILD: prints the allocations of streamerd and streamerctl that no fault scenario has made fail.

BUILD/fault-sites has the addresses of the calls that failed (STREAMERD_FAULT_SITES). The allocations of a program are
the calls in its disassembly. A source line counts as failed if one of its calls has failed."""

import re
import subprocess
import sys
from pathlib import Path

ALLOCATIONS = "malloc|calloc|realloc|reallocarray|aligned_alloc|strdup|strndup|asprintf"
CALL = re.compile(rf"^\s*[0-9a-f]+:.*\b(?:callq?|bl)\s+[0-9a-f]+ <({ALLOCATIONS})[@$]plt>")
ADDRESS = re.compile(r"^\s*([0-9a-f]+):\s")


def output_of(*command: str, stdin: str | None = None) -> str:
    return subprocess.run(command, check=True, input=stdin, stdout=subprocess.PIPE, text=True).stdout


def calls_of(program: Path) -> dict[int, str]:
    """The function called, by the address to which the call returns: that of the next instruction."""
    found: dict[int, str] = {}
    called = None
    for line in output_of("objdump", "-d", "--no-show-raw-insn", str(program)).splitlines():
        address = ADDRESS.match(line)
        if called and address:
            found[int(address[1], 16)] = called
        called = m[1] if (m := CALL.match(line)) else None
    return found


def lines_of(program: Path, addresses: list[int]) -> dict[int, str]:
    """The source line of each call, in the innermost inlined function."""
    # One byte before the return address is within the call.
    text = "".join(f"{a - 1:#x}\n" for a in addresses)
    top = str(Path.cwd()) + "/"
    lines = output_of("addr2line", "-e", str(program), stdin=text).splitlines()
    return {a: re.sub(r" \(discriminator \d+\)", "", line).removeprefix(top) for a, line in zip(addresses, lines)}


def main() -> int:
    build = Path(sys.argv[1])
    recorded = build / "fault-sites"
    failed: dict[str, set[int]] = {}
    for line in recorded.read_text().splitlines() if recorded.exists() else []:
        program, _, address = line.split()
        failed.setdefault(program, set()).add(int(address, 16))
    for name in ("streamerd", "streamerctl"):
        calls = calls_of(build / name)
        lines = lines_of(build / name, sorted(calls))
        met = {lines[a] for a in failed.get(name, set()) if a in lines}
        never = sorted({(lines[a], calls[a]) for a in calls if lines[a] not in met})
        for line, function in never:
            print(f"{name}: {line}: {function} has never failed")
        print(f"{name}: {len(set(lines.values()))} lines allocate; {len(met)} have failed, {len(never)} never")
    return 0


if __name__ == "__main__":
    sys.exit(main())
