"""Makes certain that a COMMIT which failed has not happened. Loaded only then.

Its pages may stand in the WAL as a whole, only not synced: this process sees them undone, yet whoever
recovers the WAL once everybody is dead would find them, and bring back what was refused. So they are
written over.
"""

from __future__ import annotations

from spoolctl.store.driver import sqlite3

# Not synced: the disk does not sync anyway, and what counts is that the pages are other ones. Without a
# checkpoint, which unsynced could take earlier transactions from the WAL before they are safe in the file.
WITHOUT_SYNC = ("PRAGMA wal_autocheckpoint = 0", "PRAGMA synchronous = OFF")
AS_BEFORE = ("PRAGMA synchronous = FULL", "PRAGMA wal_autocheckpoint = 1000")


def bury(connection: sqlite3.Connection) -> bool:
    """Write over the pages of the COMMIT that has failed; False where it cannot be done, and the outcome
    stays unknown."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        for pragma in WITHOUT_SYNC:
            connection.execute(pragma)
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version = {version}")  # writes its page, whatever it was
        connection.execute("COMMIT")
        return True
    except sqlite3.Error:
        return False
    finally:
        _put_right(connection)


def _put_right(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        for pragma in AS_BEFORE:
            connection.execute(pragma)
    except sqlite3.Error:
        pass
