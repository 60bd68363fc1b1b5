"""What a worker says of a queue that refuses, and how soon it comes back."""

from __future__ import annotations

import pytest

from spoolctl.errors import Fail
from spoolctl.run import trouble
from spoolctl.run.trouble import DAMAGE_MAX, LOCKED_FOR, RETRY_AFTER, Trouble

LOCKED = Fail("LOCKED", "q: database is locked")
FULL = Fail("NO_SPACE", "q: the disk is full")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def one(said: list[str]) -> Trouble:
    return Trouble(said.append)


def test_a_short_wait_for_the_lock_among_many_workers_is_not_told(one: Trouble, said: list[str]) -> None:
    """Nor is its end; and the worker tries again at once, as SQLite has waited already."""
    for moment in (10.0, 10.5, 10.0 + LOCKED_FOR - 0.01):
        one.note(LOCKED, moment)
        assert one.quiet_until == moment
    one.over()
    one.note(LOCKED, 20.0)
    assert said == []
    assert not one.unsure


def test_a_long_wait_for_the_lock_is_told_once_and_so_is_its_end(one: Trouble, said: list[str]) -> None:
    for moment in (10.0, 10.0 + LOCKED_FOR, 11.0 + LOCKED_FOR):
        one.note(LOCKED, moment)
    assert len(said) == 1
    assert "database is locked; waiting" in said[0]
    one.over()
    assert said[1:] == ["the queue can be written again"]


def test_what_is_not_the_lock_is_told_at_once_and_leaves_a_doubt(one: Trouble, said: list[str]) -> None:
    one.note(LOCKED, 10.0)
    one.note(FULL, 10.1)
    one.note(FULL, 10.4)
    assert len(said) == 1
    assert "the disk is full; waiting" in said[0]
    assert (one.quiet_until, one.since, one.unsure) == (10.4 + RETRY_AFTER, 10.0, True)


def test_damage_is_hopeless_only_where_it_stays_and_the_file_can_be_read(
    one: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that fails looks like damage to SQLite, and a disk may come back."""
    can_be_read = [False]
    monkeypatch.setattr(trouble, "readable", lambda path: can_be_read[0])
    for count in range(DAMAGE_MAX):
        assert not one.hopeless("q"), count
        one.note(Fail("DAMAGED", "q: malformed"), 1.0)
        one.over()  # parts of it can still be written
    assert not one.hopeless("q")
    can_be_read[0] = True
    assert one.hopeless("q")
