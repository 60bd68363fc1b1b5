"""Everything that is only looked at. No statement here walks over all jobs: counts are kept sums,
lists go down an index and stop.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from spoolctl import limits
from spoolctl.states import DONE, JOB_STATES, RUNNING, TERMINAL
from spoolctl.store import events
from spoolctl.store.control import not_found
from spoolctl.store.vector import unpack, unpack_env
from spoolctl.text import decode, exact, moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from sqlite3 import Connection
    from typing import Any

    from spoolctl.store.database import Database

COUNTS = "SELECT queue, state, n FROM counts WHERE n > 0 ORDER BY queue"
RECENT_DEAD = "SELECT id FROM jobs WHERE state = 'dead' ORDER BY finished_at DESC LIMIT ?"
SETTINGS = "SELECT name, slots, paused FROM queues"
JOB_COLUMNS = (
    *("id", "argv", "state", "queue", "priority", "key", "note", "cwd", "env", "timeout", "max_retries"),
    *("max_crashes", "failures", "crashes", "attempts", "created_at", "due_at", "started_at", "finished_at"),
    *("exit_code", "signal", "failure_reason", "error", "stop", "max_output", "overflow", "secret"),
)
JOBS = f"SELECT {', '.join(JOB_COLUMNS)} FROM jobs WHERE id IN "
TAGS = "SELECT name, value FROM tags WHERE job = ? ORDER BY name, value"
NEWEST = "SELECT id FROM jobs ORDER BY id DESC LIMIT ?"
OF_LANE = "SELECT id FROM jobs WHERE queue = ? AND state = ? AND state <> 'running' ORDER BY id DESC LIMIT ?"
RUNNING_IN = "SELECT id FROM jobs WHERE state = 'running' AND queue = ? ORDER BY id DESC LIMIT ?"
OF_KEY = "SELECT id FROM jobs WHERE key = ? ORDER BY id DESC"
OF_TAG = "SELECT job FROM tags WHERE name = ? AND value = ? ORDER BY job DESC"
LANE = "SELECT queue, state FROM jobs WHERE id = ?"
ATTEMPT_COLUMNS = (
    *("number", "state", "worker", "pid", "started_at", "finished_at", "seconds", "user_seconds", "system_seconds"),
    *("peak_memory", "exit_code", "signal", "failure_reason", "error", "stdout_bytes", "stderr_bytes"),
    *("stdout_cut", "stderr_cut"),
)
ATTEMPTS = f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM attempts WHERE job = ? ORDER BY number"


def counts(tx: Connection) -> dict[str, dict[str, int]]:
    """Jobs by queue and state; every state is named, queues without jobs are not."""
    found: dict[str, dict[str, int]] = {}
    for queue, state, n in tx.execute(COUNTS):
        found.setdefault(queue, dict.fromkeys(JOB_STATES, 0))[state] = n
    return found


def settings(tx: Connection) -> dict[str, tuple[int | None, bool]]:
    """(slots, paused) of the queues that have settings."""
    return {name: (slots, bool(paused)) for name, slots, paused in tx.execute(SETTINGS)}


def recent_dead(tx: Connection) -> list[dict[str, Any]]:
    """The jobs that died last, the newest first."""
    return jobs(tx, [row[0] for row in tx.execute(RECENT_DEAD, (limits.RECENT_DEAD,))])


def jobs(tx: Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Those jobs as programs see them, in the order of `ids`. env: names only."""
    found: dict[int, dict[str, Any]] = {}
    for start in range(0, len(ids), 500):  # SQLite 3.31 takes 999 parameters
        some = ids[start : start + 500]
        for row in tx.execute(f"{JOBS} ({', '.join('?' * len(some))})", some).fetchall():
            found[row[0]] = _job(tx, dict(zip(JOB_COLUMNS, row)))
    return [found[job] for job in ids if job in found]


def _job(tx: Connection, row: dict[str, Any]) -> dict[str, Any]:
    argv, env, cwd, state = unpack(row["argv"]), unpack_env(row["env"]), row["cwd"], row["state"]
    return {
        "id": row["id"],
        "argv": [decode(arg) for arg in argv],
        "argv_b64": exact(argv),
        "state": state,
        "queue": row["queue"],
        "priority": row["priority"],
        "key": row["key"],
        "tags": dict(tx.execute(TAGS, (row["id"],)).fetchall()),
        "note": row["note"],
        "cwd": None if cwd is None else decode(cwd),
        "cwd_b64": None if cwd is None else exact([cwd]),
        "env": [decode(name) for name in env],
        "secret_env": [decode(name) for name in unpack(row["secret"])],
        **{name: row[name] for name in ("timeout", "max_retries", "max_crashes", "failures", "crashes", "attempts")},
        "max_output": row["max_output"],
        "on_overflow": row["overflow"] or ("kill" if row["max_output"] is not None else None),
        "created_at": moment(row["created_at"]),
        "due_at": moment(row["due_at"]),
        "started_at": moment(row["started_at"]),
        "finished_at": moment(row["finished_at"]),
        **{name: row[name] for name in ("exit_code", "signal", "failure_reason", "error")},
        "stopping": row["stop"] is not None,
        "terminal": state in TERMINAL,
        "succeeded": state == DONE if state in TERMINAL else None,
    }


