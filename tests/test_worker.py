"""The worker as its owner sees it: when it leaves and how, what it serves, and what it survives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FAST, Spool

GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes through /proc")


def open_gate(spool: Spool) -> None:
    (spool.folder / "go").touch()


def log(spool: Spool, number: int = 0) -> str:
    """What the test's n-th worker has said."""
    return (spool.folder / f"worker-{number}.log").read_text()


def commands(spool: Spool) -> list[int]:
    """Every process that is neither this test's nor a worker."""
    workers = {process.pid for process in spool.processes}
    return [pid for pid in spool.left_running() if pid not in workers]


def drained(spool: Spool, *words: str, code: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = spool.json("work", "--drain", *words, code=code)
    return answer


# When it leaves, and with what


def test_once_runs_one_job_and_leaves(spool: Spool) -> None:
    first, second = spool.add("--", "true"), spool.add("--", "true")
    answer = spool.json("work", "--once")
    assert (answer["executed"], answer["settled"]) == (1, True)
    assert (spool.state(first), spool.state(second)) == ("done", "queued")


def test_once_leaves_at_once_where_nothing_is_due(spool: Spool) -> None:
    later = spool.add("--after", "1h", "--", "true")
    assert spool.json("work", "--once")["executed"] == 0
    assert spool.state(later) == "queued"


def test_once_tells_a_dead_job_by_exit_6(spool: Spool) -> None:
    spool.add("--max-retries", "0", "--", "false")
    assert spool.json("work", "--once", code=6)["ended"]["dead"] == 1


def test_drain_leaves_with_0_when_everything_succeeded(spool: Spool) -> None:
    jobs = [spool.add("--", "true") for _ in range(3)]
    answer = drained(spool)
    assert (answer["executed"], answer["ended"]["done"], answer["settled"]) == (3, 3, True)
    assert [spool.state(job) for job in jobs] == ["done"] * 3
    assert drained(spool)["executed"] == 0


def test_drain_leaves_with_6_when_a_job_that_it_ran_ended_dead(spool: Spool) -> None:
    spool.add("--max-retries", "0", "--", "false")
    good = spool.add("--", "true")
    answer = drained(spool, code=6)
    assert (answer["executed"], answer["ended"]["dead"], answer["settled"]) == (2, 1, True)
    assert spool.state(good) == "done"
    assert drained(spool)["executed"] == 0  # an old death is no failure of this drain


def test_drain_leaves_with_4_when_it_is_stopped_before_the_queue_has_settled(spool: Spool) -> None:
    running, waiting = spool.add("-c", GATE), spool.add("--", "true")
    worker = spool.worker("--drain")
    spool.until_state(running, "running")
    worker.send_signal(signal.SIGTERM)
    spool.until(lambda: "stopping" in log(spool), "the worker's word that it stops")
    open_gate(spool)
    assert worker.wait() == 4
    assert (spool.state(running), spool.state(waiting)) == ("done", "queued")


def test_delayed_jobs_do_not_hold_a_drain(spool: Spool) -> None:
    later, now = spool.add("--after", "1h", "--", "true"), spool.add("--", "true")
    assert drained(spool)["executed"] == 1
    assert (spool.state(later), spool.state(now)) == ("queued", "done")


def test_a_retry_that_waits_holds_a_drain(spool: Spool) -> None:
    job = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]")
    answer = drained(spool)
    assert (answer["executed"], answer["ended"]["failed"], answer["ended"]["done"]) == (2, 1, 1)
    assert spool.state(job) == "done"


def test_a_worker_serves_only_the_queues_that_it_is_given(spool: Spool) -> None:
    jobs = {queue: spool.add("--queue", queue, "--", "true") for queue in ("a", "b", "c")}
    assert drained(spool, "--queue", "a", "--queue", "c")["executed"] == 2
    assert {queue: spool.state(job) for queue, job in jobs.items()} == {"a": "done", "b": "queued", "c": "done"}


def test_a_worker_that_has_left_leaves_neither_a_row_nor_a_lock_file(spool: Spool) -> None:
    spool.add("--", "true")
    drained(spool)
    assert os.listdir(spool.place.workers) == []
    connection = sqlite3.connect(spool.place.path)
    assert connection.execute("SELECT count(*) FROM workers").fetchone() == (0,)
    connection.close()


# Its name


def test_a_live_workers_name_is_refused_to_a_twin_and_a_dead_ones_is_free(spool: Spool) -> None:
    job = spool.add("-c", GATE)
    worker = spool.worker("--worker-id", "twin")
    spool.until_state(job, "running")
    refused = spool.json("work", "--drain", "--worker-id", "twin", code=5)["error"]
    assert refused["code"] == "WORKER_EXISTS"
    assert "twin" in refused["message"]
    assert len(os.listdir(spool.place.workers)) == 1
    worker.kill()
    worker.wait()
    open_gate(spool)
    assert spool.json("work", "--drain", "--worker-id", "twin", **FAST)["worker"] == "twin"
    assert spool.state(job) == "done"


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_the_first_signal_lets_what_runs_finish_and_ends_the_worker_with_0(spool: Spool, number: int) -> None:
    running, waiting = spool.add("-c", GATE), spool.add("--", "true")
    worker = spool.worker()
    spool.until_state(running, "running")
    worker.send_signal(number)
    spool.until(lambda: "stopping" in log(spool), "the worker's word that it stops")
    open_gate(spool)
    assert worker.wait() == 0
    assert (spool.state(running), spool.state(waiting)) == ("done", "queued")
    assert len(spool.attempts(running)) == 1


