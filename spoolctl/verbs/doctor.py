"""doctor: is this place fit, and is the queue healthy? It looks, and mends nothing."""

from __future__ import annotations

from spoolctl.language.spec import Flag, Verb
from spoolctl.run import checkup
from spoolctl.text import printable, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "doctor",
    "check that this place is fit and the queue healthy",
    group="look",
    details=(
        "Every check with its result and a remedy; nothing is changed. --deep reads the whole file: SQLite's own check,"
        " every rule that must hold between jobs, attempts, events and counts, and a search for processes that should"
        " be gone. Exit status 3 where a check fails."
    ),
    flags=(
        Flag("--deep", help="read everything; takes longer the larger the queue is"),
        Flag("--trust", help="what 'work --trust' accepts is not a failure"),
    ),
    examples=[("doctor", "before relying on a place"), ("doctor --deep --json", "after a crash, for a program")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """All checks, in the order of what they build on."""
    checks = checkup.examine(context, args.deep, args.trust)
    return {"ready": all(check["result"] != "failed" for check in checks), "checks": checks}


def text(data: dict[str, Any]) -> str:
    """A line a check."""
    rows = [
        [check["result"], check["check"], printable(": ".join(filter(None, (check["found"], check["remedy"]))))]
        for check in data["checks"]
    ]
    return table(["result", "check", "found"], rows)


def status(data: dict[str, Any]) -> int:
    """3 where a check failed."""
    return 0 if data["ready"] else 3
