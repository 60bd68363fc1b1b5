"""How facts become characters: times, durations, sizes, bytes that may be anything, tables.

Pure functions, used by every verb's `text()` and by the JSON rows. Nothing that a command line
or a note contains reaches a terminal raw: control characters and bytes that are not UTF-8 are
shown as escapes.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def printable(raw: bytes | str) -> str:
    r"""The text of `raw` with everything that a terminal could obey escaped (`\x1b`, `\n`, …)."""
    text = raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(char: str) -> str:
    # A surrogate stands for one undecodable byte (PEP 383): that byte is shown.
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def decode(raw: bytes) -> str:
    r"""`raw` as a JSON string: UTF-8, other bytes as `\xNN` (then `exact` has the truth)."""
    return raw.decode("utf-8", "backslashreplace")


def exact(parts: Sequence[bytes]) -> list[str] | None:
    """Base64 of each part where one of them is not UTF-8, else None: `decode` lost nothing."""
    try:
        for part in parts:
            part.decode("utf-8")
    except UnicodeDecodeError:
        from binascii import b2a_base64  # rare, and not worth every start

        return [b2a_base64(part, newline=False).decode("ascii") for part in parts]
    return None


SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")
# As a first word these would mean something to a shell.
RESERVED = frozenset(["case", "do", "done", "elif", "else", "esac", "fi", "for", "if", "in", "then", "until", "while"])


def command_line(argv: Sequence[bytes | str], width: int = 0) -> str:
    """`argv`, as bytes or as JSON has it, as one could type it into a shell, made printable; cut to
    `width` columns if given."""
    shown: list[str] = []
    for arg in argv:
        word = arg if isinstance(arg, str) else arg.decode("utf-8", "surrogateescape")
        if not word or not SAFE.issuperset(word) or (not shown and ("=" in word or word in RESERVED)):
            word = "'" + word.replace("'", "'\\''") + "'"
        shown.append(printable(word))
        if width and sum(map(len, shown)) > width:
            break
    return cut(" ".join(shown), width)


def cut(line: str, width: int) -> str:
    """`line`, or its beginning and an ellipsis where it is longer than `width` (0: no limit)."""
    return line if not width or len(line) <= width else line[: width - 1] + "…"


def moment(ms: int | None) -> str | None:
    """Milliseconds since 1970 as RFC 3339 in UTC with milliseconds; None stays None."""
    if ms is None:
        return None
    seconds, rest = divmod(ms, 1000)
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"
    except (OverflowError, ValueError, OSError):  # beyond what the C library can name
        return None


def short(moment: str | None) -> str:
    """A moment of a JSON row for people, to the second: `2027-01-31 08:00:00`; "" for None."""
    return (moment or "")[:19].replace("T", " ")


def duration(seconds: float) -> str:
    """Seconds for people: `0.31s`, `42s`, `3m05s`, `2h10m`, `4d03h`."""
    if seconds < 10:
        return f"{seconds:.2f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def size(count: int) -> str:
    """Bytes for people: `0 B`, `12 KiB`, `300 MiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns under their names; the last column is as wide as it is."""
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    return "".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths)), line[-1]]).rstrip() + "\n" for line in lines
    )
