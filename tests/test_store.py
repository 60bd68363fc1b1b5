"""The store with a clock of the test's own: order, budgets, backoff, keys, refusals, finding, draining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.states import TERMINAL
from spoolctl.store import claim, control, creation, drain, read
from spoolctl.store.database import Database
from spoolctl.store.place import Place
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Answer, Submission, submit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from sqlite3 import Connection

NOW = 1_800_000_000_000
ME = (1, "me")
TABLES = ("jobs", "attempts", "counts", "events", "tags", "queues", "workers")


@pytest.fixture
def database() -> Iterator[Database]:
    """In memory: hundreds of tests use it, and none of them needs the file."""
    database = Database(Place("/nowhere/queue.db"), creation.fresh(":memory:"))
    yield database
    database.close()


@pytest.fixture
def tx(database: Database) -> Iterator[Connection]:
    """One write transaction of an empty queue."""
    with database.write() as tx:
        yield tx


def rows(tx: Connection) -> dict[str, list[Any]]:
    """Everything that is in the queue."""
    return {table: tx.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}


def wanted(argv: bytes = b"true", **fields: Any) -> Submission:
    """A submission with some fields other than by default."""
    submission = Submission([argv])
    assert all(hasattr(submission, name) for name in fields)
    submission.__dict__.update(fields)
    return submission


def add(tx: Connection, now: int = NOW, **fields: Any) -> int:
    return submit(tx, now, wanted(**fields)).job


def take(tx: Connection, now: int = NOW, *queues: str, room: int = 100, slots: int | None = None) -> list[int]:
    """Claim; the numbers of the jobs, in the order in which they are given."""
    return [claimed.job for claimed in claim.claim(tx, now, ME, queues, room, slots)]


def end(tx: Connection, job: int, kind: str = "failed", now: int = NOW) -> str | None:
    """End the last attempt of a job."""
    return settle(tx, now, job, field(tx, job, "attempts"), ME[0], Outcome(kind, "process_exit"))


def field(tx: Connection, job: int, name: str) -> Any:
    return tx.execute(f"SELECT {name} FROM jobs WHERE id = ?", (job,)).fetchone()[0]


def set_queue(tx: Connection, name: str, slots: int | None = None, paused: bool = False) -> None:
    tx.execute("INSERT OR REPLACE INTO queues (name, slots, paused) VALUES (?, ?, ?)", (name, slots, int(paused)))


def refusal(code: str, action: Any, *args: Any) -> Fail:
    """The Fail of that code with which `action` refuses."""
    with pytest.raises(Fail) as caught:
        action(*args)
    assert caught.value.code == code
    return caught.value


# Claim order


def test_the_highest_priority_comes_first_then_the_earliest_then_the_lowest_number(tx: Connection) -> None:
    late = add(tx, NOW + 2)
    low = add(tx, NOW, priority=-5)
    high = add(tx, NOW + 2, priority=7)
    early = add(tx, NOW + 1)
    twin = add(tx, NOW + 1)
    assert take(tx, NOW + 2) == [high, early, twin, late, low]


def test_the_order_holds_across_all_queues_that_are_served(tx: Connection) -> None:
    plan = [("a", 0, 3), ("b", 0, 1), ("c", 5, 9), ("a", 5, 2), ("b", 0, 3), ("a", -1, 0), ("c", 0, 1), ("d", 9, 0)]
    jobs = [add(tx, NOW + at, queue=queue, priority=priority) for queue, priority, at in plan]
    order = [jobs[3], jobs[2], jobs[1], jobs[6], jobs[0], jobs[4], jobs[5]]
    assert take(tx, NOW + 9, "a", "b", "c") == order
    assert take(tx, NOW + 9) == [jobs[7]]


def test_one_at_a_time_they_come_in_the_same_order(tx: Connection) -> None:
    for number in range(12):
        add(tx, NOW + number % 3, queue="abc"[number % 3], priority=number % 2)
    singly = [take(tx, NOW + 9, room=1) for _ in range(12)]
    jobs = tx.execute("SELECT id FROM jobs ORDER BY priority DESC, due_at, id").fetchall()
    assert singly == [[job] for (job,) in jobs]
    assert take(tx, NOW + 9) == []


def test_a_claim_takes_no_more_than_there_is_room_for(tx: Connection) -> None:
    jobs = [add(tx) for _ in range(5)]
    assert take(tx, room=2) == jobs[:2]
    assert take(tx, room=0) == []
    assert take(tx) == jobs[2:]


def test_a_claimed_job_carries_all_that_running_it_needs(tx: Connection) -> None:
    job = add(tx, argv=b"caf\xe9", cwd=b"/t\xff", env={b"A": b"1=2", b"B": b""}, timeout=1.5, key="k", queue="q")
    (claimed,) = claim.claim(tx, NOW, ME, (), 1)
    assert (claimed.job, claimed.attempt, claimed.queue, claimed.key) == (job, 1, "q", "k")
    assert (claimed.argv, claimed.cwd, claimed.timeout) == ([b"caf\xe9"], b"/t\xff", 1.5)
    assert claimed.env == {b"A": b"1=2", b"B": b""}
    assert tx.execute("SELECT marker, worker FROM attempts").fetchall() == [(claimed.marker, "me")]


def test_every_attempt_has_a_marker_of_its_own(tx: Connection) -> None:
    for _ in range(50):
        add(tx)
    assert len({claimed.marker for claimed in claim.claim(tx, NOW, ME, (), 50)}) == 50


def test_a_new_attempt_does_not_show_how_the_last_one_ended(tx: Connection) -> None:
    job = add(tx)
    take(tx)
    outcome = Outcome("failed", "process_exit", "words")
    outcome.exit_code, outcome.signal = 3, "SIGX"
    settle(tx, NOW, job, 1, ME[0], outcome)
    last = "SELECT exit_code, signal, failure_reason, error FROM jobs"
    assert tx.execute(last).fetchone() == (3, "SIGX", "process_exit", "words")
    assert take(tx, NOW + 2000) == [job]
    assert tx.execute(last).fetchone() == (None, None, None, None)


# What is not due, and what falls due


def test_a_delayed_job_is_claimed_when_it_is_due_and_not_a_millisecond_before(tx: Connection) -> None:
    delayed = add(tx, delay=5000)
    fixed = add(tx, at=NOW + 6000)
    assert take(tx, NOW + 4999) == []
    assert claim.next_due(tx) == NOW + 5000
    assert take(tx, NOW + 5000) == [delayed]
    assert take(tx, NOW + 5999) == []
    assert take(tx, NOW + 6000) == [fixed]
    assert claim.next_due(tx) is None


def test_a_future_job_is_not_claimed_in_place_of_a_due_one_of_lower_priority(tx: Connection) -> None:
    add(tx, delay=1, priority=9)
    due = add(tx, priority=-9)
    assert take(tx) == [due]


def test_a_job_that_fell_due_takes_its_place_in_the_order(tx: Connection) -> None:
    delayed = add(tx, delay=1000, priority=1)
    plain = add(tx)
    assert take(tx, NOW + 1000) == [delayed, plain]


def test_all_that_fell_due_at_one_moment_is_claimed_however_many_there_are(tx: Connection) -> None:
    """They are promoted in steps, so that a million do not hold the write lock for long."""
    jobs = {add(tx, delay=1000) for _ in range(2500)}
    got: list[int] = []
    for _ in range(4):
        got += take(tx, NOW + 1000, room=1000)
    assert set(got) == jobs
    assert len(got) == len(jobs)


def test_a_moment_that_has_passed_means_now_and_overtakes_nobody(tx: Connection) -> None:
    first = add(tx, NOW)
    past = add(tx, NOW + 1, at=NOW - 10_000)
    assert field(tx, past, "due_at") == NOW + 1
    assert take(tx, NOW + 1) == [first, past]


def test_whether_there_is_anything_to_claim_is_known_without_claiming(tx: Connection) -> None:
    assert not claim.anything(tx, NOW, ())
    add(tx, delay=1000, queue="q")
    assert not claim.anything(tx, NOW + 999, ())
    assert claim.anything(tx, NOW + 1000, ())
    assert claim.anything(tx, NOW + 1000, ("q",))
    was = rows(tx)
    claim.anything(tx, NOW + 1000, ())
    assert rows(tx) == was


# Paused queues and slots


def test_a_paused_queue_gives_nothing_until_it_is_resumed(tx: Connection) -> None:
    set_queue(tx, "q", paused=True)
    held, other = add(tx, queue="q", priority=9), add(tx)
    assert take(tx) == [other]
    assert take(tx, NOW, "q") == []
    assert not claim.anything(tx, NOW, ("q",))
    set_queue(tx, "q", paused=False)
    assert take(tx) == [held]


def test_slots_bound_what_runs_of_a_queue_over_all_workers(tx: Connection) -> None:
    set_queue(tx, "q", slots=2)
    jobs = [add(tx, queue="q") for _ in range(4)]
    free = add(tx, priority=-1)
    assert take(tx) == [*jobs[:2], free]
    assert [c.job for c in claim.claim(tx, NOW, (2, "other"), (), 100)] == []
    end(tx, jobs[0], "succeeded")
    assert [c.job for c in claim.claim(tx, NOW, (2, "other"), (), 100)] == [jobs[2]]


def test_a_full_queue_lets_jobs_of_lower_priority_in_other_queues_pass(tx: Connection) -> None:
    set_queue(tx, "q", slots=1)
    first, second = add(tx, queue="q", priority=9), add(tx, queue="q", priority=8)
    other = add(tx, queue="r")
    assert take(tx) == [first, other]
    end(tx, first, "succeeded")
    assert take(tx) == [second]


@pytest.mark.parametrize(
    ("own", "stored", "bound"), [(1, None, 1), (None, 2, 2), (3, 2, 2), (1, 2, 1), (None, None, 5), (0, 2, 0)]
)
def test_the_tighter_of_the_callers_slots_and_the_queues_binds(
    tx: Connection, own: int | None, stored: int | None, bound: int
) -> None:
    set_queue(tx, "q", slots=stored)
    for _ in range(5):
        add(tx, queue="q")
    assert len(take(tx, slots=own)) == bound


def test_a_running_job_that_is_to_be_stopped_keeps_its_slot(tx: Connection) -> None:
    """Until its processes are gone it is one of those that run."""
    set_queue(tx, "q", slots=1)
    job, waiting = add(tx, queue="q"), add(tx, queue="q")
    assert take(tx) == [job]
    control.cancel(tx, NOW, job, True)
    assert take(tx) == []
    end(tx, job, "canceled")
    assert take(tx) == [waiting]


# Budgets and backoff


def test_the_wait_doubles_from_two_seconds_to_a_minute(tx: Connection) -> None:
    job, now, waits = add(tx, max_retries=9), NOW, []
    for _ in range(9):
        assert take(tx, now) == [job]
        assert end(tx, job, now=now) == "failed"
        due = field(tx, job, "due_at")
        assert take(tx, due - 1) == []
        waits.append((due - now) / 1000)
        now = due
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_the_wait_never_overflows() -> None:
    assert limits.backoff(limits.RETRIES_MAX + limits.CRASHES_MAX) == 60


def test_every_kind_of_failure_lengthens_the_wait(tx: Connection) -> None:
    job, now, waits = add(tx, max_retries=9), NOW, []
    for kind in ("failed", "abandoned", "timed_out", "abandoned"):
        take(tx, now)
        end(tx, job, kind, now)
        waits.append((field(tx, job, "due_at") - now) / 1000)
        now = field(tx, job, "due_at")
    assert waits == [2, 4, 8, 16]


def run_out(tx: Connection, job: int, kinds: str) -> str:
    """Run a job with these ends (f, t, c: failed, timed out, worker crashed; r: released); its last state."""
    now, state = NOW, ""
    for letter in kinds:
        assert take(tx, now) == [job], f"it is {state} before the end of {kinds}"
        state = end(tx, job, {"f": "failed", "t": "timed_out", "c": "abandoned", "r": "released"}[letter], now) or ""
        now += 61_000
    return state


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_r_retries_are_r_plus_one_runs(tx: Connection, retries: int) -> None:
    job = add(tx, max_retries=retries)
    assert run_out(tx, job, "f" * retries) in ("failed", "")
    assert take(tx, NOW + 10_000_000) == [job]
    assert end(tx, job) == "dead"
    assert field(tx, job, "attempts") == retries + 1
    assert take(tx, NOW + 10_000_000_000) == []


@pytest.mark.parametrize(
    ("retries", "crashes", "kinds", "state"),
    [
        (0, None, "c" * 20, "failed"),  # crashes are unbounded by default
        (0, None, "cccf", "dead"),
        (3, 0, "c", "dead"),
        (3, 2, "cc", "failed"),
        (3, 2, "ccc", "dead"),
        (2, 2, "fcfcf", "dead"),
        (2, 2, "fcfcc", "dead"),
        (2, 2, "fcfc", "failed"),
        (1, 1, "fcf", "dead"),
        (1, 1, "cft", "dead"),
        (0, 0, "t", "dead"),
        (1, 0, "rrrrf", "failed"),  # what the worker puts back costs nothing
        (0, 0, "rrrrr", "queued"),
    ],
)
def test_failures_and_crashes_have_budgets_of_their_own(
    tx: Connection, retries: int, crashes: int | None, kinds: str, state: str
) -> None:
    job = add(tx, max_retries=retries, max_crashes=crashes)
    assert run_out(tx, job, kinds) == state
    assert field(tx, job, "attempts") == len(kinds)


def test_a_released_job_is_due_at_once(tx: Connection) -> None:
    job = add(tx)
    take(tx)
    assert end(tx, job, "released") == "queued"
    assert take(tx) == [job]


def test_a_manual_retry_gives_a_fresh_budget_and_keeps_the_history(tx: Connection) -> None:
    job = add(tx, max_retries=1, max_crashes=0)
    assert run_out(tx, job, "ff") == "dead"
    before = tx.execute("SELECT * FROM attempts").fetchall()
    assert control.retry(tx, NOW, job, False) is False
    assert (field(tx, job, "failures"), field(tx, job, "crashes"), field(tx, job, "finished_at")) == (0, 0, None)
    assert tx.execute("SELECT * FROM attempts").fetchall() == before
    assert run_out(tx, job, "ff") == "dead"
    assert [number for (number,) in tx.execute("SELECT number FROM attempts")] == [1, 2, 3, 4]
    assert control.retry(tx, NOW, job, False) is False
    assert run_out(tx, job, "c") == "dead"
    names = [event["event"] for event in read.history(tx, job)]
    half = ["claimed", "failed", "claimed", "failed", "dead"]
    assert names == ["added", *half, "retried", *half, "retried", "claimed", "reaped", "dead"]


def test_a_retry_of_a_failed_job_ends_its_wait(tx: Connection) -> None:
    job = add(tx)
    run_out(tx, job, "f")
    control.retry(tx, NOW + 1, job, False)
    assert take(tx, NOW + 1) == [job]


def test_a_forced_retry_of_a_running_job_gives_a_fresh_budget(tx: Connection) -> None:
    job = add(tx, max_retries=1)
    run_out(tx, job, "f")
    assert take(tx, NOW + 61_000) == [job]
    assert control.retry(tx, NOW, job, True) is True
    assert end(tx, job, "canceled", NOW + 61_000) == "queued"
    assert field(tx, job, "failures") == 0
    assert run_out(tx, job, "f") == "failed"


# The gate


def measured() -> Outcome:
    outcome = Outcome("failed", "process_exit", "words")
    outcome.exit_code, outcome.signal, outcome.seconds = 3, "SIGX", 1.25
    outcome.user_seconds, outcome.system_seconds, outcome.peak_memory = 0.5, 0.25, 4096
    outcome.stdout_bytes, outcome.stderr_bytes = 10, 0
    return outcome


@pytest.mark.parametrize(
    ("kind", "over"), [("succeeded", True), ("canceled", True), ("failed", False), ("released", False)]
)
def test_a_job_has_an_end_only_when_it_is_finished(tx: Connection, kind: str, over: bool) -> None:
    job = add(tx)
    take(tx)
    end(tx, job, kind, NOW + 5)
    assert field(tx, job, "finished_at") == (NOW + 5 if over else None)
    assert tx.execute("SELECT finished_at FROM attempts").fetchall() == [(NOW + 5,)]


def test_an_end_is_recorded_with_all_that_was_measured(tx: Connection, database: Database) -> None:
    job = add(tx)
    take(tx)
    claim.record_spawn(tx, job, 1, 4711, 99)
    settle(tx, NOW + 5, job, 1, ME[0], measured())
    (attempt,) = read.attempts(tx, database, job)
    expected = {
        "attempt": 1,
        "state": "failed",
        "worker": "me",
        "pid": 4711,
        "seconds": 1.25,
        "user_seconds": 0.5,
        "system_seconds": 0.25,
        "peak_memory_bytes": 4096,
        "exit_code": 3,
        "signal": "SIGX",
        "failure_reason": "process_exit",
        "error": "words",
    }
    assert {name: attempt[name] for name in expected} == expected
    assert attempt["stdout"]["missing"] is True  # ten bytes were written, and no file is there
    assert attempt["stderr"] == {**attempt["stderr"], "bytes": 0, "missing": False}


@pytest.mark.parametrize(
    "case", ["another worker", "an earlier attempt", "a later attempt", "no such job", "settled already"]
)
def test_a_result_that_is_not_the_callers_any_more_changes_nothing(tx: Connection, case: str) -> None:
    """It never lands on somebody else's claim."""
    job = add(tx)
    run_out(tx, job, "f")
    take(tx, NOW + 61_000)
    number, worker, which = 2, ME[0], job
    if case == "another worker":
        worker = 2
    elif case == "an earlier attempt":
        number = 1
    elif case == "a later attempt":
        number = 3
    elif case == "no such job":
        which = 99
    else:
        end(tx, job, "succeeded")
    was = rows(tx)
    assert settle(tx, NOW, which, number, worker, measured()) is None
    assert settle(tx, NOW, which, number, worker, Outcome("abandoned", "worker_crash")) is None
    assert rows(tx) == was


