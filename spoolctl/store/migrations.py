"""Brings the file of an older spoolctl to the newest shape, one transaction a version.

`STEPS[n]` are the statements from version n-1 to n. Step 1 is the first published shape, frozen
here by copy once version 2 exists; until then it is the newest. Called by `database.open_queue`
of a verb that writes, and by `database.create` for a new file.
"""

from __future__ import annotations

from spoolctl.store import schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

STEPS: dict[int, tuple[str, ...]] = {1: schema.EVERYTHING}


def migrate(connection: Connection, newest: int) -> None:
    """Bring the file to version `newest`. Safe against peers that do the same at the same time:
    the version is read again under the write lock."""
    while version(connection) < newest:
        connection.execute("BEGIN IMMEDIATE")
        try:
            step = version(connection) + 1
            if step <= newest:
                for statement in STEPS[step]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {step}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def version(connection: Connection) -> int:
    """The version of the file's shape, 0 for a file that has none."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found
