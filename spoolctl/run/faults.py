"""Fault points: places at which a worker kills itself when a test asks for it, and no-ops otherwise.

SPOOLCTL_TEST_DIE_AT=NAME or NAME:N: SIGKILL at the N-th time the point is passed. The crash tests
go through all of them; a place where a worker could die and that has no name here is not tested.
"""

from __future__ import annotations

import os
import signal

from spoolctl.errors import Fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE = "SPOOLCTL_TEST_DIE_AT"
POINTS = {
    "entered": "on the roll, nothing claimed",
    "claiming": "inside the transaction, after the claim and before COMMIT",
    "claimed": "after COMMIT of the claim, before the spawn",
    "spawned": "the command runs, its process is not recorded",
    "recorded": "the command runs, its process is recorded",
    "ended": "the command's end is known, nothing is recorded",
    "settling": "inside the transaction, after the result and before COMMIT",
    "settled": "after COMMIT of the result",
    "fenced": "a dead peer's processes are proved gone, its job is not yet back",
    "leaving": "everything done, still on the roll",
}


def arm(environ: Mapping[str, str]) -> Callable[[str], None]:
    """What to call at each point. Raises Fail where the variable names none."""
    word = environ.get(VARIABLE)
    if word is None:
        return lambda name: None
    wanted, _, count = word.partition(":")
    if wanted not in POINTS or not (count or "1").isdigit():
        raise Fail("USAGE", f"{VARIABLE} '{word}': it must be one of {', '.join(POINTS)}, or one with :N")
    left = int(count or 1)

    def point(name: str) -> None:
        nonlocal left
        if name == wanted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return point
