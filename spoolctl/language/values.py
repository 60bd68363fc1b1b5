"""The kinds of values: each parses a word, describes itself, and names good and bad examples.

`parse` takes the word as typed (undecodable bytes as surrogates, PEP 383) and returns the value,
or raises ValueError with the reason. Help, `capabilities`, completion and the conformance tests
read the same object, so that what is told and what is enforced cannot differ. `bad` and `good`
are examples for the tests.
"""

from __future__ import annotations

from os import fsdecode

from spoolctl import limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Kind:
    """One kind of value. `word` stands for it in usage lines, `says` tells its form and range."""

    word = "VALUE"
    says = ""
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def parse(self, word: str) -> Any:
        """The value of `word`; ValueError with the reason where it is none."""
        raise NotImplementedError

    def bounds(self) -> dict[str, Any]:
        """What `capabilities` publishes about the range."""
        return {}


class Text(Kind):
    """Any text without NUL, up to `most` bytes in UTF-8."""

    def __init__(self, most: int, word: str = "TEXT", least: int = 0) -> None:
        self.most, self.least, self.word = most, least, word
        self.says = f"text of {least} to {most} bytes"
        self.good = ("x", "a b", "ä", "x" * most)
        self.bad = ("x" * (most + 1), *([""] if least else []))

    def parse(self, word: str) -> str:
        no_nul(word)
        length = len(raw(word))
        if not self.least <= length <= self.most:
            raise ValueError(f"it has {length} bytes")
        return decodable(word)

    def bounds(self) -> dict[str, Any]:
        return {"min_bytes": self.least, "max_bytes": self.most}


class Command(Kind):
    """A shell command line of any length."""

    word = "STRING"
    says = "a shell command that is not empty"
    good = ("echo $HOME && date", "-x")
    bad = ("", "  ")

    def parse(self, word: str) -> bytes:
        no_nul(word)
        if not word.strip():
            raise ValueError("it is empty")
        return raw(word)


class Name(Kind):
    """The name of a queue or a worker."""

    word = "NAME"
    says = f"1 to {limits.NAME_MAX} letters, digits, '.', '_' or '-', the first a letter or digit"
    good = ("default", "gpu-0", "a.b_c", "7")
    bad = ("", "-x", ".x", "a b", "ü", "x" * (limits.NAME_MAX + 1), "a/b")

    def parse(self, word: str) -> str:
        rest = word.replace(".", "").replace("_", "").replace("-", "")
        if not (word.isascii() and rest.isalnum() and word[0].isalnum() and len(word) <= limits.NAME_MAX):
            raise ValueError("it is not a name")
        return word

    def bounds(self) -> dict[str, Any]:
        return {"max_bytes": limits.NAME_MAX, "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"}


class Integer(Kind):
    """A whole number from `least` to `most`."""

    def __init__(self, least: int, most: int, word: str = "N") -> None:
        self.least, self.most, self.word = least, most, word
        self.says = f"a whole number from {least} to {most}"
        self.good = (str(least), str(most))
        self.bad = (str(least - 1), str(most + 1), "", "x", "1.5", "1e3", "0x10", "1_000", "٣", "9" * 5000)

    def parse(self, word: str) -> int:
        value = whole(word)
        if not self.least <= value <= self.most:
            raise ValueError("it is out of range")
        return value

    def bounds(self) -> dict[str, Any]:
        return {"min": self.least, "max": self.most}


