#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""documented_commands.py BUILD: runs the commands of README.md and of docs as they are written, and checks the
configurations there. Prints what fails, then how many blocks it ran, and which cannot be run here and why.

A block is indented or fenced text. It is one of commands if a line begins with a program of PROGRAMS, after "$ " or
without: the text after two spaces is then a remark. After "$ " the lines that follow are the expected output, in which
numbers, and spaces, may differ, and "..." stands for anything. It is a configuration if its first line is a key of
streamerd.yaml(5).

Everything runs in a root of its own, whose /models, /srv, /run and /tmp are empty and whose other folders are read-only,
beside a daemon at the usual socket that has loaded a model. Needs root, and a mount namespace of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

BUILD = Path(sys.argv[1]).resolve()
TOP = Path(__file__).resolve().parents[2]
PROGRAMS = """streamerd streamerctl systemctl systemd-creds make sudo podman docker kubectl helm pip python vllm PATH= CHECKER_SEED=
 SOAK_SEED= KILLS_SEED= curl cc apt dpkg buildah"""
LIMIT = 30
SOCKET = "/run/streamerd/streamerd.sock"

ENGINES = "needs an engine: make check-vllm runs them"
PYTHON = "needs the wheel: make check-python runs them"
CONTAINERS = "needs a container engine"
BUILDS = "builds, tests or installs for minutes: CI and make nightly do"
CHANGES = "changes the machine: make check-packages runs it in containers"
STORE = "needs a store: tests/integration/disk loads from one"
MANAGER = "needs a service manager: make check-servers runs one in a container"

# Blocks with a program that is not here, or that is not for a machine that only runs tests.
PROGRAMS_NOT_HERE = {
    "vllm": ENGINES,
    "python -m sglang.launch_server": ENGINES,
    "pip": PYTHON,
    "podman": CONTAINERS,
    "docker": CONTAINERS,
    "helm": "needs helm: make check-servers renders the chart with its code",
    "systemd-creds": MANAGER,
    "make": BUILDS,
    "apt": CHANGES,
    "dpkg": CHANGES,
}
# A page and the beginning of a block, and why it is not run here. An entry that fits no block is an error.
NOT_HERE = {
    ("README.md", "streamerctl load /models/llama-3-8b                        inference"): "a drawing",
    ("docs/architecture.md", "streamerctl load"): "a drawing",
    ("docs/disk-cache.md", "$ streamerctl load s3:"): STORE,
    ("docs/disk-cache.md", "streamerctl cache list"): STORE,
    ("docs/kubernetes.md", "kubectl create secret"): "needs a cluster",
    ("docs/operations.md", "systemctl restart"): MANAGER,
    ("docs/vllm.md", "streamerctl export"): ENGINES,
}
# Blocks whose output is that of another machine, or of a busy one: they run, and it is not compared.
OTHER_MACHINE = {("docs/access.md", "$ streamerctl whoami"): "", ("docs/cuda.md", "$ streamerctl doctor"): ""}
# Blocks that a user runs who is not root, by their numbers: the uid.
USERS = {("docs/access.md", "$ streamerctl whoami"): 1007}
# Programs that do nothing here, since what they do is a machine's: the rest of the block runs.
INERT = {"systemctl"}
# A name that stands for something.
EXAMPLES = {"MODEL": "llama-3-8b"}
# The tensor "step" of the demonstration's model.
STEP = bytes.fromhex("9f13dadeed4b5d99")


class Block:
    def __init__(self, page: str, line: int, text: str) -> None:
        self.page, self.line, self.text = page, line, text

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0]}"

    def begins(self, start: str) -> bool:
        return self.text.startswith(start)


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    lines = (TOP / page).read_text().splitlines()
    i = 0
    while i < len(lines):
        first, body = i, []
        if lines[i].startswith("```"):
            i += 1
            while not lines[i].startswith("```"):
                body.append(lines[i])
                i += 1
            first += 1
        elif lines[i].startswith("    ") and lines[i - 1] == "":
            while i < len(lines) and (lines[i].startswith("    ") or lines[i] == ""):
                body.append(lines[i])
                i += 1
            i -= 1
        i += 1
        text = textwrap.dedent("\n".join(body)).strip("\n")
        if text:
            found.append(Block(page, first + 1, text))
    return found


def find(table: dict[tuple[str, str], Any], block: Block) -> Any:
    return next((value for (page, start), value in table.items() if page == block.page and block.begins(start)), None)


def not_here(block: Block) -> str | None:
    lines = [line.removeprefix("$ ") for line in block.text.splitlines()]
    reasons = (why for program, why in PROGRAMS_NOT_HERE.items() for line in lines if line.startswith(program + " "))
    return next(reasons, None)


