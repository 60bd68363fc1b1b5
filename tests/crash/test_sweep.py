"""A worker killed at every boundary in turn: before and after each claim, spawn, record and COMMIT,
and at its n-th write to the disk. After each kill the queue is sound and a successor finishes.

The named points are in `run/faults.py`; the writes are counted by strace where that exists.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from spoolctl.run.faults import POINTS
from tests.conftest import FAST
from tests.crash import soundness

if TYPE_CHECKING:
    from tests.conftest import Spool

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="the jobs need flock(1), of util-linux")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls with strace")

JOB = soundness.EXCLUSIVE % "sleep 0.1"
SAMPLE = (1, 2, 5, 9, 14, 20)
SYSCALLS = ("pwrite64", "fdatasync")


def finish(spool: Spool, jobs: list[int]) -> None:
    """A successor finishes, and everything is as it must be before and after."""
    soundness.check(spool)
    spool.run("work", "--drain", "--jobs", "2", **FAST)
    soundness.check(spool)
    assert [spool.state(job) for job in jobs] == ["done"] * len(jobs)
    for job in jobs:
        ended = [line for line in soundness.log(spool) if line.startswith(f"end {job} ")]
        assert ended, f"job {job} was never run to its end"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", [name for name in POINTS if name != "fenced"])
def test_a_worker_killed_at_a_named_point_leaves_a_sound_queue(spool: Spool, point: str, count: int) -> None:
    jobs = [spool.add("-c", JOB) for _ in range(3)]
    killed = spool.run("work", "--drain", "--jobs", "2", code=None, SPOOLCTL_TEST_DIE_AT=f"{point}:{count}", **FAST)
    reached_once = point in ("entered", "leaving")
    assert killed.returncode == (0 if reached_once and count > 1 else -signal.SIGKILL), killed.stderr
    finish(spool, jobs)


def test_a_worker_killed_between_fence_and_requeue_leaves_the_job_to_the_next(spool: Spool) -> None:
    job = spool.add("-c", JOB)
    for point in ("recorded", "fenced"):
        killed = spool.run("work", "--drain", code=None, SPOOLCTL_TEST_DIE_AT=point, **FAST)
        assert killed.returncode == -signal.SIGKILL
        soundness.check(spool)
    finish(spool, [job])
    assert spool.job(job)["crashes"] == 1, "the second death was nobody's attempt"


def killed_at(spool: Spool, syscall: str, number: int, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run one command line and kill it at its `number`-th call of `syscall`; its children go on."""
    inject = ["-e", f"trace={syscall}", "-e", f"inject={syscall}:signal=KILL:when={number}"]
    command = ["strace", "-qq", "-o", "/dev/null", *inject, *spool.command, *words]
    return subprocess.run(
        command, cwd=spool.folder, env={**spool.env, **FAST}, capture_output=True, timeout=60, check=False
    )


@needs_strace
@pytest.mark.parametrize("syscall", SYSCALLS)
@pytest.mark.parametrize("number", SAMPLE)
def test_a_worker_killed_at_a_write_leaves_a_sound_queue(spool: Spool, syscall: str, number: int) -> None:
    jobs = [spool.add("-c", JOB) for _ in range(3)]
    done = killed_at(spool, syscall, number, "work", "--drain", "--jobs", "2")
    assert done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    finish(spool, jobs)


@needs_strace
@pytest.mark.torture
@pytest.mark.parametrize("syscall", SYSCALLS)
def test_a_worker_killed_at_every_single_write_leaves_a_sound_queue(spool: Spool, syscall: str) -> None:
    for number in range(1, 500):
        jobs = [spool.add("-c", JOB) for _ in range(3)]
        done = killed_at(spool, syscall, number, "work", "--drain", "--jobs", "2")
        finish(spool, jobs)
        if done.returncode == 0:
            assert number > 5
            return
    pytest.fail("the sweep did not come to its end")


@needs_strace
@pytest.mark.parametrize("syscall", SYSCALLS)
@pytest.mark.parametrize("number", range(1, 8))
def test_an_add_killed_at_a_write_is_there_if_it_was_acknowledged(spool: Spool, syscall: str, number: int) -> None:
    spool.add("true")
    done = killed_at(spool, syscall, number, "add", "--key", "k", "--", "true")
    soundness.check(spool)
    known = [job["id"] for job in spool.json("list", "--key", "k")["jobs"]]
    if done.stdout:
        assert done.stdout == b"Added job 2\n"
        assert known == [2]
    again = spool.json("add", "--key", "k", "--", "true")
    assert again["job_id"] == (known[0] if known else 2)
    assert again["deduplicated"] == bool(known)
