"""Each rule notices what breaks it: a sound queue is damaged by hand, in one place at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spoolctl.states import ATTEMPT_STATES, EVENTS, JOB_STATES
from spoolctl.store import claim, control, creation, invariants, workers
from spoolctl.store.database import Database
from spoolctl.store.place import Place
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Submission, submit
from spoolctl.store.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from sqlite3 import Connection

NOW = 1_800_000_000_000

ONE_RUNS = "at most one attempt of a job runs"
LAST_RUNS = "the running attempt is the last one of a running job"
OWNER = "a running job has an owner on the roll"
NUMBERS = "attempts are numbered without gaps"
HOMELESS = "attempts, events and tags are of jobs that are there"
COUNTS = "counts equal a recount"
WAITS = "a job waits in an index if and only if it waits"
EVENT = "each claim and each end has its event"
LAST_EVENT = "the last event agrees with the state"
BUDGETS = "no job has had more executions than its budgets allow"
ENDS = "an ended attempt has an end, and none before its beginning"

# rule: the ways to break it; each is one statement, and the other rules that it cannot but break.
# A name between braces is the number of that job.
CORRUPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    ONE_RUNS: {
        "UPDATE attempts SET state = 'running' WHERE job = {running} AND number = 1": (LAST_RUNS, EVENT, ENDS),
    },
    LAST_RUNS: {
        # what runs belongs to a job that does not
        "UPDATE attempts SET state = 'running', finished_at = NULL WHERE job = {done} AND number = 2": (EVENT,),
        # what runs is not the last
        "UPDATE jobs SET attempts = 1 WHERE id = {running}": (NUMBERS, EVENT),
        # nothing runs
        "UPDATE attempts SET state = 'failed', finished_at = started_at WHERE job = {running} AND number = 2": (EVENT,),
        "DELETE FROM attempts WHERE job = {running} AND number = 2": (NUMBERS,),
    },
    OWNER: {
        "DELETE FROM workers": (),
        "UPDATE jobs SET worker = worker + 1 WHERE id = {running}": (),
    },
    NUMBERS: {
        "UPDATE attempts SET number = 3 WHERE job = {done} AND number = 2": (),
        "DELETE FROM attempts WHERE job = {dead} AND number = 1": (EVENT,),
        "UPDATE jobs SET attempts = attempts - 1 WHERE id = {dead}": (EVENT,),
        "UPDATE jobs SET attempts = 1 WHERE id = {queued}": (EVENT,),
        "UPDATE attempts SET number = 0 WHERE job = {dead} AND number = 1": (),
    },
    HOMELESS: {
        "INSERT INTO tags VALUES ('a', 'b', 999)": (),
        "INSERT INTO events (at, job, event) VALUES (1, 999, 'added')": (),
    },
    COUNTS: {
        "UPDATE counts SET n = n + 1 WHERE state = 'done'": (),
        "UPDATE counts SET n = n - 1 WHERE state = 'queued'": (),
        "DELETE FROM counts WHERE state = 'dead'": (),
        "INSERT INTO counts VALUES ('nowhere', 'queued', 1)": (),
        "UPDATE counts SET queue = 'elsewhere' WHERE queue = 'default' AND state = 'done'": (),
    },
    WAITS: {
        "UPDATE jobs SET ready = NULL WHERE id = {queued}": (),
        "UPDATE jobs SET ready = NULL WHERE id = {failed}": (),
        "UPDATE jobs SET ready = 1 WHERE id = {done}": (),
        "UPDATE jobs SET ready = 0 WHERE id = {running}": (),
        "UPDATE jobs SET worker = (SELECT id FROM workers) WHERE id = {queued}": (),
        "UPDATE jobs SET worker = NULL WHERE id = {running}": (),
    },
    EVENT: {
        "DELETE FROM events WHERE job = {done} AND event = 'claimed' AND attempt = 1": (),
        "DELETE FROM events WHERE job = {done} AND event = 'failed'": (),
        "INSERT INTO events (at, job, attempt, event) SELECT at, job, attempt, event FROM events"
        " WHERE job = {done} AND event = 'succeeded'": (),
        "INSERT INTO events (at, job, attempt, event) SELECT at, job, attempt, event FROM events"
        " WHERE job = {running} AND event = 'claimed' AND attempt = 2": (),
    },
    LAST_EVENT: {
        **{
            f"UPDATE events SET event = '{event}', attempt = NULL"
            f" WHERE seq = (SELECT MAX(seq) FROM events WHERE job = {{{name}}})": ()
            for name, event in (
                ("queued", "canceled"),
                ("retried", "canceled"),
                ("canceled", "added"),
                ("dead", "failed"),
            )
        },
        "UPDATE events SET event = 'failed' WHERE job = {done} AND event = 'succeeded'": (),
        "UPDATE events SET event = 'succeeded' WHERE job = {failed} AND event = 'failed'": (),
        "INSERT INTO events (at, job, event) VALUES (0, {running}, 'retried')": (),
        # the trigger keeps the counts right, and the state is wrong all the same
        "UPDATE jobs SET state = 'dead' WHERE id = {done}": (),
        "UPDATE jobs SET state = 'done' WHERE id = {canceled}": (),
    },
    BUDGETS: {
        "UPDATE jobs SET failures = max_retries + 2 WHERE id = {dead}": (),
        "UPDATE jobs SET max_crashes = 0, crashes = 2 WHERE id = {failed}": (),
    },
    ENDS: {
        "UPDATE attempts SET finished_at = NULL WHERE job = {done} AND number = 2": (),
        "UPDATE attempts SET finished_at = started_at WHERE job = {running} AND number = 2": (),
        "UPDATE attempts SET seconds = -0.001 WHERE job = {done} AND number = 2": (),
    },
}
CASES = [(rule, statement) for rule, ways in CORRUPTIONS.items() for statement in ways]


class Sound:
    """A sound queue with a job in every state. jobs: their numbers by name."""

    def __init__(self, tx: Connection) -> None:
        self.tx, self.now = tx, NOW
        self.me = Worker()
        self.me.name = "me"
        workers.enter(tx, self.me)
        self.jobs = {
            "running": self.add(2),
            "done": self.add(2),
            "dead": self.add(1),
            "failed": self.add(3),
            "canceled": self.add(0),
            "retried": self.add(0),
            "stopped": self.add(0),
            "released": self.add(0),
            "queued": self.add(0),
            "later": self.add(0, delay=1000),
        }
        for job in ("running", "done", "dead"):
            self.end(job, "failed")
        self.end("done", "succeeded")
        self.end("dead", "timed_out")
        self.end("failed", "abandoned")
        self.end("failed", "failed")
        self.end("released", "released")
        self.claim("stopped")
        control.cancel(tx, NOW, self.jobs["stopped"], True)
        self.end("stopped", "failed")
        for job in ("canceled", "retried"):
            control.cancel(tx, NOW, self.jobs[job], False)
        control.retry(tx, NOW, self.jobs["retried"], False)
        self.claim("running")

    def add(self, retries: int, **fields: int) -> int:
        wanted = Submission([b"true"])
        wanted.max_retries = retries
        wanted.__dict__.update(fields)
        return submit(self.tx, NOW, wanted).job

    def claim(self, name: str) -> None:
        """Claim that job, whatever else waits: for this moment it has a queue of its own."""
        job = self.jobs[name]
        self.now += 100_000  # every backoff is over
        self.tx.execute("UPDATE jobs SET queue = 'its own' WHERE id = ?", (job,))
        (claimed,) = claim.claim(self.tx, self.now, (self.me.id, "me"), ("its own",), 1)
        assert claimed.job == job
        self.tx.execute("UPDATE jobs SET queue = 'default' WHERE id = ?", (job,))

    def end(self, name: str, kind: str) -> None:
        """End the attempt of that job that runs, or one that is begun for it."""
        job = self.jobs[name]
        state, number = self.tx.execute("SELECT state, attempts FROM jobs WHERE id = ?", (job,)).fetchone()
        if state != "running":
            self.claim(name)
            number += 1
        assert settle(self.tx, self.now, job, number, self.me.id, Outcome(kind, "process_exit"))


@pytest.fixture
def sound() -> Iterator[Sound]:
    """A sound queue in memory, inside one transaction. CHECKs are off, which would refuse some of the damage."""
    database = Database(Place("/nowhere/queue.db"), creation.fresh(":memory:"))
    database.connection.execute("PRAGMA ignore_check_constraints = ON")
    with database.write() as tx:
        yield Sound(tx)
    database.close()


def broken(tx: Connection) -> set[str]:
    """The rules that do not hold."""
    found = set()
    for line in invariants.violations(tx):
        begin, _, end = line.rpartition(" (")
        assert begin.startswith("not true: ")
        assert end.endswith(")")
        found.add(begin[len("not true: ") :])
    return found


def test_every_rule_has_a_corruption_and_every_corruption_a_rule() -> None:
    assert set(CORRUPTIONS) == set(invariants.RULES)
    assert all(CORRUPTIONS.values())
    assert {rule for ways in CORRUPTIONS.values() for also in ways.values() for rule in also} <= set(invariants.RULES)


def test_a_sound_queue_breaks_no_rule_though_it_has_jobs_attempts_and_events_of_every_kind(sound: Sound) -> None:
    """Without jobs of every kind in it, silence would mean little."""
    assert invariants.violations(sound.tx) == []
    kinds = [
        {kind for (kind,) in sound.tx.execute(f"SELECT {column} FROM {table}")}
        for column, table in (("state", "jobs"), ("state", "attempts"), ("event", "events"))
    ]
    assert kinds == [set(JOB_STATES), set(ATTEMPT_STATES), set(EVENTS)]


def test_an_empty_queue_breaks_no_rule() -> None:
    connection = creation.fresh(":memory:")
    assert invariants.violations(connection) == []
    assert invariants.settled_markers(connection) == {}
    connection.close()


@pytest.mark.parametrize(("rule", "statement"), CASES, ids=str)
def test_a_corruption_is_noticed_by_its_rule_and_by_no_other_that_still_holds(
    sound: Sound, rule: str, statement: str
) -> None:
    changed = sound.tx.execute(statement.format(**sound.jobs)).rowcount
    assert changed > 0
    assert broken(sound.tx) == {rule, *CORRUPTIONS[rule][statement]}


def test_a_finding_names_the_jobs_that_break_the_rule_and_no_more_than_five(sound: Sound) -> None:
    sound.tx.execute("UPDATE jobs SET failures = 99 WHERE id = ?", (sound.jobs["dead"],))
    assert invariants.violations(sound.tx) == [f"not true: {BUDGETS} ({sound.jobs['dead']})"]
    sound.tx.execute("UPDATE jobs SET failures = 99")
    assert invariants.violations(sound.tx) == [f"not true: {BUDGETS} (1, 2, 3, 4, 5)"]


def test_wrong_counts_are_named_by_queue_and_state(sound: Sound) -> None:
    sound.tx.execute("UPDATE counts SET n = n + 1 WHERE queue = 'default' AND state = 'dead'")
    assert invariants.violations(sound.tx) == [f"not true: {COUNTS} (default/dead)"]


def test_nothing_may_be_alive_of_an_attempt_that_has_ended_without_success(sound: Sound) -> None:
    markers = invariants.settled_markers(sound.tx)
    assert set(markers.values()) == {
        (sound.jobs[name], number)
        for name, number in (
            ("running", 1),
            ("done", 1),
            ("dead", 1),
            ("dead", 2),
            ("failed", 1),
            ("failed", 2),
            ("stopped", 1),
            ("released", 1),
        )
    }
    for marker, (job, number) in markers.items():
        row = sound.tx.execute("SELECT marker FROM attempts WHERE job = ? AND number = ?", (job, number)).fetchone()
        assert row == (marker,)