def is_command(line: str) -> bool:
    return line.removeprefix("$ ").startswith(tuple(p + ("" if p[-1] == "=" else " ") for p in PROGRAMS.split()))


def commands(block: Block) -> list[tuple[str, str | None]]:
    """Each with its expected output; None: any."""
    text = block.text.replace("\\\n", " ")
    if not any(line.startswith("$ ") for line in text.splitlines()):
        return [(re.split(r" {2,}", line)[0], None) for line in text.splitlines() if line]
    found: list[tuple[str, str | None]] = []
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        found.append((command, output.strip() or None))
    return found


def keys() -> set[str]:
    return set(re.findall(r"^([a-z0-9_]+):", (TOP / "config/streamerd.yaml").read_text(), re.M))


# ---- running


def masked(text: str) -> str:
    """Numbers, and units of bytes, are any."""
    return re.sub(r"\b(B|[KMGT]iB)\b", "B", re.sub(r"\d+(\.\d+)?", "0", text))


def pattern(expected: str) -> str:
    words = []
    for word in masked(expected).split():
        words.append(".*" if word == "..." else re.escape(word))
    return r"\s*" + r"\s+".join(words) + r"\s*"


def normal(output: str) -> str:
    return " ".join(masked(output).split())


def as_job(command: str, folder: Path) -> str:
    """A daemon goes on while the others run, and has to serve. One that has no socket of its own gets one."""
    if command.startswith("streamerd ") and not re.search("--check-config|--version|--help|&$", command):
        command = f"{command} --socket {folder}/socket &"
    if not command.endswith("&"):
        return command
    ping = f"streamerctl --socket {folder}/socket ping" if f"{folder}/socket" in command else "streamerctl ping"
    return f"{command}\nuntil {ping} >/dev/null 2>&1; do kill -0 $! || break; sleep 0.05; done\nkill -0 $!"


