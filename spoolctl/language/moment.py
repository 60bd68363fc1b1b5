"""A date and time as typed to milliseconds since 1970; the same on every Python. Used by `values.Moment`."""

from __future__ import annotations

from datetime import datetime


def milliseconds(word: str) -> int:
    """What `word` names, in this machine's local time where it has no zone. ValueError, OverflowError."""
    when = datetime.fromisoformat(same_on_every_python(word))
    # Milliseconds apart: as a float of seconds some would come out one short.
    return int(when.replace(microsecond=0).timestamp()) * 1000 + when.microsecond // 1000


def same_on_every_python(word: str) -> str:
    """`word` in the form that `datetime.fromisoformat` takes from Python 3.7 on: before 3.11 it
    knows neither `Z` nor a fraction of other than 3 or 6 digits. Stricter than 3.11 elsewhere."""
    date, clock = word[:10], word[11:]
    if not word.isascii() or not _has_form(date, "0000-00-00"):
        raise ValueError
    if len(word) == 10:
        return date
    zone = ""
    if clock[-1:] in ("Z", "z"):
        clock, zone = clock[:-1], "+00:00"
    elif clock[-6:-5] in ("+", "-"):
        clock, zone = clock[:-6], clock[-6:]
    clock, dot, fraction = clock.partition(".")
    whole_clock = _has_form(clock, "00:00:00") and ((fraction.isdigit() and len(fraction) <= 30) or not dot)
    if word[10] not in "T " or not (whole_clock or (_has_form(clock, "00:00") and not dot)):
        raise ValueError
    if clock[:2] > "23" or (zone and not (_has_form(zone[1:], "00:00") and zone[1:3] <= "23" and zone[4:] <= "59")):
        raise ValueError
    return f"{date}T{clock}" + (f".{fraction[:6]:0<6}" if dot else "") + zone


def _has_form(word: str, form: str) -> bool:
    """Whether `word` has a digit where `form` has a 0, and the same character elsewhere."""
    return len(word) == len(form) and all(c.isdigit() if f == "0" else c == f for c, f in zip(word, form))
