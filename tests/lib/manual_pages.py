#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""manual_pages.py BUILD SETTING...: the manual knows every verb, flag, setting and function, and help has an example for
each verb. Prints what is missing."""

import re
import subprocess
import sys
from pathlib import Path

BUILD, SETTINGS = Path(sys.argv[1]), sys.argv[2:]
CTL = BUILD / "streamerctl"
missing = []


def printed(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def page(path):
    """Without the backslashes and font changes of its source."""
    return re.sub(r"\\f.|\\", "", path.read_text())


def require(words, text, name, least=0):
    if len(words) < least:
        missing.append(f"only {len(words)} words are required of {name}")
    found = [re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) for word in words]
    missing.extend(f"{name} does not know {word}" for word, match in zip(words, found) if not match)


def listed(text, title):
    """The first word of each line below a title."""
    return re.findall(r"^  ([^ ,\n]+)", text.partition(f"\n{title}:\n")[2].partition("\n\n")[0], re.M)


def check_verb(manual, verb):
    """The verb's own section of the page has its flags; its help has an example that runs the verb."""
    section = re.search(rf'^\.SS "{verb}[ "].*?(?=^\.S|\Z)', manual, re.M | re.S)
    if not section:
        missing.append(f"streamerctl.1 has no section of {verb}")
        return
    text = printed(CTL, "help", verb)
    require(listed(text, "Flags"), section[0], f"streamerctl.1, {verb},")
    examples = text.partition("\nExamples:\n")[2]
    if f"streamerctl {verb}" not in examples:
        missing.append(f"help {verb} has no example")
    for example in re.findall(rf"^streamerctl {verb}\b.*", section[0], re.M):
        if example not in examples:
            missing.append(f"help {verb} has no such example: {example}")


manual, overview = page(Path("docs/man/streamerctl.1")), printed(CTL, "help")
require(listed(overview, "Flags of every verb"), manual, "streamerctl.1", 6)
verbs = listed(overview, "Verbs")
require(verbs, manual, "streamerctl.1", 11)
for verb in verbs:
    check_verb(manual, verb)
usage = re.findall(r"^  +(-[-\w]+|[A-Z][-\w]*)", printed(BUILD / "streamerd", "--help"), re.M)
require(usage, page(BUILD / "streamerd.8"), "streamerd.8", 21)
require(SETTINGS, page(BUILD / "streamerd.yaml.5"), "streamerd.yaml.5", 50)
header = Path("include/streamer/client.h").read_text()
functions = re.findall(r"^STREAMER_API [^;(]*?\b(streamer_\w+)\(", header, re.M)
require(functions, page(BUILD / "libstreamer-client.3"), "libstreamer-client.3", 26)
print("\n".join(missing), end="")