def test_a_dead_workers_job_waits_again_and_says_why(tx: Connection) -> None:
    job = add(tx)
    take(tx)
    assert settle(tx, NOW, job, 1, ME[0], Outcome("abandoned", "worker_crash")) == "failed"
    assert (field(tx, job, "failure_reason"), field(tx, job, "crashes"), field(tx, job, "failures")) == (
        "worker_crash",
        1,
        0,
    )


# Keys


def test_the_same_submission_under_a_key_is_the_same_job(tx: Connection) -> None:
    first = submit(tx, NOW, wanted(key="k", note="n", tags={"a": "1"}, env={b"A": b"1"}))
    again = submit(tx, NOW + 5, wanted(key="k", note="n", tags={"a": "1"}, env={b"A": b"1"}))
    assert (first.job, first.state, first.deduplicated, first.warnings) == (1, "queued", False, [])
    assert (again.job, again.state, again.deduplicated, again.warnings) == (1, "queued", True, [])
    assert tx.execute("SELECT COUNT(*) FROM jobs").fetchone() == (1,)
    assert [event["event"] for event in read.history(tx, 1)] == ["added"]


def test_without_a_key_every_submission_is_a_new_job(tx: Connection) -> None:
    assert [add(tx), add(tx)] == [1, 2]


def in_state(tx: Connection, state: str, **fields: Any) -> int:
    """A job brought into a state."""
    job = add(tx, max_retries=0 if state == "dead" else 1, **fields)
    if state == "canceled":
        control.cancel(tx, NOW, job, False)
    elif state != "queued":
        take(tx)
        if state != "running":
            end(tx, job, "succeeded" if state == "done" else "failed")
    assert field(tx, job, "state") == state
    return job


