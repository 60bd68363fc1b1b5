"""Cases that were once wrong, each with the right value."""

from __future__ import annotations

import subprocess
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spoolctl import cli
from spoolctl.errors import Fail
from spoolctl.language.parse import parse
from spoolctl.language.values import Moment
from spoolctl.store import claim, control, creation
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Submission, submit
from spoolctl.text import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from sqlite3 import Connection

NOW = 1_800_000_000_000


@pytest.fixture
def tx() -> Iterator[Connection]:
    connection = creation.fresh(":memory:")
    connection.execute("BEGIN")
    yield connection
    connection.close()


def wanted(**details: Any) -> Submission:
    submission = Submission([b"x"])
    submission.__dict__.update(details)
    return submission


@pytest.mark.parametrize("word", ["2027-01-31T08:00+01:60", "2027-01-31T08:00+24:00", "2027-01-31T24:00"])
def test_an_hour_or_a_zone_that_no_clock_shows_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="not a date"):
        Moment().parse(word)


@given(st.datetimes(datetime(2026, 1, 1), datetime(2200, 1, 1)))
def test_a_moment_is_exact_to_the_millisecond(when: datetime) -> None:
    expected = (when - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
    assert Moment().parse(when.isoformat() + "Z") == expected


def test_a_local_time_that_the_clock_skips_is_the_same_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        assert Moment().parse("2027-03-28T02:30") == Moment().parse("2027-03-28T01:30Z")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_order_of_env_makes_no_other_job_of_a_key(tx: Connection) -> None:
    submit(tx, NOW, wanted(key="k", env={b"A": b"1", b"B": b"2"}))
    assert submit(tx, NOW, wanted(key="k", env={b"B": b"2", b"A": b"1"})).deduplicated


def test_the_same_delay_later_is_the_same_delay(tx: Connection) -> None:
    submit(tx, NOW, wanted(key="k", delay=60_000))
    assert submit(tx, NOW + 5000, wanted(key="k", delay=60_000)).warnings == []


def test_another_delay_is_told(tx: Connection) -> None:
    submit(tx, NOW, wanted(key="k", delay=60_000))
    assert submit(tx, NOW + 5000, wanted(key="k")).warnings == ["job 1 keeps its own delay"]


def test_the_same_moment_is_the_same_also_after_a_retry(tx: Connection) -> None:
    submit(tx, NOW, wanted(key="k", at=NOW + 60_000))
    control.cancel(tx, NOW, 1, False)
    control.retry(tx, NOW + 1, 1, False)
    assert submit(tx, NOW + 5000, wanted(key="k", at=NOW + 60_000)).warnings == []


def test_a_job_that_is_queued_again_has_not_failed(tx: Connection) -> None:
    submit(tx, NOW, wanted())
    claim.claim(tx, NOW, (1, "w"), (), 1)
    control.retry(tx, NOW, 1, True)
    settle(tx, NOW, 1, 1, 1, Outcome("canceled", "canceled"))
    assert tx.execute("SELECT failure_reason, exit_code, finished_at FROM jobs").fetchone() == (None, None, None)


def test_priority_holds_among_a_thousand_that_fall_due_together(tx: Connection) -> None:
    for _ in range(1000):
        submit(tx, NOW, wanted(delay=1000))
    submit(tx, NOW, wanted(delay=1001, priority=9))
    assert claim.claim(tx, NOW + 5000, (1, "w"), (), 1)[0].job == 1001


@pytest.mark.parametrize("word", [b"A=1", b"if", b"while"])
def test_a_command_line_is_shown_so_that_a_shell_runs_that_command(word: bytes) -> None:
    done = subprocess.run(["sh", "-c", command_line([word, b"x"])], capture_output=True, check=False)
    assert (done.returncode, word in done.stderr) == (127, True)


def test_half_a_surrogate_pair_is_no_command() -> None:
    with pytest.raises(Fail, match="UTF-8"):
        parse(["add", "--", "\ud800"], cli.describe, cli.suggest)