def find(
    tx: Connection,
    limit: int,
    states: Sequence[str] = (),
    queues: Sequence[str] = (),
    tags: Sequence[tuple[str, str]] = (),
    key: str | None = None,
) -> list[int]:
    """The newest `limit` jobs that match everything given, the newest first."""
    if key is None and not tags and not states and not queues:
        return [row[0] for row in tx.execute(NEWEST, (limit,))]
    if key is None and not tags:
        return _newest_of_lanes(tx, limit, states, queues)
    source = tx.execute(OF_KEY, (key,)) if key is not None else tx.execute(OF_TAG, tags[0])
    found: list[int] = []
    for (job,) in source:
        if len(found) == limit:
            break
        if _matches(tx, job, states, queues, tags, key):
            found.append(job)
    return found


def _newest_of_lanes(tx: Connection, limit: int, states: Sequence[str], queues: Sequence[str]) -> list[int]:
    """Merged from the newest of each (queue, state) that has any: each comes out of one index in order."""
    found: list[int] = []
    for queue, state, _ in tx.execute(COUNTS).fetchall():
        if (not states or state in states) and (not queues or queue in queues):
            lane = (RUNNING_IN, (queue, limit)) if state == RUNNING else (OF_LANE, (queue, state, limit))
            found += [row[0] for row in tx.execute(*lane)]
    return sorted(found, reverse=True)[:limit]


def _matches(
    tx: Connection,
    job: int,
    states: Sequence[str],
    queues: Sequence[str],
    tags: Sequence[tuple[str, str]],
    key: str | None,
) -> bool:
    queue, state = tx.execute(LANE, (job,)).fetchone()
    if (states and state not in states) or (queues and queue not in queues):
        return False
    has = set(tx.execute(TAGS, (job,)).fetchall())
    return all(tag in has for tag in tags)


def show(tx: Connection, database: Database, job: int) -> dict[str, Any]:
    """Everything about one job; its environment with values. Raises Fail("NOT_FOUND")."""
    found = jobs(tx, [job])
    if not found:
        raise not_found(job)
    shown = found[0]
    env = unpack_env(tx.execute("SELECT env FROM jobs WHERE id = ?", (job,)).fetchone()[0])
    shown["env"] = {decode(name): decode(value) for name, value in env.items()}
    return {"job": shown, "attempts": attempts(tx, database, job), "events": history(tx, job)}


def attempts(tx: Connection, database: Database, job: int) -> list[dict[str, Any]]:
    """The executions of a job, the first one first, with where their output is."""
    found = []
    for row in tx.execute(ATTEMPTS, (job,)):
        attempt = dict(zip(ATTEMPT_COLUMNS, row))
        ran = attempt["exit_code"] is not None or attempt["signal"] is not None
        stem = database.place.output(database.queue_id, job, attempt["number"])
        found.append(
            {
                "attempt": attempt.pop("number"),
                **{name: attempt[name] for name in ("state", "worker", "pid")},
                "started_at": moment(attempt["started_at"]),
                "finished_at": moment(attempt["finished_at"]),
                **{name: attempt[name] for name in ("seconds", "user_seconds", "system_seconds")},
                "peak_memory_bytes": attempt["peak_memory"],
                **{name: attempt[name] for name in ("exit_code", "signal", "failure_reason", "error")},
                **{
                    name: {
                        **output_file(f"{stem}.{name}", attempt[f"{name}_bytes"], ran),
                        "cut": attempt[f"{name}_cut"],
                    }
                    for name in ("stdout", "stderr")
                },
            }
        )
    return found


def output_file(path: str, recorded: int | None, ran: bool) -> dict[str, Any]:
    """One output file: its size now, and whether it is missing though it should be there.

    recorded: its size at the end. ran: the command has ended, so without a size it was gone by then.
    """
    missing = bool(recorded) or (ran and recorded is None)
    try:
        found = os.lstat(path)
        if S_ISREG(found.st_mode):
            return {"path": path, "bytes": found.st_size, "missing": False}
        missing = True
    except (FileNotFoundError, NotADirectoryError):
        pass  # nothing was written, or it is too early to know: then no file is no loss
    except OSError:
        missing = False  # it may be there, and not for us to see
    return {"path": path, "bytes": None if recorded else recorded, "missing": missing}


def history(tx: Connection, job: int) -> list[dict[str, Any]]:
    """The job's lines of the ledger."""
    names = ("seq", "at", "event", "attempt", "worker", "detail")
    return [{**dict(zip(names, row)), "at": moment(row[1])} for row in events.of_job(tx, job)]