def keyed(state: str) -> Submission:
    return wanted(key="k", max_retries=0 if state == "dead" else 1)


STATES = ["queued", "running", "done", "failed", "dead", "canceled"]


@pytest.mark.parametrize("state", STATES)
def test_a_key_answers_with_its_job_in_whatever_state_that_is(tx: Connection, state: str) -> None:
    """Whoever was killed before it read the answer asks again, maybe when the job is long done."""
    job = in_state(tx, state, key="k")
    was = rows(tx)
    answer = submit(tx, NOW + 9, keyed(state))
    assert (answer.job, answer.state, answer.deduplicated) == (job, state, True)
    assert rows(tx) == was


@pytest.mark.parametrize("state", STATES)
def test_if_finished_add_makes_a_new_job_only_where_the_old_one_is_finished(tx: Connection, state: str) -> None:
    job = in_state(tx, state, key="k")
    answer = submit(tx, NOW + 9, keyed(state), anew_if_finished=True)
    assert (answer.job != job) == (state in TERMINAL)
    assert answer.deduplicated == (state not in TERMINAL)
    third = submit(tx, NOW + 10, keyed(state), anew_if_finished=True)
    assert (third.job, third.deduplicated) == (answer.job, True), "the key belongs to the newest job"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"argv": b"false"}, "argv"),
        ({"cwd": b"/"}, "cwd"),
        ({"env": {b"A": b"2"}}, "env"),
        ({"queue": "q"}, "queue"),
        ({"priority": 1}, "priority"),
        ({"timeout": 301}, "timeout"),
        ({"max_retries": 4}, "max_retries"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"argv": b"false", "timeout": 1.5}, "argv and timeout"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_key_that_runs_something_else_is_a_conflict(
    tx: Connection, other: dict[str, Any], named: str, finished: bool
) -> None:
    same: dict[str, Any] = {"key": "k", "env": {b"A": b"1"}}
    job = add(tx, **same)
    if finished:
        take(tx)
        end(tx, job, "succeeded")
    was = rows(tx)
    fail = refusal("KEY_CONFLICT", submit, tx, NOW, wanted(**{**same, **other}))
    assert "--key k" in fail.message
    assert f"job {job}" in fail.message
    assert named in fail.message
    assert rows(tx) == was
    assert submit(tx, NOW, wanted(**same)).job == job


