"""Whoever stops in the middle: a reader holds back the WAL and nothing else, a writer holds back the
writers, who say so and wait. Once it goes on, or is dead, all is as before.

A reader that stops inside its transaction keeps the moment that it sees: the WAL cannot start anew
and grows with every commit (https://www.sqlite.org/wal.html#avoiding_excessively_large_wal_files).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl.limits import BUSY_TIMEOUT
from spoolctl.run.checkup import WAL_LARGE
from spoolctl.store.database import Database, open_queue
from spoolctl.store.submit import Submission, submit
from tests.conftest import FAST, Spool
from tests.crash import soundness

if TYPE_CHECKING:
    Process = subprocess.Popen[bytes]

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")

GATE = "until [ -e go ]; do sleep 0.02; done"
PROCESSES = 2
MANY = 100_000
SLACK = 4 << 20  # bytes; some commits go by until the automatic checkpoint is through
ROOM = 16 << 30  # bytes; past a stopped reader one short job, in three transactions, is some 95 KB of WAL

# Holds a transaction and stops in it; goes on, and ends, at SIGCONT. Arguments: the file, "read" or "write".
STOPS = """
import os, signal, sys
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit
reads = sys.argv[2] == "read"
database = open_queue(Place(sys.argv[1]), read_only=reads)
with database.read() if reads else database.write() as tx:
    if reads:
        before = tx.execute("SELECT COUNT(*) FROM jobs").fetchone()
    else:
        submit(tx, 1, Submission([b"echo", b"from the stopped writer"]))
    os.kill(os.getpid(), signal.SIGSTOP)
    if reads:
        assert tx.execute("SELECT COUNT(*) FROM jobs").fetchone() == before
database.close()
"""

# A life of many short jobs in the store alone: submitted, claimed and settled, `turn` of them in each
# of the three transactions. Arguments: the file, a queue of its own, how many jobs, how many a turn.
LIVES = """
import sys
from spoolctl.store import claim, workers
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Submission, submit
path, queue, jobs, turn = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
database = open_queue(Place(path))
database.wait_for_lock(600)  # SQLite gives the lock to whoever asks at the right moment: one of two may starve
me = workers.Worker()
me.name, me.queues = queue, (queue,)
with database.write() as tx:
    workers.enter(tx, me)
