# SPDX-License-Identifier: Apache-2.0
"""describe.py TREE PAGE: the metadata of a wheel that is made of TREE, and its README of docs/python.md.

The licence's expression is that of the package and of the libraries whose licences are in TREE/licenses. Relative
links of the page lead to $PROJECT_URL; without one they become text, since on an index they would lead nowhere.
"""

import os
import re
import sys
from pathlib import Path


def known_licences() -> dict[str, str]:
    lines = Path(__file__).with_name("licences.txt").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def expression(packages: list[str]) -> str:
    known = known_licences()
    found = set()
    for package in packages:
        names = [name for name in known if package.startswith(name)]
        if not names:
            sys.exit(f"describe.py: licences.txt has no line for {package}")
        found.add(known[max(names, key=len)])
    parts = [f"({part})" if " OR " in part else part for part in sorted(found - {"Apache-2.0"})]
    return " AND ".join(["Apache-2.0", *parts])


def readme(page: str, url: str) -> str:
    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        place = target[len("../") :] if target.startswith("../") else f"docs/{target}"
        return f"[{text}]({url}/blob/HEAD/{place})" if url else text

    return re.sub(r"(?<!\w)\[([^\]]+)\]\(([^)]+)\)", link, page)


def main(tree: Path, page: Path) -> None:
    url = os.environ.get("PROJECT_URL", "").rstrip("/").removesuffix(".git")
    # Texts that others refer to, and are no packages', begin with a capital.
    packages = [path.name for path in (tree / "licenses").iterdir() if path.name[0].islower()]
    project = tree / "pyproject.toml"
    text = project.read_text().replace(
        'license = "Apache-2.0"',
        f'readme = "README.md"\nlicense-files = ["LICENSE", "licenses/*"]\nlicense = "{expression(packages)}"',
    )
    if url:
        urls = {"Homepage": "", "Documentation": "/tree/HEAD/docs", "Source": "", "Changelog": "/blob/HEAD/docs/changelog.md"}
        lines = [f'{name} = "{url}{path}"\n' for name, path in urls.items()]
        text = text.replace("[project.scripts]", f"[project.urls]\n{''.join(lines)}\n[project.scripts]")
    project.write_text(text)
    (tree / "README.md").write_text(readme(page.read_text(), url))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
