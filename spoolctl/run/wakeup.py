"""What a waiting process sleeps on: its children, the doorbell, stop signals, and a deadline.

Signal handlers only note; each signal also puts a byte into a pipe that `sleep` polls
(signal.set_wakeup_fd), so that one which comes just before the sleep still ends it.
"""

from __future__ import annotations

import os
import select
import signal

from spoolctl.run.doorbell import SIGNAL, STOP_SIGNAL, Listener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from spoolctl.store.place import Place

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wakeup:
    """The one place where a worker sleeps. stops: how many stop signals have come.

    rung: the doorbell has been heard; whoever acts on it sets it back.
    """

    def __init__(self, place: Place) -> None:
        self.stops = 0
        self.rung = False
        self._reader, writer = os.pipe()
        self._writer = writer
        for descriptor in (self._reader, writer):
            os.set_blocking(descriptor, False)
        # A full pipe has enough in it to wake us.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        for number in STOPS:
            # What nohup, or a shell with `&`, has set to be ignored stays ignored.
            if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)
        # Also undoes an inherited SIG_IGN, under which the kernel would throw exit statuses away.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listener = Listener(place, stops=True)
        self._deaf = False
        if self._listener.descriptor is not None:
            self._poll.register(self._listener.descriptor, select.POLLIN)
        # Whoever started us may have had them blocked, and the mask is inherited. Last: now that each
        # has its handler, one that has been waiting kills nobody.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOPS, signal.SIGCHLD, SIGNAL, STOP_SIGNAL})

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def sleep(self, seconds: float, busy: bool = False) -> None:
        """Wait for a signal or a ring, but not longer than `seconds`.

        busy: nobody's news is wanted but that of a stop. Sixteen workers would else wake each other with
        every result. What is rung meanwhile stays pending, and is heard by the next sleep that is not busy.
        """
        if busy != self._deaf and self._listener.hears_stops:
            signal.pthread_sigmask(signal.SIG_BLOCK if busy else signal.SIG_UNBLOCK, {SIGNAL})
            self._deaf = busy
        self._poll.poll(max(0, min(int(seconds * 1000) + 1, 2**31 - 1)) if seconds > 0 else 0)
        try:
            told = os.read(self._reader, 65536)
            self.rung = SIGNAL in told or STOP_SIGNAL in told or self.rung
        except BlockingIOError:
            pass
        self.rung = self._listener.heard() or self.rung

    def close(self) -> None:
        """Hear nothing more. The handlers stay: a late signal must not kill an orderly exit."""
        self._listener.close()
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)
