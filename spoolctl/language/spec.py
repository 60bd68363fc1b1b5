"""How a verb describes itself. The parser, help, completion, `capabilities` and the conformance
tests all read these three small objects; nothing about a verb is written down twice.
"""

from __future__ import annotations

from spoolctl.language.values import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from spoolctl.language.values import Kind


class Flag:
    """One option. `names` as typed, the long one first.

    kind: what its value may be; None makes it a switch. many: it may be repeated, and the values
    are collected in order (otherwise a second one is a mistake). default: the value where it is
    not given, already parsed. excludes: names of flags that it cannot be combined with.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        kind: Kind | None = None,
        many: bool = False,
        default: Any = None,
        excludes: Sequence[str] = (),
    ) -> None:
        self.names, self.help, self.kind, self.many = names, help, kind, many
        self.default = default if kind else False
        self.excludes = tuple(excludes)
        self.attribute = names[0].lstrip("-").replace("-", "_")


class Argument:
    """What follows the flags. `command` takes every word from the first bare one or `--` on."""

    def __init__(self, name: str, kind: Kind | None, help: str, *, many: bool = False, required: bool = True) -> None:
        self.name, self.kind, self.help, self.many, self.required = name, kind, help, many, required

    @property
    def is_command(self) -> bool:
        """Its words belong to somebody else's command line and are not looked at."""
        return self.kind is None


class Verb:
    """One verb. summary: a line. details: further paragraphs. group: its heading in the overview.

    examples: (words after `spoolctl`, what they do). mutates: it changes the queue.
    creates: it makes the queue file where there is none.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        group: str,
        details: str = "",
        argument: Argument | None = None,
        flags: Sequence[Flag] = (),
        examples: Sequence[tuple[str, str]] = (),
        mutates: bool = False,
        creates: bool = False,
    ) -> None:
        self.name, self.summary, self.group, self.details = name, summary, group, details
        self.argument, self.flags, self.examples = argument, tuple(flags), tuple(examples)
        self.mutates, self.creates = mutates, creates

    def flag(self, name: str) -> Flag | None:
        """The flag of that name, common ones included; None where there is none."""
        return next((flag for flag in (*self.flags, *COMMON) if name in flag.names), None)

    def all_names(self) -> list[str]:
        """Every flag name that this verb knows, for suggestions and completion."""
        return [name for flag in (*self.flags, *COMMON) for name in flag.names]


# Understood before and after every verb.
COMMON = (
    Flag("--db", kind=Path(), help="the queue file (else $SPOOLCTL_DB, else the nearest .spoolctl/queue.db)"),
    Flag("--json", help="print one JSON object instead of text"),
    Flag("--help", "-h", help="explain the tool or the verb"),
    Flag("--version", help="print the version"),
)
