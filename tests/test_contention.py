"""Many at one queue, and a write lock that somebody holds for long: everybody waits, nobody leaves, nothing is lost."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from spoolctl.limits import BUSY_TIMEOUT
from spoolctl.store.database import open_queue
from spoolctl.store.submit import Submission, submit
from tests.conftest import FAST, Spool
from tests.crash import soundness

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes through /proc")
GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate


def log(spool: Spool, number: int) -> str:
    """What the test's n-th worker has said."""
    return (spool.folder / f"worker-{number}.log").read_text()


def commands(spool: Spool) -> list[int]:
    """Every process that is neither a worker nor another one of the test's own."""
    started = {process.pid for process in spool.processes}
    return [pid for pid in spool.left_running() if pid not in started]


# Many


def test_sixteen_workers_drain_three_hundred_jobs_with_one_attempt_each(spool: Spool) -> None:
    """Protects that whoever finds the queue locked waits and comes again, at each of its steps: on
    entering, in a turn, on leaving."""
    count, crowd = 300, 16
    spool.add("--", "true")
    database = open_queue(spool.place)
    with database.write() as tx:
        for _ in range(count - 1):
            submit(tx, 0, Submission([b"true"]))
    database.close()
    workers = [spool.worker("--drain", "--jobs", "1", "--json") for _ in range(crowd)]
    assert [worker.wait() for worker in workers] == [0] * crowd
    answers = [json.loads(log(spool, number).splitlines()[-1]) for number in range(crowd)]
    assert all(answer["settled"] for answer in answers)
    assert sum(answer["executed"] for answer in answers) == count
    connection = sqlite3.connect(spool.place.path)
    attempts = connection.execute(
        "SELECT COUNT(*), COUNT(DISTINCT job), MAX(number), MIN(state), MAX(state) FROM attempts"
    ).fetchone()
    assert attempts == (count, count, 1, "succeeded", "succeeded")
    assert connection.execute("SELECT COUNT(*) FROM workers").fetchone() == (0,)
    connection.close()
    assert os.listdir(spool.place.workers) == []
    soundness.check(spool)


# A lock that is held for long

HOLD = """
import os, sqlite3, sys, time
file, held, let_go = sys.argv[1:]
connection = sqlite3.connect(file, timeout=60, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
open(held, "w").close()
while not os.path.exists(let_go):
    time.sleep(0.01)
connection.execute("ROLLBACK")
"""


class Holder:
    """Another process that holds the write lock from its making until `let_go`."""

    def __init__(self, spool: Spool) -> None:
        number = len(spool.processes)
        held, self.signal = spool.folder / f"held.{number}", spool.folder / f"let-go.{number}"
        words = [sys.executable, "-I", "-S", "-c", HOLD, spool.place.path, str(held), str(self.signal)]
        self.process = subprocess.Popen(words, env=spool.env)
        spool.processes.append(self.process)
        spool.until(held.exists, "the lock")

    def let_go(self) -> None:
        self.signal.touch()
        assert self.process.wait() == 0


@needs_proc
def test_a_lock_that_outlasts_the_patience_of_every_verb_ends_no_worker_and_loses_no_result(spool: Spool) -> None:
    """Protects that a worker keeps what it cannot record, and goes on ending what must end. One has
    a job that runs into its timeout behind the lock, two have one that succeeds, the third has none."""
    gated = [spool.add("--queue", f"q{number}", "-c", GATE) for number in range(2)]
    workers = [spool.worker("--jobs", "2", "--queue", f"q{number}", **FAST) for number in range(3)]
    for job in gated:
        spool.until_state(job, "running")

    def said(number: int, word: str) -> int:
        """How often the n-th worker has said so."""
        return log(spool, number).count(word)

    def calm() -> bool:
        """Nobody waits, and all are there."""
        return all(said(n, " serves q") and said(n, "waiting") == said(n, "can be written again") for n in range(3))

    def locked_behind_a_running_job() -> tuple[int, list[int], Holder] | None:
        job = spool.add("--queue", "q0", "--max-retries", "0", "--timeout", "1", "--", "sleep", "100")
        spool.until_state(job, "running", "dead")
        spool.until(calm, "workers that can write")
        before = [said(number, "waiting") for number in range(3)]
        holder = Holder(spool)
        if spool.state(job) == "running":
            return job, before, holder
        holder.let_go()  # on a busy machine its time was over first
        return None

    slow, before, holder = spool.until(locked_behind_a_running_job, "a job with a timeout behind the lock")
    adding = subprocess.Popen(
        [*spool.command, "add", "--json", "--", "true"], cwd=spool.folder, env=spool.env, stdout=subprocess.PIPE
    )
    spool.processes.append(adding)
    (spool.folder / "go").touch()
    spool.until(lambda: commands(spool) == [], "the end of all commands, one by its timeout")
    for number in range(3):
        spool.until(lambda n=number: said(n, "waiting") > before[n], f"the word of worker {number} that it waits")

    # It has waited as long as any verb does: so long was the lock held at least.
    error = json.loads(adding.communicate()[0])["error"]
    assert (adding.returncode, error["code"]) == (4, "LOCKED")
    assert spool.place.path in error["message"]
    if os.path.exists("/proc/locks"):
        assert f"by process {holder.process.pid}" in error["message"]
    assert spool.json("status")["counts"]["running"] == 3  # to look, nobody needs the lock
    assert [worker.poll() for worker in workers] == [None] * 3
    assert [said(number, "waiting") - before[number] for number in range(3)] == [1, 1, 1]

    holder.let_go()
    for job in gated:
        assert spool.until_state(job, "done")["exit_code"] == 0
        assert len(spool.attempts(job)) == 1
    dead = spool.until_state(slow, "dead")
    assert (dead["failure_reason"], dead["failures"], dead["crashes"]) == ("timeout", 1, 0)
    (attempt,) = spool.attempts(slow)
    assert attempt["state"] == "timed_out"
    assert 1 <= attempt["seconds"] < BUSY_TIMEOUT  # ended when it was due: no turn waits for the lock inside SQLite
    spool.until(calm, "the word of all workers that they can write again")
    for number in range(3):
        spool.until_state(spool.add("--queue", f"q{number}", "--", "true"), "done")
    assert [worker.poll() for worker in workers] == [None] * 3
    soundness.check(spool)