def test_a_key_may_run_something_else_anew_once_its_job_is_finished(tx: Connection) -> None:
    job = in_state(tx, "done", key="k")
    assert submit(tx, NOW, wanted(b"false", key="k"), anew_if_finished=True).job == job + 1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"note": "other"}, ["note"]),
        ({"tags": {"a": "2"}}, ["tags"]),
        ({"tags": {"a": "1", "b": "2"}}, ["tags"]),
        ({"delay": 60_000}, ["delay"]),
        ({"at": NOW + 60_000}, ["delay"]),
        ({"note": "other", "tags": {}, "delay": 1}, ["note", "delay"]),
        ({"note": "other", "tags": {"b": "1"}, "delay": 1}, ["note", "tags", "delay"]),
        ({"note": None, "tags": {}}, []),
    ],
)
def test_what_does_not_change_the_execution_is_kept_with_a_warning(
    tx: Connection, other: dict[str, Any], named: list[str]
) -> None:
    same: dict[str, Any] = {"key": "k", "note": "n", "tags": {"a": "1"}}
    job = add(tx, **same)
    was = rows(tx)
    answer: Answer = submit(tx, NOW, wanted(**{**same, **other}))
    assert (answer.job, answer.deduplicated) == (job, True)
    assert len(answer.warnings) == len(named)
    for name, warning in zip(named, answer.warnings):
        assert name in warning
        assert f"job {job}" in warning
    assert rows(tx) == was


