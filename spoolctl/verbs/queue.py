"""queue: the settings that are kept with a queue."""

from __future__ import annotations

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.language.spec import Argument, Flag, Verb
from spoolctl.language.values import Name, Size
from spoolctl.store import queues
from spoolctl.text import size, table
from spoolctl.verbs.add import ON_OVERFLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args


class Limit(Size):
    """A size, or no limit: None."""

    word = "SIZE|none"

    def __init__(self, least: int, most: int) -> None:
        super().__init__(least, most)
        self.says += ", or none"
        self.good = (*self.good, "none")

    def parse(self, word: str) -> int | None:  # type: ignore[override]
        return None if word == "none" else super().parse(word)


VERB = Verb(
    "queue",
    "show or change the settings of a queue",
    group="control",
    details=(
        "They are kept in the queue file and bind every worker from its next claim on. Without a flag they are shown:"
        " of NAME, or of every queue."
    ),
    argument=Argument("NAME", Name(), "the name of a queue", required=False),
    flags=(
        Flag(
            "--max-output",
            kind=Limit(limits.OUTPUT_MIN, limits.MAX_INT),
            help="how much a job without a limit of its own may write to stdout, and to stderr",
        ),
        ON_OVERFLOW,
    ),
    examples=[
        ("queue", "the settings of every queue"),
        ("queue builds --max-output 100M --on-overflow truncate", "keep the logs of all builds short"),
    ],
    mutates=True,
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """Change what is given, then show."""
    limits_given, changes = "--max-output" in args.given, bool(args.given & {"--max-output", "--on-overflow"})
    if changes and not args.words:
        raise Fail("USAGE", "a setting needs NAME", "say of which queue: spoolctl queue NAME --max-output SIZE")
    database = context.open(read_only=not changes)
    if changes:
        with database.write() as tx:
            if limits_given:
                queues.limit_output(tx, args.words[0], args.max_output)
            if args.on_overflow is not None and not queues.choose_overflow(tx, args.words[0], args.on_overflow):
                raise Fail("USAGE", "--on-overflow needs --max-output", f"queue {args.words[0]} has no limit")
    with database.read() as tx:
        found = queues.settings(tx)
    database.close()
    wanted = [queue for queue in found if not args.words or queue["queue"] == args.words[0]]
    if args.words and not wanted:
        raise Fail("NOT_FOUND", f"there is no queue {args.words[0]}", "spoolctl queue shows those that there are")
    return {"queues": wanted}


def text(data: dict[str, Any]) -> str:
    """A line a queue."""
    if not data["queues"]:
        return ""
    rows = [
        [
            queue["queue"],
            "paused" if queue["paused"] else "open",
            "-" if queue["slots"] is None else str(queue["slots"]),
            "-" if queue["max_output"] is None else f"{size(queue['max_output'])}, then {queue['on_overflow']}",
        ]
        for queue in data["queues"]
    ]
    return table(["queue", "state", "slots", "max output"], rows)