wanted = Submission([b"true"])
wanted.queue = queue
for _ in range(jobs // turn):
    with database.write() as tx:
        for _ in range(turn):
            submit(tx, 1, wanted)
    with database.write() as tx:
        held = claim.claim(tx, 1, (me.id, me.name), me.queues, turn)
    assert len(held) == turn
    with database.write() as tx:
        for job in held:
            assert settle(tx, 1, job.job, job.attempt, me.id, Outcome("succeeded")) == "done"
with database.write() as tx:
    assert workers.leave(tx, me.id)
database.close()
"""


class Stopped:
    """A process that has stopped itself inside a transaction."""

    def __init__(self, spool: Spool, how: str) -> None:
        self.spool = spool
        words = [sys.executable, "-c", STOPS, spool.place.path, how]
        self.process = subprocess.Popen(words, env=spool.env)
        spool.processes.append(self.process)
        spool.until(lambda: state_letter(self.process.pid) == "T", "its stop")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.wait() == 0


def state_letter(pid: int) -> str:
    """R, S, T, Z … as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def wal(spool: Spool) -> int:
    """Bytes of the -wal file."""
    return os.path.getsize(spool.place.path + "-wal")


def doctor(spool: Spool) -> str:
    """The result of doctor's check of the WAL."""
    checks = spool.json("doctor", code=None)["checks"]
    (result,) = [check["result"] for check in checks if check["check"] == "wal"]
    return str(result)


def live(spool: Spool, jobs: int, turn: int, name: str) -> None:
    """Let so many short jobs pass through the store, in several processes."""
    lives = []
    for number in range(PROCESSES):
        words = [spool.place.path, f"{name}{number}", str(jobs // PROCESSES), str(turn)]
        lives.append(subprocess.Popen([sys.executable, "-c", LIVES, *words], env=spool.env))
    spool.processes += lives
    assert [process.wait() for process in lives] == [0] * PROCESSES


def pass_a_stopped_reader(spool: Spool, jobs: int, turn: int) -> None:
    """While the reader is stopped, nobody waits; once it has ended, the WAL starts anew and is small again."""
    first = spool.add("--", "true")
    with contextlib.closing(open_queue(spool.place)) as database:  # the last to close would remove the WAL
        live(spool, 1000, 10, "before")
        assert wal(spool) < WAL_LARGE, "without a reader it stays small"
        stand_on_frames(database)
        reader = Stopped(spool, "read")
        live(spool, jobs, turn, "beside")
        grown = wal(spool)
        assert grown > WAL_LARGE, "the rig: the reader holds it back"
        assert doctor(spool) == "look"
        assert done(spool) == 1000 + jobs
        reader.go_on()
        live(spool, 2000, 10, "after")
        assert wal(spool) <= grown + SLACK, "it is used from its beginning again"
        assert wal(spool) < WAL_LARGE, f"{grown} bytes were taken, and must be given back"
        assert doctor(spool) == "ok"
        assert spool.state(first) == "queued"
        assert done(spool) == 3000 + jobs
    assert not os.path.exists(spool.place.path + "-wal")
    soundness.check(spool)


def stand_on_frames(database: Database) -> None:
    """Leave something in the WAL for the next reader to read. To one that begins behind a finished
    checkpoint, and so needs nothing of the WAL, each later commit sorts the whole of it in vain."""
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with database.write() as tx:
        submit(tx, 1, Submission([b"true"]))


def done(spool: Spool) -> int:
    count: int = spool.json("status")["counts"]["done"]
    return count


# A reader


@pytest.mark.timeout(600)
def test_many_jobs_pass_a_stopped_reader_and_the_wal_is_small_again_once_it_ends(spool: Spool) -> None:
    """Protects the limit on what a WAL keeps, set on opening (PRAGMA journal_size_limit): else the file
    keeps its largest size for as long as anybody has the queue open, and `doctor` blames a reader that
    is long gone. 50 jobs a transaction, as a worker with that many slots writes them."""
    pass_a_stopped_reader(spool, MANY // 5, 50)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_jobs_pass_a_stopped_reader(spool: Spool) -> None:
    pass_a_stopped_reader(spool, MANY, 50)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_jobs_one_a_transaction_pass_a_stopped_reader(spool: Spool) -> None:
    """As a worker with one slot writes them: the WAL grows to more than nine gigabytes."""
    if shutil.disk_usage(spool.folder).free < ROOM:
        pytest.skip(f"needs {ROOM >> 30} GiB of free disk")
    pass_a_stopped_reader(spool, MANY, 1)


def test_a_reader_that_is_killed_while_stopped_holds_nothing_back(spool: Spool) -> None:
    """Its mark in the -shm file outlives it, its lock on that mark does not."""
    spool.add("--", "true")
    with contextlib.closing(open_queue(spool.place)):
        reader = Stopped(spool, "read")
        live(spool, 400, 1, "beside")
        reader.process.kill()
        reader.process.wait()
        grown = wal(spool)
        live(spool, 400, 1, "after")
        assert wal(spool) <= grown + SLACK
    soundness.check(spool)


def test_a_worker_goes_on_beside_a_stopped_reader_and_the_wal_is_used_anew_after_it(spool: Spool) -> None:
    """The same with real commands: no turn of a worker waits for a reader, and it sees what is new."""
    spool.add("--", "true")
    worker = spool.worker("--jobs", "2", **FAST)
    reader = Stopped(spool, "read")

    def short_jobs(count: int) -> int:
        """So many run through the worker; how far the WAL has got after them."""
        with contextlib.closing(open_queue(spool.place)) as database:
            for _ in range(count):
                with database.write() as tx:
                    last = submit(tx, 1, Submission([b"true"])).job
        spool.until(lambda: settled(spool), "every job done")
        assert spool.state(last) == "done"
        return wal(spool)

    grown = short_jobs(300)
    assert grown > 2 * 1000 * 4096, "the rig: beyond an automatic checkpoint the reader holds it back"
    reader.go_on()
    short_jobs(50)
    assert short_jobs(300) <= grown + SLACK, "what came after the reader was written over what came before"
    assert worker.poll() is None
    soundness.check(spool)


def settled(spool: Spool) -> bool:
    """Every job is done; read straight from the file."""
    with contextlib.closing(sqlite3.connect(spool.place.path)) as connection:
        return connection.execute("SELECT 1 FROM counts WHERE state <> 'done' AND n > 0").fetchone() is None


# A reader of what a reader prints

WORDY = "x" * 4000
PRINTING = {
    "output": ["output", "1"],
    "list": ["list", "--limit", "5000"],
    "list --json": ["list", "--json", "--limit", "5000"],
    "show --json": ["show", "--json", "1"],
    "status --json": ["status", "--json"],
}


@pytest.mark.parametrize("verb", list(PRINTING))
def test_a_verb_whose_answer_nobody_reads_holds_no_transaction(spool: Spool, verb: str) -> None:
    """Protects that a verb ends its reading before it prints: `list | less` may stay open for days. Any
    reader, at whatever moment, would make a checkpoint that is to empty the WAL say "busy"."""
    said = "head -c 300000 /dev/zero; exit 1"
    spool.add("--max-retries", "0", "-c", said, "--env", f"A={WORDY}")
    spool.run("work", "--drain", code=6)
    fill(spool)
    reading, writing = os.pipe()
    capacity = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096) if hasattr(fcntl, "F_SETPIPE_SZ") else 65536
    command = [*spool.command, *PRINTING[verb]]
    process = subprocess.Popen(command, cwd=spool.folder, env=spool.env, stdout=writing)
    spool.processes.append(process)
    os.close(writing)
    spool.until(lambda: unread(reading) == capacity, "a full pipe")
    assert process.poll() is None
    with contextlib.closing(open_queue(spool.place)) as database:
        with database.write() as tx:
            submit(tx, 1, Submission([b"true"]))
        assert database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        assert process.poll() is None
        with os.fdopen(reading, "rb") as pipe:
            assert len(pipe.read()) > capacity
    assert process.wait() == 0


def fill(spool: Spool) -> None:
    """Enough that every answer is longer than a pipe; the jobs that died last have long commands."""
    long = Submission([b"echo", WORDY.encode() * 20])
    with contextlib.closing(open_queue(spool.place)) as database, database.write() as tx:
        tx.execute("UPDATE jobs SET argv = ? WHERE id = 1", (b"\0".join([*long.argv, b""]),))
        for _ in range(2000):
            submit(tx, 1, Submission([b"true"]))


def unread(descriptor: int) -> int:
    """Bytes in a pipe that nobody has read."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])


# A writer


def test_while_a_writer_is_stopped_every_verb_says_who_it_is_and_nobody_waits_for_ever(spool: Spool) -> None:
    """Protects the words of store/explain.py and the patience of each verb. To look, nobody needs the
    lock. Workers wait: one that runs a job, one with nothing to do, and one that has just come."""
    gated, waiting = spool.add("--queue", "q", "-c", GATE), spool.add("--queue", "none", "--", "true")
    batch = spool.folder / "batch"
    batch.write_text('{"c": "true"}\n')
    canceled = spool.add("--queue", "none", "--", "true")
    spool.run("cancel", str(canceled))
    workers = [spool.worker("--queue", queue, **FAST) for queue in ("q", "idle")]
    spool.until_state(gated, "running")
    spool.until(lambda: len(spool.json("workers")["workers"]) == 2, "two workers on the roll")
    writer = Stopped(spool, "write")
    wanting = [
        *(["add", "--", "true"], ["add", "--batch", "batch"]),
        *(["cancel", str(waiting)], ["cancel", "--running", "--yes", str(gated)]),
        *(["retry", str(canceled)], ["retry", "--force", str(gated)]),
    ]
    begun = time.monotonic()
    refused = [start(spool, *words) for words in wanting]
    workers.append(spool.worker("--queue", "idle", "--drain", **FAST))
    for verb in (["status"], ["list"], ["show", "1"], ["output", "1"], ["workers"]):
        spool.json(*verb)
    for process in refused:
        error = json.loads(process.communicate()[0])["error"]
        assert (process.returncode, error["code"]) == (4, "LOCKED")
        assert f"by process {writer.process.pid}" in error["message"]
    assert time.monotonic() - begun >= BUSY_TIMEOUT
    (spool.folder / "go").touch()
    waits = f"is locked by process {writer.process.pid}; waiting"
    spool.until(lambda: all(waits in log(spool, number) for number in range(3)), "the word of each worker")
    assert [worker.poll() for worker in workers] == [None] * 3
    assert spool.state(gated) == "running"
    writer.go_on()
    assert spool.until_state(gated, "done")["exit_code"] == 0
    assert workers[2].wait() == 0
    (left,) = (job for job in spool.json("list")["jobs"] if job["argv"][0] == "echo")
    assert left["state"] == "queued", "what the writer was about to add is there"
    for queue in ("q", "idle"):
        spool.until_state(spool.add("--queue", queue, "--", "true"), "done")
    assert (spool.state(waiting), spool.state(canceled)) == ("queued", "canceled")
    soundness.check(spool)


def start(spool: Spool, *words: str) -> Process:
    process = subprocess.Popen(
        [*spool.command, words[0], "--json", *words[1:]], cwd=spool.folder, env=spool.env, stdout=subprocess.PIPE
    )
    spool.processes.append(process)
    return process


def log(spool: Spool, number: int) -> str:
    """What the test's n-th worker has said; the n-th by the order of the log files."""
    return sorted(spool.folder.glob("worker-*.log"), key=lambda path: int(path.stem[7:]))[number].read_text()


def test_a_stopped_writer_that_is_killed_leaves_nothing_behind(spool: Spool) -> None:
    """Its lock goes with it, and with the lock what it had not committed."""
    job = spool.add("--", "true")
    worker = spool.worker(**FAST)
    spool.until_state(job, "done")
    writer = Stopped(spool, "write")
    spool.until(lambda: "; waiting" in log(spool, 0), "the word of the worker that it waits")
    writer.process.kill()
    writer.process.wait()
    spool.until_state(spool.add("--", "true"), "done")
    spool.until(lambda: "can be written again" in log(spool, 0), "the word of the worker that it is over")
    assert worker.poll() is None
    assert len(spool.json("list")["jobs"]) == 2
    soundness.check(spool)