def test_keys_are_told_apart_to_the_letter(tx: Connection) -> None:
    assert [add(tx, key=key) for key in ("k", "K", "k ", "ä", "a\u0308")] == [1, 2, 3, 4, 5]


def test_a_job_whose_key_has_moved_on_cannot_be_retried(tx: Connection) -> None:
    """Two jobs of one key could run at once, which the key is there to prevent."""
    old = in_state(tx, "dead", key="k")
    new = submit(tx, NOW, keyed("dead"), anew_if_finished=True).job
    was = rows(tx)
    for force in (False, True):
        fail = refusal("CONFLICT", control.retry, tx, NOW, old, force)
        assert f"job {new}" in fail.message + fail.hint
    assert rows(tx) == was
    control.cancel(tx, NOW, new, False)
    refusal("CONFLICT", control.retry, tx, NOW, old, False)
    assert control.retry(tx, NOW, new, False) is False


def test_another_key_or_none_does_not_stand_in_the_way_of_a_retry(tx: Connection) -> None:
    jobs = [in_state(tx, "dead", key="k"), in_state(tx, "dead"), in_state(tx, "dead", key="l"), in_state(tx, "dead")]
    assert [control.retry(tx, NOW, job, False) for job in jobs] == [False] * 4


# Cancel and retry


