"""The kinds of values: what each takes, what it refuses, and that nothing but a value or a ValueError comes out."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spoolctl import cli, limits
from spoolctl.errors import Fail
from spoolctl.language import values
from spoolctl.language.parse import parse
from spoolctl.language.spec import COMMON
from spoolctl.language.values import (
    JOB,
    Choice,
    Command,
    Duration,
    Integer,
    Kind,
    Moment,
    Name,
    Pair,
    Path,
    Size,
    Tag,
    Text,
    Variable,
)
from spoolctl.surface.help import all_verbs

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("values", deadline=None, max_examples=60)
QUICK = settings.get_profile("values")

DIRECT: dict[str, Kind] = {
    "Text": Text(3, least=1),
    "Command": Command(),
    "Name": Name(),
    "Integer": Integer(-3, 3),
    "JOB": JOB,
    "Duration": Duration(1, 100),
    "Moment": Moment(),
    "Pair": Pair(4, 5),
    "Tag": Tag(4, 5, "K=V"),
    "Path": Path(),
    "Size": Size(1, 2048),
    "Variable": Variable(4),
    "Choice": Choice(("keep", "add"), "WHAT"),
}


def described() -> Iterator[tuple[str, Kind]]:
    """Every kind that a verb uses, under the name of its flag or argument."""
    for flag in COMMON:
        if flag.kind:
            yield flag.names[0], flag.kind
    for verb in all_verbs():
        for flag in verb.flags:
            if flag.kind:
                yield f"{verb.name} {flag.names[0]}", flag.kind
        if verb.argument and verb.argument.kind:
            yield f"{verb.name} {verb.argument.name}", verb.argument.kind


KINDS = {**DIRECT, **dict(described())}
every_kind = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))

# Everything that an argument, a line of JSON or a test can contain: surrogates and NUL too.
ANYTHING = st.text(st.characters(exclude_categories=()))
NASTY = st.text(st.sampled_from("0123456789٣²-+.:TZ eExsmhd=_/a\0\n\x1b\udc80\udcff\ud800\udfffäß𝟗"))


def refused(kind: Kind, word: str) -> bool:
    """Whether `kind` refuses `word`; anything but a ValueError with a reason is an error of the test."""
    try:
        kind.parse(word)
        return False
    except ValueError as error:
        refused = error
    assert str(refused), word
    assert type(refused) is ValueError, refused  # not a UnicodeError, whose text shows Python, not a reason
    return True


def at(word: str) -> int:
    """What Moment makes of `word`."""
    return Moment().parse(word)


def test_no_kind_is_left_out_here() -> None:
    written = {thing for thing in vars(values).values() if isinstance(thing, type) and issubclass(thing, Kind)}
    assert {type(kind) for kind in DIRECT.values()} == written - {Kind}
    assert len(KINDS) > len(DIRECT) + 20


@every_kind
def test_every_good_example_is_taken(kind: Kind) -> None:
    assert kind.good
    for word in kind.good:
        kind.parse(word)


@every_kind
def test_every_bad_example_is_refused_with_a_reason(kind: Kind) -> None:
    assert kind.bad
    for word in kind.bad:
        assert refused(kind, word), word[:50]


@every_kind
def test_every_kind_says_what_it_wants(kind: Kind) -> None:
    assert kind.says
    assert kind.word.isprintable()
    assert kind.says.isprintable()


@every_kind
def test_a_nul_byte_and_half_a_surrogate_pair_are_refused_by_every_kind(kind: Kind) -> None:
    for good in kind.good:
        assert refused(kind, good + "\0")
        assert refused(kind, "\0" + good)
        assert refused(kind, good + "\ud800")


@QUICK
@given(word=st.one_of(ANYTHING, NASTY))
def test_no_word_raises_anything_but_a_value_error(word: str) -> None:
    for kind in DIRECT.values():
        refused(kind, word)


@QUICK
@given(word=ANYTHING, tail=ANYTHING)
def test_no_word_that_begins_like_a_date_raises_anything_but_a_value_error(word: str, tail: str) -> None:
    for begin in ("", "2027-01-31", "2027-01-31T", "2027-01-31T08:00", "2027-01-31T08:00:00", "2027-01-31T08:00:00."):
        refused(Moment(), begin + word)
        refused(Moment(), begin + word + "+" + tail)


# Integers


@QUICK
@given(number=st.integers(-(2**70), 2**70))
def test_an_integer_is_read_as_python_writes_it_and_bounded(number: int) -> None:
    kind = Integer(-(2**40), 2**63 - 1)
    if -(2**40) <= number <= 2**63 - 1:
        assert kind.parse(str(number)) == number
    else:
        assert refused(kind, str(number))


@pytest.mark.parametrize("word", ["+1", " 1", "1 ", "1\n", "--1", "-", "1_0", "0b1", "1.0", "１", "²", "1e1", "𝟗"])
def test_only_plain_digits_are_an_integer(word: str) -> None:
    """Python's int() takes many of these; what a program writes by mistake must not become a number."""
    assert refused(Integer(-100, 100), word)


