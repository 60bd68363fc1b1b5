"""backup: a consistent copy of the queue, made while workers run."""

from __future__ import annotations

import os

from spoolctl.errors import Fail
from spoolctl.language.spec import Argument, Flag, Verb
from spoolctl.language.values import Path
from spoolctl.store import backup
from spoolctl.store.place import Place, absent
from spoolctl.text import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "backup",
    "copy the queue as it is at one moment",
    group="control",
    details=(
        "Workers go on meanwhile. The copy is a queue like any other: 'spoolctl --db FILE list' reads it. What runs"
        " while it is made waits again in the copy. To go back to it, stop the workers and put it in the place of the"
        " queue; docs/backup.md tells how."
    ),
    argument=Argument("FILE", Path(), "the copy; there must be nothing of that name"),
    flags=(Flag("--with-output", help="also copy what the jobs have written, to FILE.d"),),
    examples=[("backup /mnt/safe/queue-2027-01-31.db --with-output", "everything")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """All of it or nothing."""
    place = context.place()
    if absent(place.path):
        raise Fail("NOT_FOUND", f"there is no queue at {place.path}", "name one with --db")
    path = args.words[0]
    target = Place(path if os.path.isabs(path) else os.path.normpath(os.path.join(context.cwd(), path)))
    database = context.open(read_only=True)
    copied = backup.make_copy(database, target.path, context.clock.wall(), args.with_output)
    database.close()
    return {
        "path": target.path,
        "bytes": os.path.getsize(target.path),
        "put_back": copied.put_back,
        "output_files": copied.files,
        "output_bytes": copied.size,
    }


def text(data: dict[str, Any]) -> str:
    """What has been copied."""
    parts = [f"{data['path']}: {size(data['bytes'])}"]
    if data["output_files"] is not None:
        parts.append(f"{data['output_files']} output files of {size(data['output_bytes'])}")
    if data["put_back"]:
        parts.append(f"{data['put_back']} running jobs wait again in it")
    return "; ".join(parts) + "\n"