@pytest.mark.parametrize(
    "action", [lambda tx, job: control.cancel(tx, NOW, job, True), lambda tx, job: control.retry(tx, NOW, job, True)]
)
def test_a_job_that_is_not_there_is_not_found(tx: Connection, action: Any) -> None:
    assert "no job 99" in refusal("NOT_FOUND", action, tx, 99).message


def test_a_running_job_is_only_stopped_when_that_is_confirmed(tx: Connection) -> None:
    job = in_state(tx, "running")
    fail = refusal("CONFIRM", control.cancel, tx, NOW, job, False)
    assert fail.status == 2
    assert f"cancel --running --yes {job}" in fail.hint
    assert field(tx, job, "stop") is None
    assert control.cancel(tx, NOW, job, True) is True
    assert (field(tx, job, "state"), field(tx, job, "stop")) == ("running", "cancel")
    assert control.stopping(tx, [job, 99]) == ({job: "running"}, [job])
    end(tx, job, "canceled")
    assert control.stopping(tx, [job]) == ({job: "canceled"}, [])


@pytest.mark.parametrize(("state", "hint"), [("done", "retry --force"), ("dead", "retry"), ("canceled", "retry")])
def test_what_is_finished_cannot_be_canceled(tx: Connection, state: str, hint: str) -> None:
    job = in_state(tx, state)
    fail = refusal("CONFLICT", control.cancel, tx, NOW, job, True)
    assert fail.status == 5
    assert state in fail.message
    assert hint in fail.hint