def test_zeros_in_front_and_a_minus_before_zero_are_harmless() -> None:
    assert Integer(0, 9).parse("007") == 7
    assert Integer(0, 9).parse("-0") == 0


# Durations


@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("1.5", 1.5),
        ("1.5s", 1.5),
        ("0.5m", 30),
        ("10m", 600),
        ("2h", 7200),
        ("0.25h", 900),
        ("7d", 604800),
        ("0.001", 0.001),
        ("00.50", 0.5),
        ("1.0", 1),
    ],
)
def test_a_duration_is_seconds(word: str, seconds: float) -> None:
    value = Duration(0, 10**9).parse(word)
    assert value == seconds
    # Whole seconds are ints: SQLite and JSON then show 30, not 30.0.
    assert isinstance(value, int) == float(seconds).is_integer()


@pytest.mark.parametrize(
    "word", [".5", "5.", "1,5", "1.5.5", "1h30m", "5ms", "5S", "5 s", "+5", "1e2", "0x5", "٣", "½", "s5"]
)
def test_only_a_number_and_one_unit_is_a_duration(word: str) -> None:
    assert refused(Duration(0, 10**9), word)


@QUICK
@given(number=st.integers(0, 10**15), unit=st.sampled_from([("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)]))
def test_a_duration_is_bounded_in_seconds_whatever_its_unit(number: int, unit: tuple[str, int]) -> None:
    kind = Duration(0, limits.DELAY_MAX)
    word, seconds = f"{number}{unit[0]}", number * unit[1]
    if seconds <= limits.DELAY_MAX:
        assert kind.parse(word) == seconds
    else:
        assert refused(kind, word)


@QUICK
@given(milliseconds=st.integers(0, 10**12))
def test_a_fraction_of_a_second_keeps_its_milliseconds(milliseconds: int) -> None:
    value = Duration(0, 10**9).parse(f"{milliseconds // 1000}.{milliseconds % 1000:03d}")
    assert round(value * 1000) == milliseconds


def test_the_longest_timeout_is_no_rounded_float() -> None:
    kind = Duration(limits.TIMEOUT_MIN, limits.TIMEOUT_MAX)
    assert kind.parse(str(limits.MAX_INT)) == limits.MAX_INT
    assert refused(kind, f"{limits.MAX_INT}.9")  # as a float that is 2**63: one too many for SQLite
    assert refused(kind, "9" * 31 + ".5d")
    assert refused(kind, "9" * 400 + ".5")  # infinite as a float


# Moments


@pytest.mark.parametrize(
    ("word", "ms"),
    [
        ("1970-01-01T00:00Z", 0),
        ("2027-01-31T08:00Z", 1801382400000),
        ("2027-01-31T08:00:00Z", 1801382400000),
        ("2027-01-31T08:00:00z", 1801382400000),
        ("2027-01-31 08:00:00Z", 1801382400000),
        ("2027-01-31T08:00+00:00", 1801382400000),
        ("2027-01-31T08:00-00:00", 1801382400000),
        ("2027-01-31T08:00:01.5+01:00", 1801378801500),
        ("2027-01-31T08:00:00-05:30", 1801402200000),
        ("2027-01-31T08:00:00+23:59", 1801296060000),
        # Before 3.11 Python knows fractions of 3 and 6 digits only.
        ("2027-01-31T08:00:00.1Z", 1801382400100),
        ("2027-01-31T08:00:00.12Z", 1801382400120),
        ("2027-01-31T08:00:00.123Z", 1801382400123),
        ("2027-01-31T08:00:00.1234Z", 1801382400123),
        ("2027-01-31T08:00:00.12345678901234567890Z", 1801382400123),
        ("2028-02-29T23:59:59Z", 1835481599000),
        ("2038-01-19T03:14:08Z", 2147483648000),
        ("1969-12-31T23:59:59Z", -1000),
        ("9999-12-31T23:59:59Z", 253402300799000),
    ],
)
def test_a_moment_is_the_same_on_every_python(word: str, ms: int) -> None:
    assert at(word) == ms


@pytest.mark.parametrize(
    "word",
    [
        "20270101",  # the one that matters: as seconds since 1970 it would be past, and run at once
        "20270131T080000Z",
        "1798761600",
        "1798761600.5",
        "2027-W04-7",
        "2027-031",
        "2027-02-29",
        "2027-1-31",
        "2027/01/31",
        "31.01.2027",
        "27-01-31",
        "02027-01-31",
        "2027-01-",
        "2027-01-3",
        "2027-01-31T",
        "2027-01-31T08",
        "2027-01-31T0800",
        "2027-01-31T8:00",
        "2027-01-31T08:60",
        "2027-01-31T08:00:61",
        "2027-01-31T08:00:00.",
        "2027-01-31T08:00.5",
        "2027-01-31T08:00:00.5x",
        "2027-01-31t08:00",
        "2027-01-31_08:00",
        "2027-01-31  08:00",
        "2027-01-31T08:00ZZ",
        "2027-01-31T08:00Z+01:00",
        "2027-01-31T08:00+01",
        "2027-01-31T08:00+0100",
        "2027-01-31T08:00:00.5+01.00",
        "2027-01-31T08:00,01Z",
        "2027-01-31T08:00:00,5",
        "2027-01-31T08:00:00+01:00:30",
        "2027-01-31T08:00+24:00",
        "2027-01-31T08:00 +01:00",
        "2027-01-31Z",
        "2027-01-31+01:00",
        " 2027-01-31",
        "2027-01-31\n",
        "２027-01-31",
        "2027-01-3１",
        "tomorrow",
        "now+1h",
    ],
)
def test_what_is_no_plain_date_and_time_is_refused_on_every_python(word: str) -> None:
    """From 3.11 on fromisoformat takes several of these."""
    assert refused(Moment(), word)


SLIPS = st.lists(st.tuples(st.integers(0, 29), st.sampled_from(["", *"0159-+T:., ZzW"]), st.booleans()), max_size=4)
FORM = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?)?"


@settings(QUICK, max_examples=300)
@given(
    word=st.sampled_from(["2027-01-31", "2027-01-31T08:00", "2027-01-31 08:00:01Z", "2027-01-31T08:00:01.5+01:00"]),
    slips=SLIPS,
)
def test_no_slip_in_a_moment_makes_another_form_of_it(word: str, slips: list[tuple[int, str, bool]]) -> None:
    """Whatever this Python's own parser knows: a form that only some of them take is taken by none."""
    for position, char, instead in slips:
        word = word[:position] + char + word[position + instead :]
    assert refused(Moment(), word) or re.fullmatch(FORM, word, re.ASCII)


def test_the_flag_refuses_a_date_without_dashes_and_names_itself() -> None:
    with pytest.raises(Fail, match=r"^--at '20270101': ") as caught:
        parse(["add", "--at", "20270101", "--", "true"], cli.describe, cli.suggest)
    assert caught.value.code == "USAGE"


@pytest.fixture
def central_europe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is one hour ahead of UTC, two in summer; by rule, as not every machine has a table of zones."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("central_europe")
@pytest.mark.parametrize(
    ("word", "in_utc"),
    [
        ("2027-01-31", "2027-01-30T23:00Z"),
        ("2027-01-31T08:00", "2027-01-31T07:00Z"),
        ("2027-01-31 08:00:00.5", "2027-01-31T07:00:00.5Z"),
        ("2027-07-01T08:00", "2027-07-01T06:00Z"),
        ("2027-07-01", "2027-06-30T22:00Z"),
        ("2027-10-31T02:30", "2027-10-31T00:30Z"),  # comes twice that night: the first
        ("2027-07-01T08:00+00:00", "2027-07-01T08:00Z"),
    ],
)
def test_without_a_zone_it_is_local_time_with_its_summer(word: str, in_utc: str) -> None:
    assert at(word) == at(in_utc)


@QUICK
@given(
    when=st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    offset=st.integers(-23 * 60, 23 * 60),
    blank=st.sampled_from("T "),
)
def test_any_second_comes_back_from_what_python_writes(when: datetime, offset: int, blank: str) -> None:
    aware = when.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=offset)))
    assert at(aware.isoformat(blank)) == (aware - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(
        milliseconds=1
    )


# Pairs and tags


@pytest.mark.parametrize(
    ("word", "pair"),
    [
        ("A=1", (b"A", b"1")),
        ("A=", (b"A", b"")),
        ("A==", (b"A", b"=")),
        ("A=b=c", (b"A", b"b=c")),
        ("ä=ß", (b"\xc3\xa4", b"\xc3\x9f")),
        ("A=\udcff\n", (b"A", b"\xff\n")),
        ("-=-", (b"-", b"-")),
    ],
)
def test_a_pair_is_split_at_the_first_equals_sign(word: str, pair: tuple[bytes, bytes]) -> None:
    assert Pair(9, 9).parse(word) == pair


@QUICK
@given(key=st.binary(min_size=1, max_size=6), value=st.binary(max_size=7))
def test_a_pair_is_taken_byte_for_byte_and_measured_in_bytes(key: bytes, value: bytes) -> None:
    key, value = key.replace(b"\0", b"").replace(b"=", b"") or b"k", value.replace(b"\0", b"")
    word = (key + b"=" + value).decode("utf-8", "surrogateescape")
    if len(key) <= 4 and len(value) <= 5:
        assert Pair(4, 5).parse(word) == (key, value)
    else:
        assert refused(Pair(4, 5), word)


@QUICK
@given(word=st.one_of(ANYTHING, NASTY))
def test_a_tag_is_a_pair_that_is_text(word: str) -> None:
    """Tags are compared and shown; a byte that is not UTF-8 could be neither."""
    if refused(Pair(8, 8), word) or re.search("[\ud800-\udfff]", word):
        assert refused(Tag(8, 8), word)
    else:
        assert Tag(8, 8).parse(word) == tuple(word.split("=", 1))


# Names, texts, paths, choices, commands


@QUICK
@given(word=st.one_of(ANYTHING, NASTY, st.text("aZ09._-", max_size=limits.NAME_MAX + 2)))
def test_a_name_is_what_its_published_pattern_matches(word: str) -> None:
    """`capabilities` tells programs the pattern and the length; what is told is what is enforced."""
    bounds = Name().bounds()
    matches = re.fullmatch(bounds["pattern"].rstrip("$"), word) and len(word.encode()) <= bounds["max_bytes"]
    if matches:
        assert Name().parse(word) == word
    else:
        assert refused(Name(), word)


@pytest.mark.parametrize("word", ["default", "gpu-0", "a.b_c", "7", "A", "0-", "x" * limits.NAME_MAX])
def test_such_names_are_taken_as_they_are(word: str) -> None:
    assert Name().parse(word) == word


@QUICK
@given(word=st.one_of(ANYTHING, NASTY))
def test_a_text_is_measured_in_bytes_and_kept_as_it_is(word: str) -> None:
    kind = Text(6, least=1)
    is_text = not re.search("[\0\ud800-\udfff]", word)
    if is_text and 1 <= len(word.encode()) <= 6:
        assert kind.parse(word) == word
    else:
        assert refused(kind, word)


@QUICK
@given(raw=st.binary())
def test_a_path_and_a_command_keep_bytes_that_are_not_utf8(raw: bytes) -> None:
    raw = b"x" + raw.replace(b"\0", b"")
    word = raw.decode("utf-8", "surrogateescape")
    assert Path().parse(word).encode("utf-8", "surrogateescape") == raw
    assert Command().parse(word) == raw


@QUICK
@given(word=st.one_of(ANYTHING, st.sampled_from(["keep", "add", "Keep", "kee", "add ", ""])))
def test_a_choice_is_one_of_its_words_and_no_other(word: str) -> None:
    kind = Choice(("keep", "add"), "WHAT")
    if word in ("keep", "add"):
        assert kind.parse(word) == word
    else:
        assert refused(kind, word)


@every_kind
def test_the_published_bounds_are_the_enforced_ones(kind: Kind) -> None:
    bounds = kind.bounds()
    around: dict[str, Any] = {}
    if isinstance(kind, (Integer, Duration)):
        around = {str(bounds[name] + step): step for name, step in (("min", 0), ("max", 0), ("min", -1), ("max", 1))}
    elif isinstance(kind, Text):
        around = {"x" * bounds["max_bytes"]: 0, "x" * (bounds["max_bytes"] + 1): 1}
    elif isinstance(kind, Pair):
        key, value = bounds["max_key_bytes"], bounds["max_value_bytes"]
        around = {f"{'k' * key}={'v' * value}": 0, f"{'k' * (key + 1)}=": 1, f"k={'v' * (value + 1)}": 1}
    elif isinstance(kind, Choice):
        around = dict.fromkeys(bounds["choices"], 0)
    for word, beyond in around.items():
        assert refused(kind, word) == bool(beyond), word[:50]
