"""Every (state, action) pair of the one table, tried against the real SQL; and a long random life of many jobs."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spoolctl.errors import Fail
from spoolctl.states import ATTEMPT_STATES, EVENTS, JOB_STATES, MOVES, OUTCOMES, REASONS, TERMINAL
from spoolctl.store import claim, control, creation, drain, invariants, read, workers
from spoolctl.store.database import Database
from spoolctl.store.place import Place
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Submission, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from sqlite3 import Connection

NOW = 1_800_000_000_000
WORKER = (1, "w")
TABLES = ("jobs", "attempts", "counts", "events", "tags", "queues", "workers", "meta")
OUTCOME = {
    "succeed": ("succeeded", None),
    "fail": ("failed", "process_exit"),
    "bury": ("failed", "process_exit"),
    "release": ("released", "worker_stopped"),
    "withdraw": ("canceled", "canceled"),
}


@pytest.fixture
def database() -> Iterator[Database]:
    """In memory: hundreds of tests use it, and none of them needs the file."""
    database = Database(Place("/nowhere/queue.db"), creation.fresh(":memory:"))
    yield database
    database.close()


def rows(tx: Connection) -> dict[str, list[Any]]:
    """Everything that is in the queue."""
    return {table: tx.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}


def tried(action: Any, *args: Any) -> tuple[bool, str]:
    """What a function of `control` answers, and the code with which it refuses, "" where it does not."""
    try:
        return action(*args), ""
    except Fail as fail:
        return False, fail.code


def state_of(tx: Connection, job: int) -> str:
    return str(tx.execute("SELECT state FROM jobs WHERE id = ?", (job,)).fetchone()[0])


def events_of(tx: Connection, job: int) -> list[str]:
    return [name for (name,) in tx.execute("SELECT event FROM events WHERE job = ? ORDER BY seq", (job,))]


# The ways into each state, by the store's own functions. `spare`: failures and crashes that the job may
# still have without dying, once it is there.


def added(tx: Connection, retries: int, crashes: int | None = None) -> int:
    wanted = Submission([b"true"])
    wanted.max_retries, wanted.max_crashes = retries, crashes
    return submit(tx, NOW, wanted).job


def begun(tx: Connection, retries: int, crashes: int | None = None) -> int:
    job = added(tx, retries, crashes)
    assert perform(tx, "claim", job)
    return job


def ended(tx: Connection, job: int, kind: str, reason: str | None = None) -> int:
    number = tx.execute("SELECT attempts FROM jobs WHERE id = ?", (job,)).fetchone()[0]
    assert settle(tx, NOW, job, number, WORKER[0], Outcome(kind, reason)) is not None
    return job


def waits_again(tx: Connection, spare: int) -> int:
    return ended(tx, begun(tx, spare + 1), "failed", "process_exit")


def died(tx: Connection, spare: int) -> int:
    return ended(tx, begun(tx, 0), "failed", "process_exit")


def withdrawn(tx: Connection, spare: int) -> int:
    job = added(tx, spare)
    control.cancel(tx, NOW, job, False)
    return job


def again(tx: Connection, job: int, action: str) -> int:
    assert perform(tx, action, job)
    return job


WAYS: dict[str, Callable[[Connection, int], int]] = {
    "queued: added": added,
    "queued: released": lambda tx, spare: ended(tx, begun(tx, spare), "released"),
    "queued: retried": lambda tx, spare: again(tx, withdrawn(tx, spare), "retry"),
    "running: for the first time": begun,
    "running: after a failure": lambda tx, spare: again(tx, waits_again(tx, spare), "claim"),
    "running: marked to be stopped": lambda tx, spare: again(tx, begun(tx, spare), "stop"),
    "done: at once": lambda tx, spare: ended(tx, begun(tx, spare), "succeeded"),
    "done: after a failure": lambda tx, spare: ended(tx, again(tx, waits_again(tx, spare), "claim"), "succeeded"),
    "failed: by a failure": waits_again,
    "failed: by a timeout": lambda tx, spare: ended(tx, begun(tx, spare + 1), "timed_out", "timeout"),
    "failed: by a crash": lambda tx, spare: ended(tx, begun(tx, spare, spare + 1), "abandoned", "worker_crash"),
    "dead: of failures": died,
    "dead: of crashes": lambda tx, spare: ended(tx, begun(tx, spare, 0), "abandoned", "worker_crash"),
    "canceled: while it waited": withdrawn,
    "canceled: while it ran": lambda tx, spare: ended(tx, begun(tx, spare), "canceled", "canceled"),
}

# One function serves several actions: what it does to a state that the other action is for.
INSTEAD = {
    ("stop", "queued"): "cancel",
    ("stop", "failed"): "cancel",
    ("force", "running"): "stop",
}


def perform(tx: Connection, action: str, job: int) -> bool:
    """Do it by the function that does it in production; whether that says that it did."""
    if action == "claim":
        later = NOW + 1000_000  # every backoff is over
        return [claimed.job for claimed in claim.claim(tx, later, WORKER, ("default",), 1)] == [job]
    if action in OUTCOME:
        number = tx.execute("SELECT attempts FROM jobs WHERE id = ?", (job,)).fetchone()[0]
        state = settle(tx, NOW, job, number, WORKER[0], Outcome(*OUTCOME[action]))
        assert state in (None, state_of(tx, job))
        return state is not None
    function, loud = (control.cancel, "stop") if action in ("cancel", "stop") else (control.retry, "force")
    marked, refused = tried(function, tx, NOW, job, action == loud)
    assert refused in ("", "CONFLICT", "CONFIRM")
    assert refused or marked == (state_of(tx, job) == "running")
    return not refused


@pytest.mark.parametrize("action", list(MOVES))
@pytest.mark.parametrize("way", list(WAYS))
def test_an_action_moves_a_job_as_the_table_says_or_is_refused_and_changes_nothing(
    database: Database, way: str, action: str
) -> None:
    before = way.partition(":")[0]
    with database.write() as tx:
        bystander = Submission([b"false"])
        bystander.queue = "other"
        submit(tx, NOW, bystander)
        job = WAYS[way](tx, 0 if action == "bury" else 1)
        assert state_of(tx, job) == before
        was = rows(tx)
        told = perform(tx, action, job)
        now = rows(tx)
    after = MOVES[INSTEAD.get((action, before), action)].get(before)
    if "marked to be stopped" in way and action in ("fail", "bury", "release"):
        after = "canceled"  # what was to be stopped is not tried again, however it ended
    if after is None:
        assert not told
        assert now == was
    else:
        assert told
        assert [row for row in now["jobs"] if row[0] != job] == [row for row in was["jobs"] if row[0] != job]
        with database.read() as tx:
            assert state_of(tx, job) == after
        assert now["jobs"] != was["jobs"] or "marked to be stopped" in way
        assert (len(now["events"]) > len(was["events"])) == (after != before), "a move and its event come together"


def test_every_state_and_every_action_is_tried() -> None:
    assert {way.partition(":")[0] for way in WAYS} == set(JOB_STATES)
    for moves in MOVES.values():
        assert set(moves) | set(moves.values()) <= set(JOB_STATES)
    assert {action for action, _, _ in OUTCOMES.values()} == set(OUTCOME) - {"bury"}


@pytest.mark.parametrize(
    ("kind", "spare", "stop", "state", "attempt", "events"),
    [
        ("succeeded", 1, None, "done", "succeeded", ["succeeded"]),
        ("failed", 1, None, "failed", "failed", ["failed"]),
        ("failed", 0, None, "dead", "failed", ["failed", "dead"]),
        ("timed_out", 1, None, "failed", "timed_out", ["timed_out"]),
        ("timed_out", 0, None, "dead", "timed_out", ["timed_out", "dead"]),
        ("abandoned", 1, None, "failed", "abandoned", ["reaped"]),
        ("abandoned", 0, None, "dead", "abandoned", ["reaped", "dead"]),
        ("canceled", 0, None, "canceled", "canceled", ["canceled"]),
        ("released", 0, None, "queued", "abandoned", ["released"]),
        # Marked to be canceled: it is, unless it was faster.
        ("succeeded", 0, "cancel", "done", "succeeded", ["succeeded"]),
        ("failed", 1, "cancel", "canceled", "canceled", ["canceled"]),
        ("failed", 0, "cancel", "canceled", "canceled", ["canceled"]),
        ("timed_out", 0, "cancel", "canceled", "canceled", ["canceled"]),
        ("abandoned", 0, "cancel", "canceled", "canceled", ["canceled"]),
        ("canceled", 0, "cancel", "canceled", "canceled", ["canceled"]),
        ("released", 0, "cancel", "canceled", "canceled", ["canceled"]),
        # Marked to be run again; where it was faster, the verb puts it back once more.
        ("succeeded", 0, "retry", "done", "succeeded", ["succeeded"]),
        ("failed", 0, "retry", "queued", "canceled", ["canceled", "retried"]),
        ("timed_out", 1, "retry", "queued", "canceled", ["canceled", "retried"]),
        ("abandoned", 0, "retry", "queued", "canceled", ["canceled", "retried"]),
        ("canceled", 0, "retry", "queued", "canceled", ["canceled", "retried"]),
        ("released", 0, "retry", "queued", "canceled", ["canceled", "retried"]),
    ],
)
def test_each_end_of_an_attempt_tells_its_story(
    database: Database, kind: str, spare: int, stop: str | None, state: str, attempt: str, events: list[str]
) -> None:
    with database.write() as tx:
        job = begun(tx, spare, spare)
        if stop == "cancel":
            control.cancel(tx, NOW, job, True)
        elif stop:
            control.retry(tx, NOW, job, True)
        ended(tx, job, kind)
        assert state_of(tx, job) == state
        assert tx.execute("SELECT state FROM attempts WHERE job = ?", (job,)).fetchall() == [(attempt,)]
        assert events_of(tx, job) == ["added", "claimed", *events]
        spent = tx.execute("SELECT failures + crashes, stop FROM jobs WHERE id = ?", (job,)).fetchone()
    assert spent == (int(state in ("failed", "dead")), None), "only failures and crashes of its own cost budget"


@pytest.mark.parametrize(("first", "second"), [("cancel", "retry"), ("retry", "cancel")])
def test_the_last_wish_for_a_running_job_stands(database: Database, first: str, second: str) -> None:
    with database.write() as tx:
        job = begun(tx, 1)
        for wish in (first, second):
            assert control.cancel(tx, NOW, job, True) if wish == "cancel" else control.retry(tx, NOW, job, True)
        ended(tx, job, "canceled", "canceled")
        assert state_of(tx, job) == ("canceled" if second == "cancel" else "queued")


@pytest.mark.parametrize(
    "change",
    [
        "state = 'lost'",
        "state = 'running'",
        "state = 'done'",
        "ready = NULL",
        "worker = 1",
        "stop = 'cancel'",
        "state = 'running', worker = 1",
    ],
)
def test_the_file_itself_refuses_a_job_that_is_half_in_a_state(database: Database, change: str) -> None:
    """The net below the SQL: a statement that forgets a column cannot be committed."""
    with database.write() as tx:
        added(tx, 0)
    with database.write() as tx, pytest.raises(sqlite3.IntegrityError):
        tx.execute(f"UPDATE jobs SET {change}")


KINDS = st.sampled_from(sorted(OUTCOMES))
LANES = ("a", "b", "c")


class Life(RuleBasedStateMachine):
    """Many jobs, two workers, every action in any order. The model knows each job's state by the table, and how
    often it has run since somebody asked for it; what is claimed is foretold from the jobs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.state: dict[int, str] = {}
        self.stop: dict[int, str | None] = {}
        self.runs: dict[int, int] = {}
        self.bounds: dict[int, tuple[int, int | None]] = {}

    @initialize()
    def create(self) -> None:
        self.database = Database(Place("/nowhere/queue.db"), creation.fresh(":memory:"))
        self.workers = []
        with self.database.write() as tx:
            for name in ("one", "two"):
                worker = workers.Worker()
                worker.name = name
                workers.enter(tx, worker)
                self.workers.append((worker.id, name))

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()

    def some(self, pick: int) -> int:
        """One of the jobs, or one that does not exist."""
        return pick % (len(self.state) + 1) + 1

    def act(self, action: str, job: int) -> bool:
        """Whether the table allows it; the model moves as it says."""
        before = self.state[job]
        if before not in MOVES[action]:
            return False
        self.state[job] = MOVES[action][before]
        if action in ("retry", "force"):
            self.runs[job] = 0
        return True

    @rule(
        lane=st.sampled_from(LANES),
        priority=st.integers(-1, 1),
        retries=st.integers(0, 2),
        crashes=st.none() | st.integers(0, 2),
        delay=st.sampled_from([0, 0, 0, 1, 3000]),
    )
    def submit(self, lane: str, priority: int, retries: int, crashes: int | None, delay: int) -> None:
        wanted = Submission([b"true"])
        wanted.queue, wanted.priority, wanted.delay = lane, priority, delay
        wanted.max_retries, wanted.max_crashes = retries, crashes
        with self.database.write() as tx:
            job = submit(tx, self.now, wanted).job
        assert job not in self.state
        self.state[job], self.stop[job], self.runs[job] = "queued", None, 0
        self.bounds[job] = (retries, crashes)

    @rule(
        worker=st.integers(0, 1),
        lanes=st.sets(st.sampled_from([*LANES, "nothing"])),
        room=st.integers(1, 4),
        slots=st.none() | st.integers(0, 2),
    )
    def claim(self, worker: int, lanes: set[str], room: int, slots: int | None) -> None:
        with self.database.write() as tx:
            foretold = self.claimable(tx, lanes, room, slots)
            anything = claim.anything(tx, self.now, lanes, slots)
            got = claim.claim(tx, self.now, self.workers[worker], lanes, room, slots)
            assert not claim.anything(tx, self.now, lanes, slots) or len(got) == room
            due = tx.execute(
                "SELECT MIN(due_at) FROM jobs WHERE state IN ('queued', 'failed') AND due_at > ?", (self.now,)
            )
            assert claim.next_due(tx) == due.fetchone()[0]
        assert [claimed.job for claimed in got] == foretold
        assert anything or not got
        for claimed in got:
            assert self.act("claim", claimed.job)
            self.runs[claimed.job] += 1

    def claimable(self, tx: Connection, lanes: set[str], room: int, slots: int | None) -> list[int]:
        """The jobs that a claim must give, by the rule of the design and not by its SQL."""
        known = read.settings(tx)
        jobs = tx.execute("SELECT id, state, queue, priority, due_at FROM jobs").fetchall()
        running = {lane: sum(state == "running" and queue == lane for _, state, queue, _, _ in jobs) for lane in LANES}
        chosen: list[int] = []
        for _, _, job, lane in sorted(
            (-p, due, job, lane) for job, s, lane, p, due in jobs if s in ("queued", "failed")
        ):
            limit, paused = known.get(lane, (None, False))
            due_at = next(due for number, _, _, _, due in jobs if number == job)
            full = any(running[lane] >= bound for bound in (limit, slots) if bound is not None)
            if due_at <= self.now and not paused and not full and (not lanes or lane in lanes) and len(chosen) < room:
                chosen.append(job)
                running[lane] += 1
        return chosen

    def running(self) -> list[int]:
        return [job for job, state in self.state.items() if state == "running"]

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 99), kind=KINDS)
    def settle(self, pick: int, kind: str) -> None:
        job = self.running()[pick % len(self.running())]
        with self.database.write() as tx:
            held = "SELECT attempts, worker, failures, crashes FROM jobs WHERE id = ?"
            number, worker, failures, crashes = tx.execute(held, (job,)).fetchone()
            state = settle(tx, self.now, job, number, worker, Outcome(kind, next(iter(REASONS))))
        action, budget, _ = OUTCOMES[kind]
        retries, most_crashes = self.bounds[job]
        spent = {"failures": failures >= retries, "crashes": most_crashes is not None and crashes >= most_crashes}
        if budget and spent[budget]:
            action = "bury"
        if self.stop[job] and kind != "succeeded":
            action = "withdraw" if self.stop[job] == "cancel" else "release"
        assert self.act(action, job)
        assert state == self.state[job]
        if action == "release":
            self.runs[job] = 0 if self.stop[job] else self.runs[job] - 1
        self.stop[job] = None

    @rule(pick=st.integers(0, 99), kind=KINDS, wrong=st.sampled_from(["worker", "attempt before", "attempt after"]))
    def settle_what_is_not_mine(self, pick: int, kind: str, wrong: str) -> None:
        job = self.some(pick)
        with self.database.write() as tx:
            was = rows(tx)
            number, worker = (tx.execute("SELECT attempts, worker FROM jobs WHERE id = ?", (job,)).fetchone()) or (1, 1)
            worker = (worker or 1) + (wrong == "worker")
            number += {"worker": 0, "attempt before": -1, "attempt after": 1}[wrong]
            assert settle(tx, self.now, job, number, worker, Outcome(kind)) is None
            assert rows(tx) == was

    @rule(pick=st.integers(0, 99), running_too=st.booleans())
    def cancel(self, pick: int, running_too: bool) -> None:
        job = self.some(pick)
        with self.database.write() as tx:
            was = rows(tx)
            marked, refused = tried(control.cancel, tx, self.now, job, running_too)
            assert not refused or rows(tx) == was
        before = self.state.get(job)
        allowed = before in MOVES["cancel"] or (running_too and before in MOVES["stop"])
        assert refused == ("" if allowed else {None: "NOT_FOUND", "running": "CONFIRM"}.get(before, "CONFLICT"))
        if refused:
            return
        assert self.act("stop" if marked else "cancel", job)
        self.stop[job] = "cancel" if marked else None

    @rule(pick=st.integers(0, 99), force=st.booleans())
    def retry(self, pick: int, force: bool) -> None:
        job = self.some(pick)
        with self.database.write() as tx:
            was = rows(tx)
            marked, refused = tried(control.retry, tx, self.now, job, force)
            assert not refused or rows(tx) == was
        before = self.state.get(job)
        allowed = before in MOVES["force" if force else "retry"] or (force and before in MOVES["stop"])
        assert refused == ("" if allowed else "CONFLICT" if before else "NOT_FOUND")
        if refused:
            return
        assert self.act("stop" if marked else "force" if force else "retry", job)
        self.stop[job] = "retry" if marked else None

    @rule(ms=st.sampled_from([1, 1999, 2000, 4000, 61_000]))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule(lane=st.sampled_from(LANES), slots=st.none() | st.integers(0, 2), paused=st.sampled_from([0, 0, 1]))
    def set_queue(self, lane: str, slots: int | None, paused: int) -> None:
        with self.database.write() as tx:
            tx.execute("INSERT OR REPLACE INTO queues (name, slots, paused) VALUES (?, ?, ?)", (lane, slots, paused))

    @invariant()
    def the_queue_is_sound(self) -> None:
        if not hasattr(self, "database"):
            return
        with self.database.read() as tx:
            jobs = tx.execute("SELECT id, state, queue, ready, worker, attempts, stop, due_at FROM jobs").fetchall()
            attempts = tx.execute(
                "SELECT job, number, state, finished_at FROM attempts ORDER BY job, number"
            ).fetchall()
            assert {job[0]: job[1] for job in jobs} == self.state
            recount: dict[str, dict[str, int]] = {}
            for _, state, lane, *_ in jobs:
                recount.setdefault(lane, dict.fromkeys(JOB_STATES, 0))[state] += 1
            assert read.counts(tx) == recount
            for job, state, _, ready, worker, begun, stop, _ in jobs:
                assert (worker is not None) == (state == "running")
                assert (ready is None) == (state not in ("queued", "failed"))
                assert stop == self.stop[job]
                mine = [attempt for attempt in attempts if attempt[0] == job]
                assert [number for _, number, _, _ in mine] == list(range(1, begun + 1))
                going = [number for _, number, of, end in mine if of == "running" or end is None]
                assert going == ([begun] if state == "running" else [])
                retries, crashes = self.bounds[job]
                assert crashes is None or self.runs[job] <= retries + crashes + 1
            assert {attempt[2] for attempt in attempts} <= set(ATTEMPT_STATES)
            assert {event for (event,) in tx.execute("SELECT DISTINCT event FROM events")} <= set(EVENTS)
            assert drain.settled(tx, self.now, ()) == self.has_settled(tx, jobs)
            assert invariants.violations(tx) == []

    def has_settled(self, tx: Connection, jobs: list[Any]) -> bool:
        paused = {name for name, (_, paused) in read.settings(tx).items() if paused}
        return not any(
            state == "running"
            or (lane not in paused and (state == "failed" or (state == "queued" and due_at <= self.now)))
            for _, state, lane, _, _, _, _, due_at in jobs
        )


TestLife = Life.TestCase
TestLife.settings = settings(deadline=None, max_examples=40, stateful_step_count=40)


def test_terminal_states_are_those_that_only_a_person_can_leave() -> None:
    by_itself = {before for action, moves in MOVES.items() if action not in ("retry", "force") for before in moves}
    assert set(JOB_STATES) - by_itself == set(TERMINAL)