@pytest.mark.parametrize(("state", "hint"), [("queued", "already"), ("running", "--force"), ("done", "--force")])
def test_what_need_not_be_retried_is_refused_with_the_way_out(tx: Connection, state: str, hint: str) -> None:
    job = in_state(tx, state)
    fail = refusal("CONFLICT", control.retry, tx, NOW, job, False)
    assert fail.status == 5
    assert state in fail.message
    assert hint in fail.hint


@pytest.mark.parametrize("state", ["queued", "failed"])
def test_what_waits_can_be_canceled(tx: Connection, state: str) -> None:
    job = in_state(tx, state)
    assert control.cancel(tx, NOW, job, False) is False
    assert field(tx, job, "state") == "canceled"


@pytest.mark.parametrize(
    ("state", "force"),
    [
        *((state, False) for state in ("dead", "canceled", "failed")),
        *((s, True) for s in ("dead", "canceled", "failed", "done")),
    ],
)
def test_what_has_ended_can_be_put_back_what_succeeded_only_by_force(tx: Connection, state: str, force: bool) -> None:
    job = in_state(tx, state)
    assert control.retry(tx, NOW, job, force) is False
    assert take(tx) == [job]


def test_a_canceled_job_is_finished_and_says_so(tx: Connection) -> None:
    job = in_state(tx, "failed")
    control.cancel(tx, NOW + 7, job, False)
    assert take(tx, NOW + 10_000_000) == []
    (shown,) = read.jobs(tx, [job])
    assert (shown["state"], shown["failure_reason"], shown["terminal"], shown["succeeded"]) == (
        "canceled",
        "canceled",
        True,
        False,
    )
    assert shown["finished_at"] == "2027-01-15T08:00:00.007Z"


# Finding


@pytest.fixture
def found(tx: Connection) -> dict[str, int]:
    """Jobs of several kinds, by a name for each."""
    return {
        "dead": in_state(tx, "dead", queue="a", tags={"batch": "7", "x": "1"}),
        "done": in_state(tx, "done", queue="b", tags={"batch": "7"}),
        "first": in_state(tx, "done", queue="a", key="k"),
        "second": submit(tx, NOW, wanted(key="k", queue="b"), anew_if_finished=True).job,
        "plain": add(tx, queue="a"),
        "other": add(tx, queue="b", tags={"batch": "8"}),
    }


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["other", "plain", "second", "first", "done", "dead"]),
        ({"states": ["queued"]}, ["other", "plain", "second"]),
        ({"states": ["done", "dead"]}, ["first", "done", "dead"]),
        ({"states": ["done", "done"]}, ["first", "done"]),
        ({"states": ["running"]}, []),
        ({"queues": ["a"]}, ["plain", "first", "dead"]),
        ({"queues": ["a", "b"], "states": ["queued"]}, ["other", "plain", "second"]),
        ({"queues": ["nothing"]}, []),
        ({"tags": [("batch", "7")]}, ["done", "dead"]),
        ({"tags": [("batch", "7"), ("x", "1")]}, ["dead"]),
        ({"tags": [("x", "1"), ("batch", "8")]}, []),
        ({"tags": [("batch", "7")], "states": ["done"]}, ["done"]),
        ({"tags": [("batch", "7")], "queues": ["a"]}, ["dead"]),
        ({"tags": [("batch", "")]}, []),
        ({"key": "k"}, ["second", "first"]),
        ({"key": "k", "states": ["done"]}, ["first"]),
        ({"key": "k", "queues": ["b"]}, ["second"]),
        ({"key": "k", "tags": [("batch", "7")]}, []),
        ({"key": "nothing"}, []),
    ],
)
def test_a_list_has_what_matches_everything_the_newest_first_and_no_more_than_asked(
    tx: Connection, found: dict[str, int], filters: dict[str, Any], names: list[str]
) -> None:
    expected = [found[name] for name in names]
    for limit in (1, 2, 100):
        assert read.find(tx, limit, **filters) == expected[:limit]


