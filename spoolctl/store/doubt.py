"""Finds out what became of a submission whose COMMIT failed. Loaded only then.

The transaction may be in the WAL as a whole, only not synced: this process sees it undone, and one
that recovers the WAL after a crash would see it done. So the file is opened anew and asked under the
write lock, and a commit of our own settles it: it syncs what is there, or overwrites what is not.
"""

from __future__ import annotations

from spoolctl.errors import Fail
from spoolctl.store.database import open_queue
from spoolctl.store.submit import PAYLOAD, submit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.database import Database
    from spoolctl.store.submit import Answer, Submission

FOUND = f"SELECT created_at, {', '.join(PAYLOAD)} FROM jobs WHERE id = ?"
# Changes a page whatever was there, so that the COMMIT has something to sync.
SETTLED = "INSERT OR REPLACE INTO meta VALUES ('doubt_settled_at', ?)"


def resolve(
    database: Database, now: int, wanted: Submission, anew_if_finished: bool, told: Answer, doubt: Fail
) -> Answer:
    """The job of this submission: the one that `told` names where it is there, else a new one.

    now: when that was created, ms since 1970. Raises `doubt` where the queue refuses again: then
    what became of it is still not known.
    """
    database.close()
    try:
        database = open_queue(database.place)
        with database.write() as tx:
            if tx.execute(FOUND, (told.job,)).fetchone() == (now, *wanted.payload()):
                tx.execute(SETTLED, (now,))
            else:
                told = submit(tx, now, wanted, anew_if_finished)
        database.close()
    except Fail:
        raise doubt from None
    return told
