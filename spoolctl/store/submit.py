"""Puts jobs into the queue. Called by `add` and `run`, inside their transaction.

A key identifies a submission for as long as its job is kept: a caller that was killed before it
read the answer submits again and gets the same job, never a second one.
"""

from __future__ import annotations

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.states import QUEUED, TERMINAL
from spoolctl.store import events
from spoolctl.store.vector import pack, pack_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

# What decides whether two submissions under one key ask for the same execution.
PAYLOAD = (
    *("argv", "cwd", "env", "queue", "priority", "timeout", "max_retries", "max_crashes"),
    *("max_output", "overflow", "secret"),
)
FLAGS = {"overflow": "--on-overflow", "secret": "--secret-env", "max_output": "--max-output"}
COLUMNS = (*PAYLOAD, "state", "ready", "due_at", "first_due", "created_at", "key", "note")
INSERT = f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
BY_KEY = f"""
SELECT id, state, first_due, created_at, note, {', '.join(PAYLOAD)} FROM jobs WHERE key = ? ORDER BY id DESC LIMIT 1
"""
TAG = "INSERT INTO tags (name, value, job) VALUES (?, ?, ?)"
TAGS = "SELECT name, value FROM tags WHERE job = ?"


class Submission:
    """What is asked for. delay: milliseconds until it may run. at: the moment instead (ms since
    1970), or None. cwd: None is the worker's. max_crashes: None is unbounded. max_output: bytes, None
    is the queue's. secret: the packed names of variables that the worker must have."""

    cwd: bytes | None = None
    queue = limits.QUEUE_DEFAULT
    priority = 0
    timeout: int | float = limits.TIMEOUT_DEFAULT
    max_retries = limits.RETRIES_DEFAULT
    max_crashes: int | None = None
    max_output: int | None = None
    overflow: str | None = None
    secret: bytes | None = None
    delay = 0
    at: int | None = None
    key: str | None = None
    note: str | None = None

    def __init__(self, argv: list[bytes]) -> None:
        self.argv = argv
        self.env: dict[bytes, bytes] = {}
        self.tags: dict[str, str] = {}

    def payload(self) -> tuple[object, ...]:
        """The columns of PAYLOAD."""
        return (
            pack(self.argv),
            self.cwd,
            pack_env(self.env),
            self.queue,
            self.priority,
            self.timeout,
            self.max_retries,
            self.max_crashes,
            self.max_output,
            self.overflow,
            self.secret,
        )


class Answer:
    """What became of a submission. deduplicated: the job was there already, under its key."""

    def __init__(self, job: int, state: str, deduplicated: bool, warnings: list[str]) -> None:
        self.job, self.state, self.deduplicated, self.warnings = job, state, deduplicated, warnings


def submit(tx: Connection, now: int, wanted: Submission, anew_if_finished: bool = False) -> Answer:
    """The job of this submission: a new one, or the one that its key names.

    anew_if_finished: where that one is done, dead or canceled, make a new one.
    Raises Fail("KEY_CONFLICT") where the key's job executes something else.
    """
    if wanted.key is not None:
        row = tx.execute(BY_KEY, (wanted.key,)).fetchone()
        if row and not (anew_if_finished and row[1] in TERMINAL):
            return _same(tx, wanted, row)
    # A moment that has passed means now; it does not overtake what was submitted earlier.
    due = max(now, wanted.at if wanted.at is not None else now + wanted.delay)
    values = (*wanted.payload(), QUEUED, int(due <= now), due, due, now, wanted.key, wanted.note)
    job = tx.execute(INSERT, values).lastrowid
    assert job is not None
    if wanted.tags:
        tx.executemany(TAG, [(name, value, job) for name, value in wanted.tags.items()])
    events.record(tx, now, job, "added")
    return Answer(job, QUEUED, False, [])


def _same(tx: Connection, wanted: Submission, row: tuple[object, ...]) -> Answer:
    """The answer from the job that has the key already."""
    job, state, due, created, note = row[:5]
    assert isinstance(job, int)
    assert isinstance(created, int)
    assert isinstance(state, str)
    differs = [FLAGS.get(name, name) for name, old, new in zip(PAYLOAD, row[5:], wanted.payload()) if old != new]
    if differs:
        raise Fail(
            "KEY_CONFLICT",
            f"--key {wanted.key}: job {job} has it, with another {' and '.join(differs)}",
            "use another key, or submit the same again",
        )
    ignored = []
    if wanted.note is not None and wanted.note != note:
        ignored.append("note")
    if wanted.tags and wanted.tags != dict(tx.execute(TAGS, (job,)).fetchall()):
        ignored.append("tags")
    # As it was when this job was submitted; the same words later mean the same delay.
    if due != max(created, wanted.at if wanted.at is not None else created + wanted.delay):
        ignored.append("delay")
    return Answer(job, state, True, [f"job {job} keeps its own {name}" for name in ignored])
