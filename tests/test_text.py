"""How facts become characters: nothing that a terminal could obey comes out, and nothing is lost on the way."""

from __future__ import annotations

import calendar
import shlex
import shutil
import subprocess
from base64 import b64decode
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spoolctl.text import command_line, cut, decode, duration, exact, moment, plural, printable, size, table

settings.register_profile("text", deadline=None, max_examples=100)
QUICK = settings.get_profile("text")

ANYTHING = st.text(st.characters(exclude_categories=()))
# What is worst to print: controls of both kinds, escapes, line ends, bidi overrides, zero widths, odd blanks,
# tags, private and unassigned characters, bytes that are not UTF-8, halves of surrogate pairs.
HOSTILE = (
    "\0\x07\b\t\n\v\f\r\x1b\x7f\x80\x85\x9b\x9d\xa0\xad\u061c\u200b\u200e\u2028\u2029\u202e\u2066\u2069\u3000\ufeff"
)
HOSTILE += "\ufff9\ue000\U000e0001\U0010ffff\udc80\udcff\ud800\udfff"
NASTY = st.text(st.sampled_from(HOSTILE + "[31mx;'\"\\ $`ä🙂"))
TEXTS = st.one_of(ANYTHING, NASTY)
WORDS = st.text(st.characters(exclude_categories=["Cs"]).filter(str.isprintable))
ARGV = st.lists(
    st.binary().map(lambda raw: raw.replace(b"\0", b"")) | TEXTS.map(lambda t: t.encode("utf-8", "replace"))
)


@pytest.mark.parametrize("char", HOSTILE)
def test_each_hostile_character_is_shown_as_an_escape(char: str) -> None:
    shown = printable(f"a{char}b")
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert shown.endswith("b")


@QUICK
@given(text=TEXTS)
def test_text_never_comes_out_raw(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode("utf-8")  # no surrogate is left: it would be an error where it is printed
    rest = iter(shown)
    assert all(char in rest for char in text if char.isprintable()), "and in their order"
    if text.isprintable():
        assert shown == text


@QUICK
@given(raw=st.binary() | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_never_come_out_raw_and_read_like_the_word_they_came_from(raw: bytes) -> None:
    shown = printable(raw)
    assert shown.isprintable()
    assert shown == printable(raw.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        (b"caf\xe9", "caf\\xe9"),
        ("caf\udce9", "caf\\xe9"),
        ("\ud800", "\\ud800"),
        ("\u202eexe.gpj", "\\u202eexe.gpj"),
        ("\U000e0001", "\\U000e0001"),
        ("\x9b31m", "\\x9b31m"),
        (b"\xc2\x9b31m", "\\x9b31m"),
        ("ä ß 日本 🙂", "ä ß 日本 🙂"),
        ("", ""),
        (b"", ""),
    ],
)
def test_escapes_say_which_character_it_was(raw: bytes | str, shown: str) -> None:
    assert printable(raw) == shown


# Command lines


@QUICK
@given(argv=ARGV, width=st.integers(0, 30))
def test_a_command_never_comes_out_raw_nor_wider_than_asked(argv: list[bytes], width: int) -> None:
    shown = command_line(argv, width)
    assert shown.isprintable()
    assert shown == cut(command_line(argv), width)
    if width:
        assert len(shown) <= width


@QUICK
@given(argv=st.lists(WORDS | st.text("ab '\"\\$`!*?[]{}()<>|&;~#=%^-\u00e4")))
def test_a_command_of_printable_words_can_be_typed_again(argv: list[str]) -> None:
    assert shlex.split(command_line([word.encode() for word in argv])) == argv


def test_the_shell_reads_every_printable_word_as_it_was() -> None:
    """The shell itself, once, with every printable ASCII character in every kind of company."""
    shell = shutil.which("sh")
    assert shell
    ascii_ = [chr(code) for code in range(32, 127)]
    argv = [
        "",
        " ",
        "a b",
        "''",
        "'\\''",
        "\\",
        "$HOME",
        "$(id)",
        "`id`",
        "~",
        "*",
        "-n",
        "--",
        "ä'ö",
        "!x",
        "a=b",
        "#x",
    ]
    argv += ascii_ + [f"a{c}b" for c in ascii_] + [c * 2 for c in ascii_] + [f"'{c}" for c in ascii_]
    typed = "printf '%s\\0' " + command_line([word.encode() for word in argv])
    said = subprocess.run([shell, "-c", typed], capture_output=True, check=True, timeout=30).stdout
    assert said.decode().split("\0")[:-1] == argv


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ([b"make", b"-j2", b"all"], "make -j2 all"),
        ([b"echo", b"a b", b""], "echo 'a b' ''"),
        ([b"echo", b"it's"], "echo 'it'\\''s'"),
        ([b"sh", b"-c", b"a | b"], "sh -c 'a | b'"),
        ([b"x", b"\x1b[2J"], "x '\\x1b[2J'"),
        ([b"x", b"\xff"], "x '\\xff'"),
        ([], ""),
    ],
)
def test_words_are_quoted_where_they_must_be(argv: list[bytes], shown: str) -> None:
    assert command_line(argv) == shown