class Duration(Kind):
    """`<number>[s|m|h|d]`: seconds, as an int where they are whole, else as a float."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most, self.word = least, most, "SECONDS"
        self.says = f"a duration from {least} to {most} seconds, like 90, 1.5, 30s, 10m, 2h or 7d"
        self.good = (str(least), str(most), "1.5", "1s", "1m", "0.5m")
        self.bad = ("", "s", "x", "1w", "1 m", "-1", "nan", "inf", "1e3", "1.2.3", ".", str(most + 1), "9" * 5000)

    def parse(self, word: str) -> int | float:
        number, unit = (word[:-1], word[-1]) if word[-1:] in UNITS else (word, "s")
        before, dot, after = number.partition(".")
        if not digits(before[1:] if before[:1] == "-" else before) or (dot and not digits(after)):
            raise ValueError("it is not a duration")
        value = float(number) * UNITS[unit] if dot else int(number) * UNITS[unit]
        value = int(value) if value == int(value) else value
        if not self.least <= value <= self.most:
            raise ValueError("it is out of range")
        return value

    def bounds(self) -> dict[str, Any]:
        return {"min": self.least, "max": self.most, "unit": "seconds"}


class Size(Kind):
    """`<number>[K|M|G|T]`: bytes, in steps of 1024."""

    word = "SIZE"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.says = f"a number of bytes from {least} to {most}, like 65536, 64K, 10M or 2G"
        self.good = (str(least), str(most), "2K", "2k")
        self.bad = ("", "K", "x", "-1", "1.5M", "1MB", "1 M", "1e6", str(least - 1), str(most + 1), "9" * 5000)

    def parse(self, word: str) -> int:
        power = "KMGT".find(word[-1:].upper()) + 1 if word else 0
        number = word[:-1] if power else word
        if not digits(number):
            raise ValueError("it is not a size")
        value = int(number) << 10 * power
        if not self.least <= value <= self.most:
            raise ValueError("it is out of range")
        return value

    def bounds(self) -> dict[str, Any]:
        return {"min": self.least, "max": self.most, "unit": "bytes"}


class Moment(Kind):
    """A date and time; milliseconds since 1970."""

    word = "TIME"
    says = "a date, or a date and time, like 2027-01-31, 2027-01-31T08:00 or 2027-01-31T08:00:00Z"
    says += " (without Z or +01:00: this machine's local time)"
    good = ("2027-01-31", "2027-01-31T08:00", "2027-01-31 08:00:01", "2027-01-31T08:00:01.5+01:00", "2027-01-31T08:00Z")
    # A bare number is refused: 20270101 as a second of 1970 would run at once.
    bad = ("", "20270101", "1798761600", "now", "2027-13-01", "2027-01-31T25:00", "2027-01-31T08:00:00 Z", "08:00")

    def parse(self, word: str) -> int:
        from spoolctl.language.moment import milliseconds  # only a time needs it, and datetime is slow to load

        try:
            return milliseconds(word)
        except (ValueError, OverflowError):
            raise ValueError("it is not a date and time") from None


class Pair(Kind):
    """`KEY=VALUE`, split at the first `=`; both as bytes."""

    def __init__(self, key_max: int, value_max: int, word: str = "KEY=VALUE") -> None:
        self.key_max, self.value_max, self.word = key_max, value_max, word
        self.says = f"{word}, the first part 1 to {key_max} and the second 0 to {value_max} bytes"
        self.good = ("A=1", "A=", "A=b=c", "x" * key_max + "=1", "A=" + "x" * value_max)
        self.bad = ("", "A", "=1", "x" * (key_max + 1) + "=1", "A=" + "x" * (value_max + 1))

    def parse(self, word: str) -> tuple[bytes, bytes]:
        no_nul(word)
        key, sign, value = raw(word).partition(b"=")
        if not sign:
            raise ValueError("it has no '='")
        if not 1 <= len(key) <= self.key_max:
            raise ValueError(f"the part before '=' has {len(key)} bytes")
        if len(value) > self.value_max:
            raise ValueError(f"the part after '=' has {len(value)} bytes")
        return key, value

    def bounds(self) -> dict[str, Any]:
        return {"max_key_bytes": self.key_max, "max_value_bytes": self.value_max}


class Variable(Kind):
    """The name of an environment variable, as bytes."""

    word = "NAME"

    def __init__(self, most: int) -> None:
        self.most = most
        self.says = f"the name of a variable, 1 to {most} bytes without '='"
        self.good = ("PATH", "a.b", "x" * most)
        self.bad = ("", "A=1", "=", "x" * (most + 1))

    def parse(self, word: str) -> bytes:
        no_nul(word)
        name = raw(word)
        if b"=" in name:
            raise ValueError("its value comes from the worker's environment")
        if not 1 <= len(name) <= self.most:
            raise ValueError(f"it has {len(name)} bytes")
        return name

    def bounds(self) -> dict[str, Any]:
        return {"max_bytes": self.most}


class Tag(Pair):
    """A `--tag K=V`; both as text."""

    def parse(self, word: str) -> tuple[str, str]:  # type: ignore[override]
        key, value = super().parse(word)
        return decodable(key.decode("utf-8", "surrogateescape")), decodable(value.decode("utf-8", "surrogateescape"))


class Path(Kind):
    """A path as the system's calls take it; it need not exist."""

    word = "PATH"
    says = "a path that is not empty"
    good = (".", "/tmp", "a b/c?")
    bad = ("",)

    def parse(self, word: str) -> str:
        no_nul(word)
        if not word:
            raise ValueError("it is empty")
        return fsdecode(raw(word))


class Choice(Kind):
    """One word of a closed list."""

    def __init__(self, choices: tuple[str, ...], word: str) -> None:
        self.choices, self.word = choices, word
        self.says = "one of " + ", ".join(choices)
        self.good = choices
        self.bad = ("", "x", choices[0].upper())

    def parse(self, word: str) -> str:
        if word not in self.choices:
            raise ValueError("there is no such choice")
        return word

    def bounds(self) -> dict[str, Any]:
        return {"choices": list(self.choices)}


JOB = Integer(1, limits.MAX_INT, "ID")


def raw(word: str) -> bytes:
    """The bytes that `word` stands for. Words are UTF-8 with each other byte as a surrogate,
    whatever the locale: `cli.words` sees to it."""
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        raise ValueError("it is not UTF-8") from None


def no_nul(word: str) -> None:
    """ValueError where `word` holds a NUL: no system call can take it."""
    if "\0" in word:
        raise ValueError("it contains a NUL byte")


def decodable(word: str) -> str:
    """`word`, or ValueError where it is not UTF-8."""
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    return word


def digits(word: str) -> bool:
    """Plain ASCII digits, few enough that int() is quick and float() finite."""
    return word.isascii() and word.isdigit() and len(word) <= 30


def whole(word: str) -> int:
    """The integer that `word` spells in plain ASCII digits, with an optional minus."""
    if not digits(word[1:] if word[:1] == "-" else word):
        raise ValueError("it is not a whole number")
    return int(word)
