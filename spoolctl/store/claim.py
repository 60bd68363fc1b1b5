"""Gives jobs to a worker: nobody else can get the same one.

All inside the one BEGIN IMMEDIATE of the worker's turn: claimants take their turns at SQLite's
write lock, so choosing, marking and recording cannot interleave. The order is priority (highest
first), due time, number, over all the queues that the worker serves.
"""

from __future__ import annotations

import os

from spoolctl.limits import BACKOFF_BASE, backoff
from spoolctl.states import MOVES
from spoolctl.store import events
from spoolctl.store.vector import unpack, unpack_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from sqlite3 import Connection
    from typing import Any

DUE = "SELECT 1 FROM jobs WHERE ready = 0 AND due_at <= ? LIMIT 1"
# A bounded step, so that a million jobs due at one moment do not hold the write lock for long; of
# more than that the later ones wait for the next turn, whatever their priority.
PROMOTE = """
UPDATE jobs SET ready = 1 WHERE id IN (SELECT id FROM jobs WHERE ready = 0 AND due_at <= ? ORDER BY due_at LIMIT 10000)
"""
# Due and not yet promoted: with a worker alive there are few, else it stops at the first thousand.
DUE_QUEUES = """
SELECT DISTINCT queue FROM (SELECT queue FROM jobs WHERE ready = 0 AND due_at <= ? ORDER BY due_at LIMIT 1000) AS d
WHERE NOT EXISTS (SELECT 1 FROM queues WHERE name = d.queue AND paused)
"""
NEXT_DUE = "SELECT MIN(due_at) FROM jobs WHERE ready = 0"
WAITING_QUEUES = """
SELECT c.queue, q.slots, (SELECT n FROM counts WHERE queue = c.queue AND state = 'running')
FROM (SELECT DISTINCT queue FROM counts WHERE state IN ('queued', 'failed') AND n > 0) AS c
LEFT JOIN queues AS q ON q.name = c.queue
WHERE q.paused IS NOT 1
"""
HEAD = """
SELECT -priority, due_at, id, state, attempts + 1, argv, cwd, env, timeout, key, secret,
  COALESCE(max_output, (SELECT max_output FROM queues WHERE name = queue)),
  CASE WHEN max_output IS NULL THEN (SELECT overflow FROM queues WHERE name = queue) ELSE overflow END
FROM jobs WHERE ready = 1 AND queue = ? ORDER BY priority DESC, due_at, id LIMIT 1
"""
BACKOFFS = "SELECT id, failures + crashes, due_at FROM jobs WHERE ready = 0 AND state = 'failed' AND due_at > ?"
SHORTEN = "UPDATE jobs SET due_at = ? WHERE id = ?"
MARK = """
UPDATE jobs SET state = ?, ready = NULL, worker = ?, attempts = ?, started_at = ?,
  exit_code = NULL, signal = NULL, failure_reason = NULL, error = NULL
WHERE id = ?
"""
ATTEMPT = "INSERT INTO attempts (job, number, state, worker, marker, started_at) VALUES (?, ?, 'running', ?, ?, ?)"
SPAWNED = "UPDATE attempts SET pid = ?, pid_start = ? WHERE job = ? AND number = ?"

LAST = (float("inf"),)  # after every head


class Claimed:
    """A job in hand, and the attempt that was begun for it. secret: names of variables that must be in
    the worker's environment. max_output: bytes that each stream may have, None is no limit; overflow:
    what to do with more, "kill" or "truncate"."""

    def __init__(self, job: int, attempt: int, queue: str) -> None:
        self.job, self.attempt, self.queue = job, attempt, queue
        self.marker = os.urandom(12).hex()
        self.argv: list[bytes] = []
        self.env: dict[bytes, bytes] = {}
        self.cwd: bytes | None = None
        self.timeout: int | float = 0
        self.key: str | None = None
        self.secret: list[bytes] = []
        self.max_output: int | None = None
        self.overflow = "kill"


