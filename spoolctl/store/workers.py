"""The roll of workers: who serves what, with everything needed to tell later whether it lives.

A worker enters itself, beats, and leaves; a peer strikes out the dead, but never one that still
has jobs in hand: those go through `recover` first.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

FIELDS = (
    "name",
    "lock",
    "pid",
    "pid_start",
    "boot_id",
    "pid_ns",
    "host",
    "jobs",
    "queues",
    "started_at",
    "heartbeat_at",
)
ENTER = f"INSERT INTO workers ({', '.join(FIELDS)}) VALUES ({', '.join('?' * len(FIELDS))})"
BEAT = "UPDATE workers SET heartbeat_at = ? WHERE id = ?"
LEAVE = "DELETE FROM workers WHERE id = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE state = 'running' AND worker = ?)"
ALL_OF = f"SELECT id, {', '.join(FIELDS)} FROM workers"
ALL = f"{ALL_OF} ORDER BY id"
NAMED = f"{ALL_OF} WHERE name = ?"
IN_HAND = """
SELECT j.id, j.attempts, a.marker, a.pid, a.pid_start FROM jobs AS j
JOIN attempts AS a ON a.job = j.id AND a.number = j.attempts WHERE j.state = 'running' AND j.worker = ? ORDER BY j.id
"""
STOPS = "SELECT id, attempts, stop FROM jobs WHERE stop IS NOT NULL AND worker = ?"


class Worker:
    """One worker as the roll has it. id: its number there, None before it is entered. lock: the
    name of its file in `workers/`. pid_start, boot_id, pid_ns: None where the system tells none.
    queues: empty is every queue. Times are milliseconds since 1970."""

    def __init__(self, row: tuple[object, ...] | None = None) -> None:
        self.id = -1
        self.name = ""
        self.lock = ""
        self.pid = 0
        self.pid_start: int | None = None
        self.boot_id: str | None = None
        self.pid_ns: str | None = None
        self.host = ""
        self.jobs = 1
        self.queues: tuple[str, ...] = ()
        self.started_at = 0
        self.heartbeat_at = 0
        if row:
            self.__dict__.update(zip(("id", *FIELDS), row))
            self.queues = tuple(str(self.__dict__["queues"]).split())

    def row(self) -> tuple[object, ...]:
        """The values of FIELDS."""
        return tuple(" ".join(self.queues) if field == "queues" else getattr(self, field) for field in FIELDS)


class Held:
    """A running attempt as its worker's row leads to it. pid: None where no spawn was recorded."""

    def __init__(self, row: tuple[int, int, str, int | None, int | None]) -> None:
        self.job, self.attempt, self.marker, self.pid, self.pid_start = row


def enter(tx: Connection, worker: Worker) -> None:
    """Put a worker on the roll and give it its id."""
    number = tx.execute(ENTER, worker.row()).lastrowid
    assert number is not None
    worker.id = number


def beat(tx: Connection, now: int, worker: int) -> bool:
    """Note that `worker` was alive at `now`; False where it is not on the roll."""
    return tx.execute(BEAT, (now, worker)).rowcount == 1


def leave(tx: Connection, worker: int) -> bool:
    """Strike a worker out, unless jobs are still in its hand; whether it was struck out."""
    return tx.execute(LEAVE, (worker, worker)).rowcount == 1


def roll(tx: Connection) -> list[Worker]:
    """Every worker on the roll, the oldest first."""
    return [Worker(row) for row in tx.execute(ALL)]


def named(tx: Connection, name: str) -> list[Worker]:
    """The workers of that name: a live one at most, and dead ones not yet struck out."""
    return [Worker(row) for row in tx.execute(NAMED, (name,))]


def in_hand(tx: Connection, worker: int) -> list[Held]:
    """The running attempts of a worker."""
    return [Held(row) for row in tx.execute(IN_HAND, (worker,))]


def to_stop(tx: Connection, worker: int) -> list[tuple[int, int, str]]:
    """(job, attempt, 'cancel' or 'retry') of what somebody wants stopped in a worker's hand."""
    return tx.execute(STOPS, (worker,)).fetchall()


def holder(tx: Connection, job: int) -> tuple[Worker, Held] | None:
    """The worker that runs `job`, and the attempt; None where the job does not run."""
    row = tx.execute(f"{ALL_OF} WHERE id = (SELECT worker FROM jobs WHERE id = ?)", (job,)).fetchone()
    if row is None:
        return None
    worker = Worker(row)
    return next(((worker, held) for held in in_hand(tx, worker.id) if held.job == job), None)
