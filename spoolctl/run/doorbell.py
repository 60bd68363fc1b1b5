"""The doorbell: whoever changes what others wait for rings it after COMMIT; listeners look again.

One system call to ring, a broadcast, no list of listeners. On Linux the kernel tells through
`F_NOTIFY` on the bell's folder (fcntl(2)); elsewhere, and always as a net below, the listener's
own slow poll finds out. Watching the WAL instead would be wrong: it
changes before the commit can be seen. A ring is a hint, never a promise: after it, query.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.place import Place

# The signal that F_NOTIFY sends of itself. Not a real-time one: those queue up, ring by ring, and where
# the user's limit of queued signals is reached the kernel sends SIGIO anyway (fcntl(2), F_SETSIG).
SIGNAL = signal.SIGIO


class Listener:
    """Hears the bell: each ring puts a byte into this process's wake-up descriptor
    (`signal.set_wakeup_fd`), which the caller has set and sleeps on."""

    def __init__(self, place: Place) -> None:
        self.folder = -1
        if not hasattr(fcntl, "F_NOTIFY"):
            return
        try:
            self.folder = os.open(place.bell, os.O_RDONLY | os.O_CLOEXEC)
            signal.signal(SIGNAL, lambda *_: None)
            fcntl.fcntl(self.folder, fcntl.F_NOTIFY, fcntl.DN_ATTRIB | fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
        except (OSError, ValueError):
            self.close()  # a file system without it: the poll is left

    def close(self) -> None:
        """Hear nothing more."""
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1


class Ear:
    """The doorbell for a process that does nothing but wait: `listen`, then query again.

    A ring between a query and the next `listen` is not lost: the signal stays pending.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.able = hasattr(signal, "sigtimedwait") and hasattr(fcntl, "F_NOTIFY")

    def __enter__(self) -> Ear:
        if self.able:
            signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
        self.listener = Listener(self.place)
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        if self.able:
            while signal.sigtimedwait({SIGNAL}, 0):
                pass  # one that is still pending would be delivered by the unblocking
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})

    def listen(self, seconds: float) -> None:
        """Wait for a ring, but not longer than `seconds`."""
        if self.able:
            signal.sigtimedwait({SIGNAL}, max(0.0, seconds))
        else:
            time.sleep(max(0.0, seconds))