def test_jobs_come_in_the_order_asked_for_and_without_those_that_are_not_there(tx: Connection) -> None:
    for _ in range(1200):
        add(tx)
    asked = [1200, 3, 99_999, *range(1, 1100)]
    assert [job["id"] for job in read.jobs(tx, asked)] == [job for job in asked if job != 99_999]


def test_the_last_ten_dead_are_shown_the_newest_first(tx: Connection) -> None:
    jobs = []
    for number in range(limits.RECENT_DEAD + 3):
        jobs.append(add(tx, max_retries=0))
        take(tx)
        end(tx, jobs[-1], now=NOW + number)
    assert [job["id"] for job in read.recent_dead(tx)] == jobs[: -limits.RECENT_DEAD - 1 : -1]


def test_a_list_shows_the_names_of_the_environment_and_show_the_values(tx: Connection, database: Database) -> None:
    job = add(tx, env={b"TOKEN": b"secret", b"\xff": b"\xfe"})
    assert read.jobs(tx, [job])[0]["env"] == ["TOKEN", "\\xff"]
    assert "its value" not in repr(read.jobs(tx, [job]))
    assert read.show(tx, database, job)["job"]["env"] == {"TOKEN": "secret", "\\xff": "\\xfe"}
    refusal("NOT_FOUND", read.show, tx, database, 99)


def test_unknown_is_null_and_never_absent(tx: Connection) -> None:
    (job,) = read.jobs(tx, [add(tx)])
    unknown = [
        "key",
        "note",
        "cwd",
        "max_crashes",
        "started_at",
        "finished_at",
        "exit_code",
        "signal",
        "failure_reason",
    ]
    assert [job[name] for name in [*unknown, "error", "succeeded", "argv_b64"]] == [None] * (len(unknown) + 3)
    assert (job["terminal"], job["stopping"], job["tags"], job["env"]) == (False, False, {}, [])


# Draining


def settled(tx: Connection, *queues: str, now: int = NOW) -> bool:
    return drain.settled(tx, now, queues)


def test_an_empty_queue_has_settled(tx: Connection) -> None:
    assert settled(tx)
    assert settled(tx, "nothing")


@pytest.mark.parametrize(
    ("state", "over"),
    [("queued", False), ("running", False), ("failed", False), ("done", True), ("dead", True), ("canceled", True)],
)
def test_a_drain_waits_for_what_is_due_runs_or_will_be_tried_again(tx: Connection, state: str, over: bool) -> None:
    in_state(tx, state, queue="q")
    assert settled(tx) == over
    assert settled(tx, "q") == over
    assert settled(tx, "another")


def test_a_job_that_its_submitter_delayed_holds_no_drain_until_it_is_due(tx: Connection) -> None:
    job = add(tx, delay=5000)
    assert settled(tx, now=NOW + 4999)
    assert not settled(tx, now=NOW + 5000)
    take(tx, NOW + 5000)
    end(tx, job, "succeeded")
    assert settled(tx, now=NOW + 5000)


def test_a_retry_that_waits_holds_a_drain_though_it_is_not_due(tx: Connection) -> None:
    in_state(tx, "failed")
    assert claim.next_due(tx) == NOW + 2000
    assert not settled(tx, now=NOW)


@pytest.mark.parametrize("state", ["queued", "failed"])
def test_a_paused_queue_holds_no_drain(tx: Connection, state: str) -> None:
    in_state(tx, state, queue="q")
    set_queue(tx, "q", paused=True)
    assert settled(tx)
    set_queue(tx, "q", slots=1)
    assert not settled(tx)


def test_what_still_runs_in_a_paused_queue_holds_a_drain(tx: Connection) -> None:
    job = in_state(tx, "running", queue="q")
    set_queue(tx, "q", paused=True)
    assert not settled(tx)
    end(tx, job)
    assert settled(tx)


def test_one_queue_that_has_not_settled_is_enough(tx: Connection) -> None:
    in_state(tx, "done", queue="a")
    add(tx, queue="b", delay=5000)
    assert settled(tx, "a", "b")
    add(tx, queue="c")
    assert settled(tx, "a", "b")
    assert not settled(tx, "a", "c")
    assert not settled(tx)