def claim(
    tx: Connection, now: int, worker: tuple[int, str], queues: Collection[str], room: int, slots: int | None = None
) -> list[Claimed]:
    """Up to `room` jobs, in claim order, marked as running by `worker` (its id and name).

    queues: names to serve; empty is every queue. slots: at most this many running jobs a queue,
    over all workers; the queue's own limit binds as well. None is no limit of the caller's.
    """
    if tx.execute(DUE, (now,)).fetchone():
        tx.execute(PROMOTE, (now,))
    free = _open_queues(tx, queues, slots)
    heads = {queue: tx.execute(HEAD, (queue,)).fetchone() for queue in free}
    claimed: list[Claimed] = []
    while heads and len(claimed) < room:
        queue = min(heads, key=lambda name: heads[name][:3] if heads[name] else LAST)
        if heads[queue] is None:
            break
        claimed.append(_mark(tx, now, worker, queue, heads[queue][2:]))
        free[queue] -= 1
        if len(claimed) < room:
            heads[queue] = tx.execute(HEAD, (queue,)).fetchone() if free[queue] > 0 else None
    return claimed


def anything(tx: Connection, now: int, queues: Collection[str], slots: int | None = None) -> bool:
    """Whether `claim` would find or promote something; a read, for those who wait."""
    if tx.execute(DUE, (now,)).fetchone():
        return True
    return any(tx.execute(HEAD, (queue,)).fetchone() for queue in _open_queues(tx, queues, slots))


def due_queues(tx: Connection, now: int) -> list[str]:
    """The queues that are not paused and in which a job is due, whatever their slots allow."""
    found = {queue for (queue,) in tx.execute(DUE_QUEUES, (now,))}
    found |= {queue for queue, _, _ in tx.execute(WAITING_QUEUES) if tx.execute(HEAD, (queue,)).fetchone()}
    return sorted(found)


def _open_queues(tx: Connection, queues: Collection[str], slots: int | None) -> dict[str, int]:
    """The queues in which something waits and that may run more, and how many more."""
    free = {}
    for queue, limit, running in tx.execute(WAITING_QUEUES):
        bounds = [bound for bound in (slots, limit) if bound is not None]
        left = min(bounds) - (running or 0) if bounds else 1 << 30
        if left > 0 and (not queues or queue in queues):
            free[queue] = left
    return free


def _mark(tx: Connection, now: int, worker: tuple[int, str], queue: str, row: tuple[Any, ...]) -> Claimed:
    job, state, attempt, argv, cwd, env, timeout, key, secret, max_output, overflow = row
    claimed = Claimed(job, attempt, queue)
    claimed.argv, claimed.cwd, claimed.env = unpack(argv), cwd, unpack_env(env)
    claimed.timeout, claimed.key, claimed.secret = timeout, key, unpack(secret)
    claimed.max_output, claimed.overflow = max_output, overflow or "kill"
    tx.execute(MARK, (MOVES["claim"][state], worker[0], attempt, now, job))
    tx.execute(ATTEMPT, (job, attempt, worker[1], claimed.marker, now))
    events.record(tx, now, job, "claimed", attempt, worker[1])
    return claimed


def record_spawn(tx: Connection, job: int, attempt: int, pid: int, pid_start: int | None) -> None:
    """Note the leader of the attempt's process group. pid_start: the kernel's start time of it."""
    tx.execute(SPAWNED, (pid, pid_start, job, attempt))


def shorten_backoffs(tx: Connection, now: int) -> int:
    """Let no retry wait longer from now on than its whole backoff, which it would after the clock
    was set back; how many did."""
    waiting = tx.execute(BACKOFFS, (now + 1000 * BACKOFF_BASE,)).fetchall()
    latest = [(now + 1000 * backoff(unsuccessful), job, due) for job, unsuccessful, due in waiting]
    late = [(moment, job) for moment, job, due in latest if due > moment]
    tx.executemany(SHORTEN, late)
    return len(late)


def next_due(tx: Connection) -> int | None:
    """When the earliest of the jobs that wait for their time falls due; None where none waits."""
    due: int | None = tx.execute(NEXT_DUE).fetchone()[0]
    return due
