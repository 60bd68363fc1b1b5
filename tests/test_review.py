"""What a review has proved by experiment, each once wrong."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from spoolctl.run import fence, proc
from spoolctl.run.fence import Fence
from tests.conftest import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Spool


def test_a_process_that_forks_on_during_the_scan_is_found(spool: Spool) -> None:
    """Protects the repeated listing in proc.living: a chain of forks outruns a single one."""
    chain = """
import os, time
os.setsid()
while True:
    if os.fork():
        os._exit(0)
    time.sleep(0.0005)
"""
    env = {**spool.env, "SPOOLCTL_MARKER": "chain"}
    subprocess.Popen([sys.executable, "-c", chain], env=env).wait()
    try:
        found = sum(any(mark == "chain" for _, mark in proc.scan()) for _ in range(20))
        assert found == 20
    finally:
        end = time.monotonic() + DEADLINE
        closing = Fence("chain", None, None, str(spool.folder / "none"), time.monotonic() - 10)
        while not closing.step(time.monotonic()) and time.monotonic() < end:
            pass


def test_a_fence_that_cannot_look_stays_closed_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMFILE must not be taken for "nobody there", nor end the worker."""

    def refuse() -> list[tuple[proc.Stat, str | None]]:
        raise OSError(24, "Too many open files", "/proc")

    monkeypatch.setattr(fence, "scan", refuse)
    one = Fence("m", None, None, str(tmp_path / "none"), 0.0)
    assert not one.step(1.0)
    assert one.stuck == "the processes cannot be looked through: Too many open files"
    monkeypatch.undo()
    assert one.step(3.0)


@pytest.mark.parametrize("error", [PermissionError(1, "filtered"), OSError(38, "no pidfds"), OSError(24, "full")])
def test_processes_are_ended_without_pidfds_too(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    victim = subprocess.Popen(["sleep", "100"], env={**spool.env, "SPOOLCTL_MARKER": "victim"})
    one = Fence("victim", None, None, str(spool.folder / "none"), time.monotonic())
    one.step(time.monotonic())
    assert one.stuck is None
    assert victim.wait(DEADLINE) == -15
    assert one.step(time.monotonic())


def test_a_forced_retry_ends_what_a_success_has_left(spool: Spool) -> None:
    job = spool.add("-c", "sleep 100 & exit 0")
    spool.run("work", "--drain")
    assert spool.left_running()
    spool.run("retry", "--force", str(job))
    assert spool.left_running() == []
    assert spool.state(job) == "queued"


def test_a_forced_retry_of_a_job_that_is_canceled_meanwhile_is_a_conflict(spool: Spool) -> None:
    """A command that ignores TERM gives `cancel` the time to overwrite the mark."""
    job = spool.add("-c", "trap '' TERM; touch up; while :; do sleep 0.05; done")
    spool.worker()
    spool.until(lambda: (spool.folder / "up").exists())
    command = [*spool.command, "retry", "--json", "--force", str(job)]
    retry = subprocess.Popen(command, cwd=spool.folder, env=spool.env, stdout=subprocess.PIPE)
    spool.processes.append(retry)
    spool.until(lambda: spool.job(job)["stopping"])
    spool.run("cancel", "--running", "--yes", str(job))
    said, _ = retry.communicate(timeout=DEADLINE)
    assert (retry.returncode, json.loads(said)["error"]["code"]) == (5, "CONFLICT")
    assert spool.state(job) == "canceled"


def test_a_batch_with_keys_and_tags_takes_time_in_proportion(spool: Spool) -> None:
    """Protects the key of the temporary table of tags: each line used to walk over all of them."""
    lines = b"".join(b'{"argv": ["x"], "key": "k%d", "tags": {"n": "%d"}}\n' % (n, n) for n in range(4000))
    assert spool.run("add", "--batch", "-", stdin=lines).stdout == b"Added jobs 1-4000\n"
    assert spool.job(4000)["tags"] == {"n": "3999"}


def test_the_first_add_does_not_wait_for_somebodys_lock_on_the_folder(spool: Spool) -> None:
    held = os.open(spool.folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert spool.text("add", "--db", "q.db", "--", "true") == "Added job 1\n"
    finally:
        os.close(held)


@pytest.mark.skipif(os.geteuid() != 0, reason="no directory is closed to this user, or all are")
def test_a_worker_whose_directory_is_closed_to_it_runs_no_job_twice(spool: Spool) -> None:
    """The command has been started when going back fails: it must not count as not started."""
    code = """
import os, sys
import spoolctl.cli, spoolctl.verbs.work
os.chdir("closed")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ["SPOOLCTL_DB"] = sys.argv.pop()
raise SystemExit(spoolctl.cli.main())
"""
    job = spool.add("--cwd", "/tmp", "--max-retries", "1", "-c", "echo $SPOOLCTL_ATTEMPT")
    (spool.folder / "closed").mkdir(mode=0o700)
    for folder in (spool.folder, *list(spool.folder.parents)[:3]):
        folder.chmod(0o755)
    subprocess.run(["chown", "-R", "65534", str(spool.folder / ".spoolctl")], check=True)
    words = ["work", "--drain", spool.place.path]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=spool.folder, env=spool.env, capture_output=True, check=False
    )
    assert spool.state(job) == "done", done.stderr
    assert len(spool.attempts(job)) == 1