def run_block(block: Block, folder: Path, work: Path) -> str | None:
    """What fails. One shell runs all commands, so that a variable stays."""
    parts = commands(block)
    script = ["set -m"]
    for i, (command, _) in enumerate(parts):
        for name, example in EXAMPLES.items():
            command = re.sub(rf"\b{name}\b", example, command)
        script.append(f"exec >{folder}/{i} 2>&1\n{as_job(command, folder)}\necho $? >{folder}/{i}.status")
    script.append("kill $(jobs -p) 2>/dev/null; wait; true")
    path = folder / "script"
    path.write_text("\n".join(script))
    user = find(USERS, block)
    become = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--groups=0"]
    folder.chmod(0o777)
    try:
        subprocess.run([*become, "bash", path], cwd=work, timeout=LIMIT, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f"it takes more than {LIMIT} s"
    for i, (command, expected) in enumerate(parts):
        output = (folder / str(i)).read_text() if (folder / str(i)).exists() else ""
        if expected is not None and find(OTHER_MACHINE, block) is None:
            if not re.fullmatch(pattern(expected), normal(output), re.S):
                return f"{command}: it prints\n{output}"
        elif not (folder / f"{i}.status").exists() or (folder / f"{i}.status").read_text() != "0\n":
            return f"{command}: it fails: {output}"
    return None


def check_configuration(block: Block, folder: Path) -> str | None:
    path = folder / "streamerd.yaml"
    path.write_text(block.text + "\n")
    flags = [] if re.search("^devices:", block.text, re.M) else ["--device", "host=8MiB"]
    done = subprocess.run(
        ["streamerd", "--config", path, "--root", "/srv/models", *flags, "--check-config"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else done.stderr


# ---- the machine that the pages have in mind


def shell(command: str) -> None:
    subprocess.run(["bash", "-ec", command], cwd=TOP, check=True, stdout=subprocess.DEVNULL)


def change_root() -> None:
    """To one with folders of its own where the pages have theirs; else that of the machine."""
    root = Path("/mnt")
    shell(f"mount -t tmpfs none {root}")
    for entry in os.scandir("/"):
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(os.readlink(entry.path))
        elif entry.name == "etc":
            shell(f"cp -a /etc {root}")
        elif entry.name not in ("mnt", "models", "run", "srv", "tmp") and entry.is_dir():
            place.mkdir()
            shell(f"mount --rbind {entry.path} {place}")
            if entry.name not in ("dev", "proc", "sys"):
                shell(f"mount -o remount,bind,ro {place}")
    for path in (p for p in (TOP, BUILD) if p.is_relative_to("/tmp")):
        (root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
        shell(f"mount --bind {path} {root}{path} && mount -o remount,bind,ro {root}{path}")
    for name in ("tmp", "etc/streamerd", "models", "run/streamerd", "srv/models/ml", "srv/models/other"):
        (root / name).mkdir(parents=True, exist_ok=True)
    # Users and groups that the pages name.
    for name, lines in (("passwd", "trainer:x:60901:60901::/:/bin/sh\n"), ("group", "sudo:x:60902:\nml:x:60903:\n")):
        with (root / "etc" / name).open("a") as f:
            f.write(lines)
    (root / "tmp").chmod(0o1777)
    os.environ["TMPDIR"] = "/tmp"
    os.chroot(root)
    os.chdir(TOP)


def prepare(folder: Path) -> subprocess.Popen[bytes]:
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for program in INERT:
        (bin_folder / program).write_text("#!/bin/sh\n")
        (bin_folder / program).chmod(0o755)
    os.environ["PATH"] = f"{bin_folder}:{BUILD}:{os.environ['PATH']}"
    os.environ["LD_LIBRARY_PATH"] = f"{BUILD}/tests/fake"
    os.environ["FAKECUDA_DEVICES"] = "4"
    os.environ.pop("STREAMERD_SOCKET", None)
    for name in [n for n in os.environ if n.startswith(("RUNAI_", "AWS_", "HF_"))]:
        del os.environ[name]
    model(Path("/models/llama-3-8b/model.safetensors"))
    for rank in range(4):
        model(Path(f"/models/sharded/model-rank-{rank}-part-0.safetensors"))
    # As `make demo` leaves it, in what the pages call build.
    work = folder / "work/build"
    work.mkdir(parents=True)
    for program in ("streamerd", "streamerctl"):
        (work / program).symlink_to(BUILD / program)
    model(work / "models/tiny-llama.safetensors", 2 << 20)
    rules = next(b.text for b in blocks("docs/access.md") if b.begins("access:"))
    text = "devices: [host=256MiB, cuda:0=64MiB, cuda:1=64MiB, cuda:2=64MiB, cuda:3=64MiB]\nroots: [/models, /srv/models]\n"
    Path("/etc/streamerd/streamerd.yaml").write_text(text)
    (folder / "service.yaml").write_text(f"{text}{rules}\n")
    daemon = subprocess.Popen(["streamerd", "--config", folder / "service.yaml"], stdout=subprocess.DEVNULL, stderr=(folder / "log").open("wb"))
    # By name: until it is there, another one's would be found.
    while subprocess.run(["streamerctl", "--socket", SOCKET, "ping"], capture_output=True, check=False).returncode != 0:
        if daemon.poll() is not None:
            sys.exit((folder / "log").read_text())
        time.sleep(0.05)
    return daemon


def model(path: Path, size: int = 4096) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"a": (0, size), "step": (size, size + len(STEP))}
    head = json.dumps({n: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]} for n, (a, b) in tensors.items()}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(size) + STEP)


def main() -> int:
    pages = ["README.md", *sorted(str(p.relative_to(TOP)) for p in (TOP / "docs").rglob("*.md"))]
    settings = keys()
    ran = configurations = 0
    failures: list[str] = []
    left_out: list[str] = []
    unused = dict(NOT_HERE)
    change_root()
    with tempfile.TemporaryDirectory(prefix="docs-") as name:
        top = Path(name)
        top.chmod(0o755)
        daemon = prepare(top)
        for block in (b for page in pages for b in blocks(page)):
            folder = top / f"{block.page.replace('/', '-')}-{block.line}"
            folder.mkdir()
            first = block.text.splitlines()[0]
            reason = find(NOT_HERE, block) or not_here(block)
            why = None
            if reason is not None:
                unused = {k: v for k, v in unused.items() if not (k[0] == block.page and block.begins(k[1]))}
                left_out.append(f"{block.where}: {reason}")
            elif any(is_command(line) for line in block.text.splitlines()):
                ran += 1
                shell("streamerctl load /models/llama-3-8b --device host --quiet")
                why = run_block(block, folder, top / "work")
            elif re.match(r"([a-z0-9_]+):", first) and first.split(":")[0] in settings:
                configurations += 1
                why = check_configuration(block, folder)
            if why:
                failures.append(f"{block.where}: {why}")
        daemon.terminate()
        daemon.wait()
    failures += [f"{page}: no block begins with '{start}'" for page, start in unused]
    print("\n".join(failures))
    print(f"{ran} blocks of commands ran, {configurations} configurations were checked, {len(left_out)} blocks cannot be run here:")
    print("\n".join(left_out))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
