"""What a verb gets from outside: clock, environment, directory, and the queue they name.

Below the command line nothing asks the system for these by itself, so a test can pass its own.
"""

from __future__ import annotations

import os
import time

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.store import database
from spoolctl.store.place import absent, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spoolctl.store.database import Database
    from spoolctl.store.place import Place


HEARTBEAT = (limits.HEARTBEAT_INTERVAL, limits.HEARTBEAT_MIN, limits.HEARTBEAT_MAX)
REAP = (limits.REAP_MIN, limits.REAP_MAX)


class Clock:
    """The real clock."""

    def wall(self) -> int:
        """Milliseconds since 1970, as people know it; it may jump."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that only grow; for durations and deadlines of this process."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        time.sleep(max(0.0, seconds))


class Context:
    """db: the value of `--db`, None where it was not given. say: one line for people, on stderr.

    interactive: somebody watches stderr.
    """

    def __init__(
        self,
        db: str | None,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        interactive: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.db, self.environ, self.say, self.interactive = db, environ, say, interactive
        self.clock = clock or Clock()
        self.warnings: list[str] = []

    def cwd(self) -> str:
        """The directory in which the command was given. Raises Fail where it is gone."""
        try:
            return os.getcwd()
        except OSError as error:
            raise Fail("NO_ACCESS", f"the current directory: {error.strerror}", "change to another one") from error

    def place(self) -> Place:
        """The queue that the words, the environment and the directory name."""
        return find(self.db, self.environ, self.cwd)

    def open(self, *, create_missing: bool = False, read_only: bool = False, trust: bool = False) -> Database:
        """The queue. A reader where there is none gets an empty one and a warning.

        trust: make it even where the file system is a network's.
        """
        place = self.place()
        if read_only and absent(place.path):
            self.warnings.append(f"there is no queue at {place.path}")
        return database.open_queue(place, create_missing=create_missing, read_only=read_only, trust=trust)

    def heartbeat_interval(self) -> float:
        """Seconds between heartbeats."""
        return self._knob("SPOOLCTL_TEST_HEARTBEAT_INTERVAL", *HEARTBEAT)

    def reap_threshold(self) -> float:
        """Seconds until a heartbeat is stale; never under four heartbeats unless the knob says so."""
        least = max(4 * self.heartbeat_interval(), limits.REAP_THRESHOLD)
        return self._knob("SPOOLCTL_TEST_REAP_THRESHOLD", least, *REAP)

    def _knob(self, name: str, default: float, least: float, most: float) -> float:
        word = self.environ.get(name)
        if word is None:
            return default
        try:
            value = float(word)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise Fail("USAGE", f"{name} '{word}': it must be {least:g} to {most:g} seconds")
        return value