def test_a_long_command_is_cut_without_being_built() -> None:
    """`list` shows 80 columns of commands that may have megabytes."""
    endless = (b"x" * 9 for _ in iter(int, 1))
    assert command_line(endless, 12) == "xxxxxxxxx x…"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "width", "shown"), [("abcd", 0, "abcd"), ("abcd", 4, "abcd"), ("abcd", 3, "ab…"), ("abcd", 1, "…")]
)
def test_a_line_is_cut_only_where_it_is_too_long(line: str, width: int, shown: str) -> None:
    assert cut(line, width) == shown


# Bytes in JSON


@QUICK
@given(parts=st.lists(st.binary() | TEXTS.map(lambda text: text.encode("utf-8", "replace"))))
def test_what_is_not_utf8_is_there_exactly_and_only_then(parts: list[bytes]) -> None:
    told = exact(parts)
    if told is None:
        assert [decode(part).encode() for part in parts] == parts
    else:
        assert [b64decode(part, validate=True) for part in told] == parts
        assert any(decode(part).encode() != part for part in parts)


def test_a_lost_byte_is_shown_where_it_stood() -> None:
    assert decode(b"a\xffb") == "a\\xffb"
    assert exact([b"a", b"\xff"]) == ["YQ==", "/w=="]


# Times, durations, sizes


@QUICK
@given(when=st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31)))
def test_a_moment_is_rfc_3339_in_utc_to_the_millisecond(when: datetime) -> None:
    ms = calendar.timegm(when.timetuple()) * 1000 + when.microsecond // 1000
    assert moment(ms) == when.isoformat(timespec="milliseconds") + "Z"


def test_a_moment_before_1970_counts_its_milliseconds_forward() -> None:
    assert moment(-1) == "1969-12-31T23:59:59.999Z"
    assert moment(0) == "1970-01-01T00:00:00.000Z"


def test_an_unknown_moment_stays_unknown() -> None:
    assert moment(None) is None


@QUICK
@given(ms=st.integers(-(2**63), 2**63 - 1))
def test_any_number_in_the_file_is_a_moment_or_none(ms: int) -> None:
    """A damaged or strange file must not end in a traceback."""
    shown = moment(ms)
    assert shown is None or shown.isprintable()


@pytest.mark.parametrize("ms", [10**30, -(10**30)])
def test_a_moment_that_no_calendar_reaches_is_none(ms: int) -> None:
    assert moment(ms) is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.00s"),
        (0.314, "0.31s"),
        (9.99, "9.99s"),
        (10, "10s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (185, "3m05s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (7800, "2h10m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (4 * 86400 + 3 * 3600, "4d03h"),
        (1000 * 86400, "1000d00h"),
    ],
)
def test_a_duration_is_short_and_has_two_units_at_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@QUICK
@given(seconds=st.integers(10, 10**12))
def test_a_duration_says_what_it_is_down_to_its_smaller_unit(seconds: int) -> None:
    worth = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    said, number, smallest = 0, "", 0
    for char in duration(seconds):
        if char.isdigit():
            number += char
        else:
            smallest = worth[char]
            said, number = said + int(number) * smallest, ""
    assert number == ""
    assert timedelta(0) <= timedelta(seconds=seconds - said) < timedelta(seconds=smallest)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (12 * 1024, "12 KiB"),
        (1024**2, "1.0 MiB"),
        (300 * 1024**2, "300 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (2 * 1024**4, "2.0 TiB"),
        (5000 * 1024**4, "5000 TiB"),
    ],
)
def test_a_size_has_the_largest_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs")])
def test_one_is_singular(count: int, shown: str) -> None:
    assert plural(count, "job") == shown


# Tables

CELL = st.text("abcdä-.:1", max_size=9)


def test_columns_are_aligned_and_nothing_trails() -> None:
    assert table(["id", "state", "command"], [["1", "done", "true"], ["1000", "queued", ""]]) == (
        "id    state   command\n"  #
        "1     done    true\n"
        "1000  queued\n"
    )


def test_a_table_without_rows_is_its_head() -> None:
    assert table(["id", "state"], []) == "id  state\n"


@QUICK
@given(head=st.lists(CELL.filter(bool), min_size=1, max_size=4), data=st.data())
def test_every_cell_stands_under_its_head(head: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(CELL, min_size=len(head), max_size=len(head))))
    lines = table(head, rows).splitlines()
    assert len(lines) == len(rows) + 1
    start = 0
    for column, name in enumerate(head):
        cells = [name, *(row[column] for row in rows)]
        for line, cell in zip(lines, cells):
            assert line[start : start + len(cell)] == cell
            assert line == line.rstrip()
        start += max(map(len, cells)) + 2
