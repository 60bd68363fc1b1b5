"""capabilities: the tool describes itself to programs."""

from __future__ import annotations

from spoolctl.language.spec import Verb
from spoolctl.surface.capabilities import capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "capabilities",
    "describe verbs, flags, limits and codes to programs",
    group="self",
    examples=[("capabilities --json", "everything that a program may hold on to")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """The contract; it needs no queue."""
    return capabilities()


def text(data: dict[str, Any]) -> str:
    """The short of it."""
    lines = [f"spoolctl {data['version']}, schema version {data['schema_version']}\n"]
    lines += [f"{verb['usage'][len('usage: ') :]}\n" for verb in data["verbs"].values()]
    return "".join([*lines, "--json has flags, bounds, defaults, codes, states, events, limits and variables\n"])