@needs_proc
def test_the_second_signal_puts_back_what_runs_without_spending_a_budget(spool: Spool) -> None:
    job = spool.add("--max-retries", "0", "--max-crashes", "0", "-c", "[ $SPOOLCTL_ATTEMPT = 2 ] || sleep 100")
    worker = spool.worker()
    spool.until_state(job, "running")
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    assert worker.wait() == 0
    back, (attempt,) = spool.job(job), spool.attempts(job)
    assert spool.left_running() == []
    assert (back["state"], back["failures"], back["crashes"]) == ("queued", 0, 0)
    assert (attempt["state"], attempt["failure_reason"]) == ("abandoned", "worker_stopped")
    assert spool.events(job) == ["added", "claimed", "released"]
    assert drained(spool)["executed"] == 1
    assert spool.state(job) == "done"


# Its own descriptors


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_worker_without_some_of_its_descriptors_works_and_writes_its_log_into_no_file(
    spool: Spool, closed: str
) -> None:
    """Protects secure_descriptors: without it the log lands in the queue file or in an output."""
    job = spool.add("-c", "echo out; echo err >&2")
    subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *spool.command, "work", "--drain"],
        cwd=spool.folder,
        env=spool.env,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    replayed = spool.run("output", str(job))
    assert (replayed.stdout, replayed.stderr) == (b"out\n", b"err\n")
    assert_no_log_in_the_queue(spool)


def assert_no_log_in_the_queue(spool: Spool) -> None:
    """No word of a worker's log or answer is in any file of the queue, and the queue is sound."""
    for path in (path for path in Path(spool.place.path).parent.rglob("*") if path.is_file()):
        for said in (b"serves every queue", b"attempt 1 started", b"executed 1"):
            assert said not in path.read_bytes(), path
    connection = sqlite3.connect(spool.place.path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_reader_of_the_log_that_goes_away_ends_nothing(spool: Spool) -> None:
    worker = subprocess.Popen(
        [*spool.command, "work"], cwd=spool.folder, env=spool.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    spool.processes.append(worker)
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.stdout.close()
    jobs = [spool.add("-c", "echo out") for _ in range(2)]
    for job in jobs:
        spool.until_state(job, "done")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert [spool.run("output", str(job)).stdout for job in jobs] == [b"out\n"] * 2
    assert_no_log_in_the_queue(spool)


# Its queue


@needs_proc
@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_worker_whose_queue_is_gone_stops_its_command_and_leaves_what_took_its_place_alone(
    spool: Spool, what: str
) -> None:
    old = spool.add("-c", "sleep 100")
    worker = spool.worker("--json")
    spool.until_state(old, "running")
    spool.until(lambda: commands(spool), "the command")
    queue = Path(spool.place.path).parent
    if what == "removed":
        shutil.rmtree(queue)
    else:
        queue.rename(spool.folder / "aside")
        new = spool.add("--", "true")
        before = Path(spool.place.path).read_bytes()
    assert worker.wait() == 3
    assert json.loads(log(spool).splitlines()[-1])["error"]["code"] == "QUEUE_GONE"
    assert commands(spool) == []
    if what == "removed":
        assert not queue.exists()
    else:
        assert Path(spool.place.path).read_bytes() == before
        assert (spool.state(new), spool.attempts(new)) == ("queued", [])


@needs_proc
def test_a_write_lock_that_another_holds_is_told_once_waited_out_and_loses_nothing(spool: Spool) -> None:
    """Protects that no turn waits inside SQLite, and that a result is kept until it can be recorded."""
    gated = spool.add("-c", GATE)
    spool.worker("--jobs", "2")
    spool.until_state(gated, "running")
    holder = sqlite3.connect(spool.place.path, timeout=30, isolation_level=None)

    def locked_behind_a_running_job() -> int | None:
        job = spool.add("--max-retries", "0", "--timeout", "1", "--", "sleep", "100")
        spool.until_state(job, "running", "dead")
        holder.execute("BEGIN IMMEDIATE")
        if spool.state(job) == "running":
            return job
        holder.execute("ROLLBACK")  # on a busy machine its time was over first
        return None

    slow = spool.until(locked_behind_a_running_job, "a job that runs into its time-out behind the lock")
    before = len(log(spool))
    open_gate(spool)
    spool.until(lambda: commands(spool) == [], "the end of both commands, one by its timeout")
    spool.until(lambda: "locked" in log(spool)[before:], "the worker's word that the queue is locked")
    assert (spool.state(slow), spool.state(gated)) == ("running", "running")
    assert log(spool)[before:].count("locked") == 1
    holder.execute("ROLLBACK")
    holder.close()
    assert spool.until_state(gated, "done")["exit_code"] == 0
    assert spool.until_state(slow, "dead")["failure_reason"] == "timeout"
    spool.until(lambda: "can be written again" in log(spool)[before:], "the worker's word that it is over")
    assert (len(spool.attempts(slow)), len(spool.attempts(gated))) == (1, 1)
    spool.until_state(spool.add("--", "true"), "done")


# Makes a worker that would look at its queue by itself only hours later.
DEAF = """
import sys
from spoolctl import context
from spoolctl.run import loop
loop.TICK = 1e4
context.HEARTBEAT = (1e4, 0, 1e5)
from spoolctl.cli import main
sys.exit(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the bell is a poll")
def test_the_bell_alone_wakes_an_idle_worker_and_stops_a_running_job(spool: Spool) -> None:
    """Protects the doorbell: with nothing rung, or nothing heard, neither would happen."""
    spool.command = [sys.executable, "-c", DEAF]
    first = spool.add("--", "true")
    spool.worker()
    spool.until_state(first, "done")
    second = spool.add("--", "sleep", "100")
    spool.until_state(second, "running")
    spool.run("cancel", "--running", "--yes", str(second))
    assert spool.state(second) == "canceled"
