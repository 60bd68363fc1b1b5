"""A disk that is full: callers are told, the worker waits and goes on, nothing is lost or run twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spoolctl.store.database import open_queue
from tests.conftest import Spool
from tests.crash import soundness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A worker that gives up after a second instead of thirty.
IMPATIENT = """
import sys
import spoolctl.limits
spoolctl.limits.STOP_WAIT = 1
from spoolctl.cli import main
sys.exit(main())
"""

@pytest.fixture
def small(tmp_path: Path) -> Iterator[Spool]:
    """A queue on a file system of one and a half megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounts a small file system, which is not permitted here")
    spool = Spool(disk)
    yield spool
    spool.close()
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(spool: Spool) -> None:
    """Take what is left, to the last byte."""
    file = os.open(spool.folder / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 16, 1 << 10, 1):
            while True:
                os.write(file, b"x" * size)
    except OSError:
        pass
    finally:
        os.close(file)


def enlarge(spool: Spool) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(spool.folder)], check=True)


def log(spool: Spool, number: int = 0) -> str:
    return (spool.folder / f"worker-{number}.log").read_text()


def test_a_submission_to_a_full_disk_is_refused_and_a_later_one_accepted(small: Spool) -> None:
    small.add("true")
    fill(small)
    refused = 0
    while refused < 3:  # a few may still fit into the WAL that is there
        done = small.run("add", "--json", "--", "true", code=None)
        refused += done.returncode == 3
        assert done.returncode in (0, 3)
        assert done.returncode == 0 or b'"NO_SPACE"' in done.stdout
    accepted = sum(small.json("status")["counts"].values())
    enlarge(small)
    assert small.add("true") == accepted + 1, "what was refused left nothing behind"
    soundness.check(small)


def test_a_worker_on_a_full_disk_says_so_once_waits_and_goes_on(small: Spool) -> None:
    """Protects run/trouble.py: a worker that left would leave its job running."""
    running = small.add("-c", "until [ -e go ]; do sleep 0.02; done")
    waiting = [small.add("true") for _ in range(40)]
    outside = small.folder.parent
    small.folder, folder = outside, small.folder  # its log goes where there is room
    small.env["SPOOLCTL_DB"] = str(folder / ".spoolctl" / "queue.db")
    worker = small.worker()
    small.folder = folder
    small.until_state(running, "running")
    fill(small)
    subprocess.run(["mount", "-o", "remount,size=1k", str(folder)], check=False)
    (outside / "go").touch()
    small.until(lambda: "is full; waiting" in (outside / "worker-0.log").read_text(), "the complaint")
    assert worker.poll() is None
    enlarge(small)
    small.until_state(waiting[-1], "done")
    assert [small.state(job) for job in (running, *waiting)] == ["done"] * 41
    assert all(len(small.attempts(job)) == 1 for job in (running, waiting[0], waiting[-1]))
    soundness.check(small)


def test_two_stop_signals_end_a_worker_whose_disk_stays_full(small: Spool) -> None:
    """It would else wait for ever with a result that nobody can record; the next worker runs that job again."""
    job = small.add("-c", "echo $SPOOLCTL_ATTEMPT >>../ran; until [ -e ../go ]; do sleep 0.02; done")
    outside, disk = small.folder.parent, small.folder
    small.env["SPOOLCTL_DB"] = str(disk / ".spoolctl" / "queue.db")
    small.command = [sys.executable, "-c", IMPATIENT]
    (outside / "run").mkdir()
    small.folder = outside / "run"
    worker = small.worker()
    small.until(lambda: (outside / "ran").exists(), "it runs")
    small.folder = disk
    reader = open_queue(small.place, read_only=True)
    with reader.read() as tx:
        tx.execute("SELECT 1 FROM jobs").fetchone()  # now the WAL can only grow
        fill(small)
        (outside / "go").touch()
        stop_twice(small, worker, outside / "run" / "worker-0.log")
    reader.close()
    said = outside / "run" / "worker-0.log"
    assert f"the ends of jobs {job} are not recorded" in said.read_text()
    enlarge(small)
    small.run("work", "--drain")
    assert (outside / "ran").read_text().split() == ["1", "2"]
    soundness.check(small)


def stop_twice(spool: Spool, worker: subprocess.Popen[bytes], said: Path) -> None:
    spool.until(lambda: "is full; waiting" in said.read_text(), "the complaint")
    worker.send_signal(signal.SIGTERM)
    spool.until(lambda: "stopping" in said.read_text(), "the first signal is noticed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 3


def test_a_command_that_fills_the_disk_fails_by_itself_and_takes_nobody_along(small: Spool) -> None:
    greedy = small.add("--max-retries", "0", "-c", "head -c 9000000 /dev/zero")
    small.run("work", "--drain", code=6)
    job = small.job(greedy)
    assert (job["state"], job["failure_reason"]) == ("dead", "process_exit")
    assert small.attempts(greedy)[0]["stdout"]["bytes"] > 0
    enlarge(small)
    soundness.check(small)
