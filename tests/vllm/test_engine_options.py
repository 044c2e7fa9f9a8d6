# SPDX-License-Identifier: Apache-2.0
"""What the extra configuration of a loader does to the load, to the daemon that it starts, and to the engine's log."""

from __future__ import annotations

import logging
import mmap
import os
import subprocess
import sys

import pytest
from processes import BUILD

import streamerd
from streamerd._engines.options import LoadLog, Options


def test_options_of_a_load_reach_the_daemon(models, daemon):
    options = Options.parse(
        {"socket": daemon.socket, "name": "kept", "keep_alive": "30m", "pin": True, "priority": 7}, "streamerd"
    )
    with options.open(str(models / "checkpoint"), ready=True):
        [model] = [m for m in daemon.ctl("list")["models"] if m["name"] == "kept"]
    assert (model["keep_alive_ns"], model["pinned"], model["priority"]) == (1800 * 10**9, True, 7)


def test_every_option_of_a_load_is_passed_on(monkeypatch):
    passed = {}
    monkeypatch.setattr(streamerd, "open", lambda source, **options: passed.update(options))
    config = {"wait": True, "evict": False, "pin": True, "keep_alive": 90, "priority": 3, "verify": "sha256", "timeout": 5}
    Options.parse(config, "streamerd").open("x")
    assert {key: passed[key] for key in config} == config


def test_durations_are_those_of_open():
    options = Options.parse({"keep_alive": "1d", "timeout": "1.5h"}, "streamerd")
    assert (options.keep_alive, options.timeout) == (86400, 5400)


def test_a_checksum_that_is_not_published_is_named(models, daemon):
    options = Options.parse({"socket": daemon.socket, "name": "verified", "verify": "sha256"}, "streamerd")
    with pytest.raises(streamerd.Error, match="(?i)sha256"):
        options.open(str(models / "checkpoint"), ready=True)


CONCURRENCY = """
import os, sys
from streamerd._engines.options import Options
before = dict(os.environ)
Options.parse({"concurrency": 3}, "streamerd").open(sys.argv[1], ready=True).close()
assert dict(os.environ) == before
import subprocess
from streamerd._autostart import user_socket
print(subprocess.check_output([sys.argv[2], "--socket", user_socket(), "config"], text=True))
"""


def test_concurrency_is_the_daemons_and_not_the_processs(models, tmp_path):
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "STREAMERD_EXIT_IDLE": "1s"}
    environment["PATH"] = f"{BUILD}:/usr/bin:/bin"
    command = [sys.executable, "-c", CONCURRENCY, str(models / "checkpoint"), str(BUILD / "streamerctl")]
    settings = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    [row] = [line.split() for line in settings.splitlines() if line.startswith("io.concurrency")]
    assert row[1] == "3"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_long_load_is_logged_every_few_seconds_and_a_short_one_not(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    log = LoadLog("a/model", logging.getLogger("test"), clock=clock)
    log(0, 0)  # the source has not been read
    for second in range(1, 13):
        clock.now = 100.0 + second
        log(second << 30, 40 << 30)
    assert [r.getMessage() for r in caplog.records] == [
        "streamerd: a/model: 5.0 GiB of 40.0 GiB (12 %), 819.2 MiB/s, 44 s left",
        "streamerd: a/model: 10.0 GiB of 40.0 GiB (25 %), 921.6 MiB/s, 33 s left",
    ]
    clock.now = 200.0
    log(40 << 30, 40 << 30)
    assert len(caplog.records) == 2


def test_a_load_that_makes_no_progress_has_no_time_left(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    log = LoadLog("m", logging.getLogger("test"), clock=clock)
    log(1 << 30, 2 << 30)
    clock.now = 106.0
    log(1 << 30, 2 << 30)
    assert caplog.records[0].getMessage() == "streamerd: m: 1.0 GiB of 2.0 GiB (50 %), 0 B/s, unknown time left"


def test_the_timeout_holds_while_tensors_arrive():
    clock = Clock()
    log = LoadLog("m", logging.getLogger("test"), timeout=10, clock=clock)
    log(1, 5)
    clock.now = 109.9
    log(2, 5)
    clock.now = 110.0
    with pytest.raises(streamerd.TimedOutError, match="m: not loaded in the given time; the load continues"):
        log(3, 5)
    log(5, 5)


def test_hugetlb_mappings_are_told_from_others():
    from streamerd._engines.vllm_aliases import HugePages

    size = 2 << 20
    plain = mmap.mmap(-1, size)
    address = _address(plain)
    assert HugePages().knows(address)
    assert not HugePages().has(address)
    assert not HugePages().knows(1)
    assert HugePages().has(1)  # not known to be safe
    try:
        huge = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
    except OSError:
        pytest.skip("this host has no hugetlb page")
    assert HugePages().has(_address(huge))


def _address(memory: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
