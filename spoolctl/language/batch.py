"""JSON Lines to values: one object a line, the long flag names as keys, the flags' own kinds as judges.

What `--timeout` refuses, `"timeout"` refuses, with the same words. Called by `add --batch`.
"""

from __future__ import annotations

import json

from spoolctl.errors import Fail
from spoolctl.language.parse import Args, value_of
from spoolctl.language.values import Pair, raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, BinaryIO

    from spoolctl.language.spec import Flag

DECODE = json.JSONDecoder().raw_decode  # `json.loads` would guess the encoding of each line
FORM = 'give an object a line, like {"argv": ["make", "test"]}'
ARGV = "argv must be a list of strings that begins with a program"
LINE_MAX = 16 << 20  # bytes; a longer line is no job but a mistake


def read(stream: BinaryIO, flags: Sequence[Flag], defaults: Args) -> Iterator[tuple[int, Args]]:
    """(line number, values) of each line that is not blank.

    flags: what may be set. defaults: the values of what a line does not set. Raises
    Fail("USAGE") that names the line. Holds one line at a time.
    """
    keys = {flag.attribute: flag for flag in flags}
    keys["tags"] = keys.pop("tag")  # repeated on a command line, one object in JSON
    base = defaults.__dict__
    number = 0
    while True:
        line = stream.readline(LINE_MAX + 1)
        number += 1
        if not line:
            return
        if not line.isspace():
            args = Args.__new__(Args)
            args.__dict__ = base.copy()
            try:
                _fill(args, _object(line), keys)
            except Fail as fail:
                raise Fail(fail.code, f"--batch line {number}: {fail.message}", fail.hint) from None
            yield number, args


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_MAX:
        raise Fail("USAGE", "it is too long", f"a line has {LINE_MAX} bytes at the most")
    try:
        text = line.decode("utf-8").strip(" \t\r\n")
        found, end = DECODE(text)
        if end != len(text):
            raise ValueError(f"there is more behind its end: column {end + 1}")
    except (ValueError, RecursionError) as error:
        raise Fail("USAGE", f"it is not JSON: {error}", FORM) from None
    if not isinstance(found, dict):
        raise Fail("USAGE", "it is not an object", FORM)
    return found


def _fill(args: Args, line: dict[str, Any], keys: dict[str, Flag]) -> None:
    """Set what the line sets."""
    for key, value in line.items():
        if key == "argv":
            args.command = _argv(value)
        elif key not in keys:
            raise Fail("USAGE", f"there is no key '{key}'", f"known are argv, {', '.join(sorted(keys))}")
        elif value is not None:  # null is "not given"
            flag = keys[key]
            assert flag.kind is not None
            parsed = _values(flag, key, value) if flag.many else value_of(flag.kind, _word(key, value), key)
            setattr(args, flag.attribute, parsed)


def _argv(value: Any) -> list[bytes]:
    if not isinstance(value, list) or not value or not value[0]:
        raise Fail("USAGE", ARGV)
    try:
        words = [word.encode() for word in value]
    except AttributeError:  # a number, say
        raise Fail("USAGE", ARGV) from None
    except UnicodeEncodeError:
        words = _odd_bytes(value)
    if b"\0" in b"".join(words):
        raise Fail("USAGE", "argv contains a NUL byte", "no system call can pass it on")
    return words


def _odd_bytes(value: list[str]) -> list[bytes]:
    r"""Words in which `\udcNN` stands for the byte NN, as in what Python reads from a command line."""
    try:
        return [raw(word) for word in value]
    except ValueError as error:
        raise Fail("USAGE", f"argv: {error}") from None


def _values(flag: Flag, key: str, value: Any) -> list[Any]:
    """An object of strings, or a list of `K=V`."""
    assert flag.kind is not None
    if isinstance(value, dict) and isinstance(flag.kind, Pair):
        value = [f"{name}={_word(key, one)}" for name, one in value.items()]
    if not isinstance(value, list):
        either = "an object, or " if isinstance(flag.kind, Pair) else ""
        raise Fail("USAGE", f"{key} must be {either}a list of {flag.kind.word}")
    return [value_of(flag.kind, _word(key, one), key) for one in value]


def _word(key: str, value: Any) -> str:
    """The value as one would type it."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise Fail("USAGE", f"{key} must be a string or a number")
