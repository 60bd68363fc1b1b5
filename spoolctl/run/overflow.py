"""Keeps what a command writes within --max-output. Called by `run/attempt.py`, several times a second.

Nothing sits between a command and its files, so its output is looked at while it grows: it may be
larger than the limit until the next look. "kill" ends the command, and the first part of its output
stays. "truncate" lets it run and cuts out the middle: the head and the newest part stay, and a line
between them says how much is missing.
"""

from __future__ import annotations

import os

from spoolctl.limits import OUTPUT_TAIL

LOOK = 0.05  # seconds between two looks
MARK = 110  # bytes of the line between head and tail
ROUNDS = 5  # how often a writer is chased


class Overflow:
    """The output of one attempt. output: the path of its files, less the ending. limit: bytes that each
    of them may have. keep: whether the command goes on when it has written more."""

    def __init__(self, output: str, limit: int, keep: bool) -> None:
        self.streams = [Stream(output + ending, limit) for ending in (".stdout", ".stderr")]
        self.keep = keep

    def look(self) -> str | None:
        """Cut where that is allowed; else what is too much, None where nothing is."""
        for stream in self.streams:
            if stream.too_long() and not self.keep:
                return stream.told()
            if stream.too_long():
                stream.cut(stream.tail // 2)  # with room for some more before the next cut
        return None

    def end(self) -> str | None:
        """The same when nothing writes any more: each file gets the size that it may have."""
        over = [stream for stream in self.streams if stream.too_long()]
        told = None if self.keep or not over else over[0].told()
        for stream in over:
            if self.keep:
                stream.cut(stream.tail)
            else:
                stream.shorten()
        return told


class Stream:
    """One output file. cut_out: bytes that have been left out so far. tail: bytes of the end that are
    kept at the most."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.cut_out = 0
        self.tail = min(OUTPUT_TAIL, limit // 2)
        self.head = limit - self.tail - MARK
        self.marked = 0  # bytes of the mark that follows the head

    def size(self) -> int:
        """Bytes; 0 where the file is gone."""
        try:
            return os.lstat(self.path).st_size
        except OSError:
            return 0

    def too_long(self) -> bool:
        return self.size() > self.limit

    def told(self) -> str:
        """What is too much, for the record."""
        return f"it wrote {self.size()} bytes to {self.path[-6:]}, more than its limit of {self.limit}"

    def shorten(self) -> None:
        """Leave the first bytes."""
        file = self._open()
        try:
            self.cut_out = os.fstat(file).st_size - self.limit
            os.ftruncate(file, self.limit)
        finally:
            os.close(file)

    def _open(self) -> int:
        # Not for appending: on Linux pwrite(2) would then append, wherever it was told to write. And not
        # through a link: a command may have put one there.
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def cut(self, keep: int) -> None:
        """Leave the head, a mark, and the last `keep` bytes or somewhat more.

        The command goes on appending: what it writes while this is done is taken along, but for the
        microseconds between the last look and the cut.
        """
        file = self._open()
        try:
            first = here = self.head + MARK
            end = os.fstat(file).st_size
            start = end - keep
            for _ in range(ROUNDS):
                if end - start > keep:  # it writes faster than it is copied: only the newest counts
                    here, start = first, end - keep
                piece = os.pread(file, end - start, start)
                write_at(file, piece, here)
                start, here = start + len(piece), here + len(piece)
                end = os.fstat(file).st_size
                if start >= end:
                    break
            self.cut_out += end - self.head - self.marked - (here - first)
            self.marked = MARK
            write_at(file, mark(self.cut_out, self.limit), self.head)
            os.ftruncate(file, here)
        finally:
            os.close(file)


def mark(cut_out: int, limit: int) -> bytes:
    """The line that stands in the place of what was cut out: MARK bytes, whatever the numbers."""
    said = b"\n[spoolctl: at least %d bytes are left out here; the limit is %d]" % (cut_out, limit)
    return said.ljust(MARK - 1) + b"\n"


def write_at(file: int, data: bytes, offset: int) -> None:
    """All of it: pwrite(2) may write less."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
