"""What a worker does when the queue refuses: it says so once, keeps what is to be recorded, comes
back soon, and says when it is over. It leaves only where no waiting helps. Called by `run/loop.py`.
"""

from __future__ import annotations

from spoolctl.run.process import readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from spoolctl.errors import Fail

RETRY_AFTER = 0.2  # seconds
LOCKED_FOR = 2.0  # seconds; so long a wait among many workers is nothing to tell
DAMAGE_MAX = 3
# Not the machine refuses: the file is none that this program understands, or none at all.
FATAL = ("INTERNAL", "NOT_A_QUEUE", "NEWER_QUEUE", "NOT_FOUND", "QUEUE_GONE")


class Trouble:
    """code: of what the queue refuses at present, None while all is well. fail: what it said last.
    since: when that began; quiet_until: no transaction before; both in monotonic seconds. unsure: a
    transaction failed, so what the queue has may not be what the worker holds; the outcome of a
    COMMIT that failed is unknown until the queue is read anew."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.code: str | None = None
        self.fail: Fail | None = None
        self.since = float("inf")
        self.quiet_until = 0.0
        self.told = False
        self.unsure = False
        self.damage = 0  # how often the queue was found damaged: parts of it may still be written

    def note(self, fail: Fail, now: float) -> None:
        """The queue refused. Without the write lock (LOCKED) nothing had begun, so nothing is unsure; and as
        SQLite has waited for it already, the next turn may come at once."""
        locked = fail.code == "LOCKED"
        self.quiet_until = now if locked else now + RETRY_AFTER
        self.unsure = self.unsure or not locked
        self.fail = fail
        self.damage += fail.code == "DAMAGED"
        if self.code is None:
            self.since = now
        if fail.code != self.code:
            self.code, self.told = fail.code, False
        if not self.told and (not locked or now - self.since >= LOCKED_FOR):
            self.told = True
            self.say(f"{fail.message}; waiting: nothing is lost, and nothing new is started until it is over")

    def hopeless(self, path: str) -> bool:
        """Whether the damage is in the file itself: it has stayed, and nothing keeps it from being read. To
        SQLite a read that fails looks the same, and that may pass."""
        return self.damage >= DAMAGE_MAX and readable(path)

    def over(self) -> None:
        """Something has been written."""
        if self.code and self.told:
            self.say("the queue can be written again")
        self.code, self.since, self.told = None, float("inf"), False
