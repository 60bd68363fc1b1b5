"""The settings that are kept with a queue, and bind every worker. Called by `verbs/queue.py`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection
    from typing import Any

FIELDS = ("slots", "paused", "max_output", "overflow")
KNOWN = f"""
SELECT name, {', '.join(FIELDS)} FROM (SELECT queue AS name FROM counts WHERE n > 0 UNION SELECT name FROM queues)
LEFT JOIN queues USING (name) ORDER BY name
"""
MAKE = "INSERT INTO queues (name) VALUES (?) ON CONFLICT (name) DO NOTHING"
LIMIT = "UPDATE queues SET max_output = ? WHERE name = ?"
OVERFLOW = "UPDATE queues SET overflow = ? WHERE name = ? AND max_output IS NOT NULL"
UNLIMIT = "UPDATE queues SET max_output = NULL, overflow = NULL WHERE name = ?"


def limit_output(tx: Connection, queue: str, most: int | None) -> None:
    """From its next claim on, no job of the queue that has no limit of its own may write more.

    most: bytes of each stream, None is no limit.
    """
    tx.execute(MAKE, (queue,))
    tx.execute(*((LIMIT, (most, queue)) if most is not None else (UNLIMIT, (queue,))))


def choose_overflow(tx: Connection, queue: str, overflow: str) -> bool:
    """What becomes of those who write more: "kill" or "truncate". False where the queue has no limit."""
    return tx.execute(OVERFLOW, (overflow, queue)).rowcount == 1


def settings(tx: Connection) -> list[dict[str, Any]]:
    """Of every queue that has jobs or settings, by name."""
    found = []
    for name, slots, paused, most, overflow in tx.execute(KNOWN):
        how = None if most is None else overflow or "kill"
        limits = {"slots": slots, "paused": bool(paused), "max_output": most, "on_overflow": how}
        found.append({"queue": name, **limits})
    return found
