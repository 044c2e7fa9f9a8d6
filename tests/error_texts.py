#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the error texts of daemon/, client/ and proto/ that no test expects.

A text is the literal argument of a function that sets, sends or prints an error. A test expects it if a literal of the
test is a part of the text, between its conversions, that no more than three texts have; or the other way round.
tests/error-texts-exempt.txt excuses texts, with a reason for each; a line that excuses nothing is an error too."""

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
SPECIFIC = 3  # texts that one literal may stand for
EXEMPT = TOP / "tests" / "error-texts-exempt.txt"
# Functions that set an error: error_set, session_fail, usage_error, cuda_failed, fail_at ... Not those that only log.
SETTER = re.compile(r"\b(?!log_)(?:\w+_)?(?:fail|failed|error|errno|error_set|fail_\w+|error_\w+)\s*\(")
LITERAL = r'"(?:\\.|[^"\\\n])*"'
COMMENT_OR_LITERAL = re.compile(rf"/\*.*?\*/|//[^\n]*|({LITERAL})|'(?:\\.|[^'\\\n])+'", re.S)
CONVERSION = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|j|z|t)?[a-zA-Z]|\" ?PRI\w+ ?\"|%%")


def without_comments(source: str) -> str:
    return COMMENT_OR_LITERAL.sub(lambda m: m.group() if m[1] or m.group()[0] == "'" else " ", source)


def literals(source: str) -> list[str]:
    """The literals, adjacent ones joined; a macro between two of them is a conversion."""
    joined = re.findall(rf"{LITERAL}(?:\s*(?:[A-Z]\w*\s*)?{LITERAL})*", source)
    return [re.sub(r'"\s*([A-Z]\w*)?\s*"', lambda m: "s" if m[1] else "", text)[1:-1] for text in joined]


def arguments(source: str, begin: int) -> str:
    """The arguments of the call whose parenthesis is before `begin`."""
    depth, at = 1, begin
    token = re.compile(rf"{LITERAL}|'(?:\\.|[^'\\\n])+'|[()]")
    while depth > 0 and (m := token.search(source, at)):
        depth += (m.group() == "(") - (m.group() == ")")
        at = m.end()
    return source[begin:at]


def fixed_parts(text: str) -> list[str]:
    parts = [p.strip(" :,;()'\"%") for p in CONVERSION.split(text.replace("\\n", " "))]
    return [p for p in parts if len(p) >= 6]


def texts_of(source: str) -> list[str]:
    found = []
    for call in SETTER.finditer(source):
        inner = arguments(source, call.end())
        found += [t for t in literals(inner) if any(" " in part for part in fixed_parts(t))]
    return found


def errors() -> dict[str, str]:
    """Each text and where it is set first."""
    found: dict[str, str] = {}
    for folder in ("daemon", "client", "proto"):
        for path in sorted((TOP / folder).rglob("*.c")):
            source = without_comments(path.read_text())
            for text in texts_of(source):
                found.setdefault(text, str(path.relative_to(TOP)))
    return found


def expectations() -> list[str]:
    """The parts without a conversion of the literals of the tests."""
    texts = []
    for folder in (TOP / "tests", TOP / "client" / "python" / "tests"):
        for path in folder.rglob("*.[chp]*"):
            if path.suffix == ".py" and path != Path(__file__).resolve():
                texts += re.findall(r"\"[^\"\n]+\"|'[^'\n]+'", path.read_text())
            elif path.suffix in (".c", ".h"):
                texts += literals(without_comments(path.read_text()))
    return sorted({part for text in texts for part in fixed_parts(text)})


def expected(texts: list[str]) -> set[str]:
    parts = {text: fixed_parts(text) for text in texts}
    found = set()
    for literal in expectations():
        having = [t for t in texts if any(literal in part for part in parts[t])]
        if len(having) <= SPECIFIC:
            found.update(having)
        found.update(t for t in texts if max(parts[t], key=len) in literal)
    return found


def exemptions() -> dict[str, str]:
    """'pattern # reason' of each line; * stands for any part of a text."""
    lines = EXEMPT.read_text().splitlines() if EXEMPT.exists() else []
    pairs = [line.rsplit(" # ", 1) for line in lines if line and not line.startswith("#")]
    return {pattern: reason for pattern, reason in pairs}


def main() -> int:
    found, exempt = errors(), exemptions()
    met = expected(list(found))
    missing = {text: where for text, where in found.items() if text not in met}
    bad, used = 0, set()
    for text, where in missing.items():
        excuses = [p for p in exempt if fnmatchcase(text.replace("[", "("), p.replace("[", "("))]
        used.update(excuses)
        if not excuses:
            print(f"{where}: no test expects: {text}")
            bad += 1
    for pattern in exempt.keys() - used:
        print(f"{EXEMPT.relative_to(TOP)}: excuses nothing: {pattern}")
        bad += 1
    print(f"error texts: {len(found)}, {len(met)} expected by tests, {len(missing)} not, {bad} of them without a reason")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
