"""The wall clock is set, by hours and days: no retry is stuck, none comes early, nobody is robbed."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from spoolctl.store import claim, creation
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Submission, submit
from tests.conftest import FAST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Spool

NOW = 1_800_000_000_000
HOUR = 3_600_000

# Moves only the wall clock of a process, by the seconds in the file that $JUMP names, read at each call.
JUMP_C = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  char text[64] = {0};
  int file = clock == CLOCK_REALTIME ? open(getenv("JUMP"), O_RDONLY | O_CLOEXEC) : -1;
  if (file >= 0) { if (read(file, text, 63) > 0) now->tv_sec += atol(text); close(file); }
  return result;
}
"""


@pytest.fixture
def jump(spool: Spool, tmp_path: Path) -> Path:
    """A file: the seconds in it are how far the wall clock of workers is off."""
    if shutil.which("cc") is None or ctypes.util.find_library("c") is None:
        pytest.skip("needs a C compiler, for a library that moves a process's wall clock")
    (tmp_path / "jump.c").write_text(JUMP_C)
    build = ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", "jump.so", "jump.c", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True)
    (tmp_path / "jump").write_text("0")
    return tmp_path / "jump"


def test_a_backoff_never_waits_longer_than_it_was_meant_to() -> None:
    tx = creation.fresh(":memory:")
    submit(tx, NOW, Submission([b"x"]))
    delayed = Submission([b"x"])
    delayed.delay = 5 * HOUR
    submit(tx, NOW, delayed)
    claim.claim(tx, NOW, (1, "w"), (), 1)
    settle(tx, NOW, 1, 1, 1, Outcome("failed", "process_exit"))
    assert claim.shorten_backoffs(tx, NOW) == 0, "with the clock as it was"
    assert claim.shorten_backoffs(tx, NOW - HOUR) == 1, "an hour back; the delayed job keeps its own time"
    assert tx.execute("SELECT due_at FROM jobs ORDER BY id").fetchall() == [(NOW - HOUR + 2000,), (NOW + 5 * HOUR,)]


def test_a_retry_comes_though_the_clock_is_set_back_while_it_waits(spool: Spool, jump: Path) -> None:
    """Protects Loop._mind_the_clock: without it the second run would come two hours later."""
    job = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]")
    worker = {"LD_PRELOAD": str(jump.with_name("jump.so")), "JUMP": str(jump)}
    spool.worker(**FAST, **worker)
    spool.until_state(job, "failed")
    jump.write_text("-7200")
    spool.until(lambda: spool.state(job) == "done", "the retry")
    assert all(attempt["seconds"] >= 0 for attempt in spool.attempts(job))


@pytest.mark.parametrize("seconds", ["-90000", "90000"])
def test_a_living_worker_is_not_robbed_when_the_clock_is_set(spool: Spool, jump: Path, seconds: str) -> None:
    job = spool.add("-c", "until [ -e go ]; do sleep 0.02; done")
    spool.worker(**FAST)
    spool.until_state(job, "running")
    jump.write_text(seconds)
    canary = spool.add("--queue", "other", "--", "true")
    spool.worker("--queue", "other", LD_PRELOAD=str(jump.with_name("jump.so")), JUMP=str(jump), **FAST)
    spool.until_state(canary, "done")
    assert spool.state(job) == "running"
    (spool.folder / "go").touch()
    assert spool.until_state(job, "done")["crashes"] == 0
    assert os.path.exists(spool.attempts(job)[0]["stdout"]["path"])
