"""The bell: heard by whoever waits, rung no more often than is of use, never trusted."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl.context import Clock
from spoolctl.run.bell import FILE, last_rung, ring
from spoolctl.run.doorbell import PAUSE, Ringer
from tests.conftest import DEADLINE, FORMS, ROOT

if TYPE_CHECKING:
    from spoolctl.store.database import Database
    from tests.conftest import Spool

GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate
needs_notify = pytest.mark.skipif(not hasattr(fcntl, "F_NOTIFY"), reason="the kernel does not tell here")


class Hand(Clock):
    """A clock that is moved by hand; wall and monotonic together."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def wall(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


def rung(database: Database) -> bool:
    """Whether it was rung since this was asked last; its file's time tells."""
    path = os.path.join(database.place.bell, FILE)
    before = last_rung(database.place)
    if before != 1.0 and os.path.exists(path):
        os.utime(path, (1, 1))
    return before not in (0.0, 1.0)


# In a process of its own: a signal that is blocked here would go to another thread of the test runner.
RING_FIRST = """
import sys, time
from spoolctl.run.bell import ring
from spoolctl.run.doorbell import Ear
from spoolctl.store.place import Place
with Ear(Place(sys.argv[1])) as ear:
    ring(Place(sys.argv[1]))
    began = time.monotonic()
    ear.listen(600)
"""


@needs_notify
def test_a_ring_before_listening_is_not_lost(database: Database) -> None:
    subprocess.run([sys.executable, "-c", RING_FIRST, database.place.path], cwd=ROOT, timeout=DEADLINE, check=True)


def test_ringing_never_fails(database: Database) -> None:
    os.rmdir(database.place.stop_bell)
    os.rmdir(database.place.bell)
    ring(database.place, stop=True)
    assert last_rung(database.place) == 0.0


def test_news_after_a_silence_is_told_at_once_and_the_next_after_a_pause(database: Database) -> None:
    clock = Hand()
    ringer = Ringer(database.place, clock)
    ringer.changed()
    ringer.ring()
    assert rung(database)
    ringer.changed()
    ringer.ring()
    assert not rung(database)
    assert ringer.next == pytest.approx(clock.now + PAUSE)
    clock.now += PAUSE
    ringer.ring()
    assert rung(database)
    assert ringer.next == float("inf")


def test_what_somebody_elses_ring_has_told_is_not_rung_again(database: Database) -> None:
    clock = Hand()
    ring(database.place)
    ringer = Ringer(database.place, clock)
    ringer.changed()
    clock.now += 0.01
    os.utime(os.path.join(database.place.bell, FILE), (clock.now, clock.now))
    ringer.ring()
    assert last_rung(database.place) == pytest.approx(clock.now), "it was left as it was"
    assert ringer.next == float("inf")


def test_a_bell_from_the_future_silences_nobody(database: Database) -> None:
    """After the clock was set back the file's time lies ahead; without the check no ring would come."""
    clock = Hand()
    ring(database.place)
    ahead = clock.now + 3600
    os.utime(os.path.join(database.place.bell, FILE), (ahead, ahead))
    ringer = Ringer(database.place, clock)
    ringer.changed()
    ringer.ring()
    assert last_rung(database.place) != pytest.approx(ahead)


# A worker that is busy

# Nothing wakes it but children, bells and signals: what it hears late, it does not hear in the test's time.
NEVER_LOOKS = """
import sys
from spoolctl.run import loop
loop.TICK = 1e4
from spoolctl.cli import main
sys.exit(main())
"""
CALM = {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "60"}


def never_looks(spool: Spool, *words: str) -> subprocess.Popen[bytes]:
    spool.command = [sys.executable, "-c", NEVER_LOOKS]
    worker = spool.worker(*words, **CALM)
    spool.command = FORMS["source"]
    return worker


def woken(worker: subprocess.Popen[bytes]) -> int:
    """How often it has been put to sleep, and so been woken."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@needs_notify
def test_a_busy_worker_is_not_woken_by_what_others_do(spool: Spool) -> None:
    """Protects the blocked signal: sixteen workers would else wake each other with every result."""
    job = spool.add("-c", GATE)
    worker = never_looks(spool)
    spool.until_state(job, "running")
    spool.until(lambda: asleep(worker), "it sleeps")
    before = woken(worker)
    for _ in range(100):
        ring(spool.place)
        spool.until(lambda: asleep(worker), "it sleeps again")
    assert woken(worker) - before < 20
    later = spool.add("true")
    (spool.folder / "go").touch()
    spool.until_state(later, "done")


@needs_notify
def test_an_idle_worker_is_woken_by_what_others_do(spool: Spool) -> None:
    """The counterpart: the count above would else prove nothing."""
    spool.add("true")
    worker = never_looks(spool)
    spool.until_state(1, "done")
    before = woken(worker)
    for _ in range(100):
        spool.until(lambda: asleep(worker), "it sleeps")
        ring(spool.place)
    spool.until(lambda: woken(worker) - before >= 50, "it was woken")
    later = spool.add("true")
    spool.until_state(later, "done")


@needs_notify
def test_a_busy_worker_hears_at_once_that_its_job_is_to_be_stopped(spool: Spool) -> None:
    """Protects the bell of the stops: this worker would else look once in hours."""
    job = spool.add("-c", GATE)
    never_looks(spool)
    spool.until_state(job, "running")
    assert spool.json("cancel", "--running", "--yes", str(job))["was_running"] == [job]
    assert spool.state(job) == "canceled"


@needs_notify
def test_a_queue_without_the_bell_of_the_stops_is_heard_through_the_other(spool: Spool) -> None:
    job = spool.add("-c", GATE)
    os.rmdir(spool.place.stop_bell)
    Path(spool.place.stop_bell).touch()  # so that nobody makes the folder again
    never_looks(spool)
    spool.until_state(job, "running")
    assert spool.json("cancel", "--running", "--yes", str(job))["was_running"] == [job]


def asleep(worker: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(") ")[2][0] == "S"
