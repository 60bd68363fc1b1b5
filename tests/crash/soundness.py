"""What every crash test checks after its kills, and the job that notices when two copies of it run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spoolctl.run.fence import live_markers
from spoolctl.store import invariants
from spoolctl.store.database import open_queue

if TYPE_CHECKING:
    from pathlib import Path

    from spoolctl.store.place import Place
    from tests.conftest import Spool

# It holds an exclusive lock for as long as any process of it lives, and fails loudly where another
# copy has it. `flock` (util-linux) takes the lock on descriptor 9, which its children inherit.
EXCLUSIVE = """
exec 9>lock.$SPOOLCTL_JOB_ID
flock -n 9 || { echo "$SPOOLCTL_JOB_ID" >>overlaps; exit 99; }
echo "start $SPOOLCTL_JOB_ID $SPOOLCTL_ATTEMPT" >>log
%s
echo "end $SPOOLCTL_JOB_ID $SPOOLCTL_ATTEMPT" >>log
"""


def check(spool: Spool) -> None:
    """The invariants hold, SQLite finds the file sound, no two copies of a job have met, and nothing
    of a settled attempt is alive."""
    check_at(spool.place, spool.folder)


def check_at(place: Place, folder: Path) -> None:
    """The same of a queue wherever it is. folder: where its jobs have left traces."""
    database = open_queue(place, read_only=True)
    try:
        with database.read() as tx:
            assert invariants.violations(tx) == []
            assert [row[0] for row in tx.execute("PRAGMA integrity_check")] == ["ok"]
            settled = invariants.settled_markers(tx)
    finally:
        database.close()
    alive = live_markers()
    assert [settled[marker] for marker in alive if marker in settled] == []
    assert not (folder / "overlaps").exists(), (folder / "overlaps").read_text()


def log(spool: Spool) -> list[str]:
    """What the jobs have written, line by line."""
    path = spool.folder / "log"
    return path.read_text().splitlines() if path.exists() else []
