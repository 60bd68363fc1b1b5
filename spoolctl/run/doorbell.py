"""The doorbell: whoever changes what others wait for rings it after COMMIT; listeners look again.

One system call to ring (`run/bell.py`), a broadcast, no list of listeners. The kernel tells: on Linux
by `F_NOTIFY` on the bell's folder (fcntl(2)), on macOS by a kqueue on the bell (kqueue(2)). Where it
offers neither, and always as a net below, the listener's own slow poll finds out. Watching the WAL
instead would be wrong: it changes before the commit can be seen. A ring is a hint, never a promise:
after it, query.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time

from spoolctl.run.bell import FILE, last_rung, ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.context import Clock
    from spoolctl.store.place import Place

# The signal that F_NOTIFY sends of itself. Not a real-time one: those queue up, ring by ring, and where
# the user's limit of queued signals is reached the kernel sends SIGIO anyway (fcntl(2), F_SETSIG).
SIGNAL = signal.SIGIO
# Of the bell that is rung for stops only. Ignored by default, and nothing else here uses it.
STOP_SIGNAL = signal.SIGURG
EVENTS = getattr(fcntl, "DN_ATTRIB", 0) | getattr(fcntl, "DN_CREATE", 0) | getattr(fcntl, "DN_MULTISHOT", 0)

PAUSE = 0.02  # seconds between two rings of one worker
COARSE = 0.005  # seconds by which a file's time may be off


class Ringer:
    """Rings for a worker: at once where it seldom has news, but not with every result of many. Each
    ring wakes everybody, and sixteen busy workers would do little else. What somebody else's ring has
    told already is not rung again, so each news is out within two pauses.

    next: when `ring` has something to do; monotonic seconds.
    """

    def __init__(self, place: Place, clock: Clock) -> None:
        self.place, self.clock = place, clock
        self.first: float | None = None  # wall time of the first change that nobody has been told of
        self.last = 0.0  # and of the last one
        self.quiet_until = 0.0

    @property
    def next(self) -> float:
        return self.quiet_until if self.first is not None else float("inf")

    def changed(self) -> None:
        """Something was committed that others may wait for."""
        self.last = self.clock.wall() / 1000
        if self.first is None:
            self.first = self.last

    def ring(self) -> None:
        """Tell it, where it is time to."""
        now = self.clock.monotonic()
        if self.first is None or now < self.quiet_until:
            return
        self.quiet_until = now + PAUSE
        told = last_rung(self.place)
        # By somebody else, and with it all that came before; a time to come is of a clock set back.
        if self.first + COARSE < told <= self.clock.wall() / 1000 + COARSE:
            self.first = self.last if self.last > told - COARSE else None
        else:
            self.first = None
            ring(self.place)


class Listener:
    """Hears the bell. On Linux each ring puts a byte into this process's wake-up descriptor
    (`signal.set_wakeup_fd`), which the caller has set and sleeps on; on macOS `descriptor` becomes
    readable, which the caller polls as well (None elsewhere).

    stops: listen to the bell of the stops as well; `hears_stops` tells whether that can be done. Then
    one who is busy may block SIGNAL, and is not woken by what others do.
    """

    def __init__(self, place: Place, stops: bool = False) -> None:
        self.watched: list[int] = []
        self.descriptor: int | None = None
        self.hears_stops = False
        try:
            if hasattr(fcntl, "F_NOTIFY"):
                self._by_signal(place.bell, SIGNAL)
            elif sys.platform == "darwin":
                self._by_queue(place)
        except (OSError, ValueError):
            self.close()  # a file system without it: the poll is left
            return
        if stops and hasattr(fcntl, "F_NOTIFY"):
            try:
                self._by_signal(place.stop_bell, STOP_SIGNAL)
                self.hears_stops = True
            except OSError:
                pass

    def _by_signal(self, folder: str, number: int) -> None:
        watched = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        self.watched.append(watched)
        signal.signal(number, lambda *_: None)  # before the first ring: the default of SIGIO would kill
        fcntl.fcntl(watched, fcntl.F_SETSIG, number)
        fcntl.fcntl(watched, fcntl.F_NOTIFY, EVENTS)

    if sys.platform == "darwin":

        def _by_queue(self, place: Place) -> None:
            ring(place)  # so that there is a file to watch
            watched = os.open(os.path.join(place.bell, FILE), os.O_RDONLY | os.O_CLOEXEC)
            self.watched.append(watched)
            self.queue = select.kqueue()
            flags = select.KQ_EV_ADD | select.KQ_EV_CLEAR
            event = select.kevent(watched, select.KQ_FILTER_VNODE, flags, select.KQ_NOTE_ATTRIB)
            self.queue.control([event], 0, 0)
            self.descriptor = self.queue.fileno()

        def heard(self, seconds: float = 0.0) -> bool:
            """Whether it rang since the last time, or does within `seconds`."""
            return self.descriptor is not None and bool(self.queue.control(None, 1, seconds))

    else:

        def heard(self, seconds: float = 0.0) -> bool:
            """On Linux the signal tells."""
            return False

    def close(self) -> None:
        """Hear nothing more."""
        for descriptor in self.watched:
            os.close(descriptor)
        self.watched = []


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
        elif self.listener.descriptor is not None:
            self.listener.heard(max(0.0, seconds))
        else:
            time.sleep(max(0.0, seconds))
