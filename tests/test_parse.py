"""The parser: argparse is the oracle for the grammar they share; where ours is stricter, a test says so."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spoolctl import cli
from spoolctl.context import Context
from spoolctl.errors import Fail
from spoolctl.language.parse import parse
from spoolctl.language.spec import COMMON, Argument, Flag, Verb
from spoolctl.language.values import Integer, Path, Text
from spoolctl.surface.help import all_verbs, verb_names
from spoolctl.verbs.add import submission

if TYPE_CHECKING:
    from spoolctl.language.parse import Args

settings.register_profile("parse", deadline=None, max_examples=100)
QUICK = settings.get_profile("parse")

NUMBER = Integer(-1000, 1000)
TOY = Verb(
    "toy",
    "for these tests",
    group="look",
    argument=Argument("WORD", Text(100), "words", many=True, required=False),
    flags=(
        Flag("--one", kind=Text(100), help="once"),
        Flag("--many", kind=Text(100), many=True, help="several times"),
        Flag("--number", "-n", kind=NUMBER, default=7, help="with a short name"),
        Flag("--switch", "-s", help="no value"),
        Flag("--plain", help="excludes others", excludes=("--fancy", "--number")),
        Flag("--fancy", help="is excluded"),
    ),
)
COMMAND = Verb("command", "for these tests", group="run", argument=Argument("ARGV", None, "words"), flags=TOY.flags)
TOYS = {"toy": TOY, "command": COMMAND}
SHARED = ("one", "many", "number", "switch", "db", "json", "words")


def toy(*words: str) -> Args:
    """The values of a command line of the toy verbs."""
    return parse(words, TOYS.get, lambda _: "a hint")[1]


def real(*words: str) -> Args:
    """The values of a command line of the real tool."""
    return parse(words, cli.describe, cli.suggest)[1]


def refusal(parser: Any, *words: str) -> Fail:
    """The Fail with which `parser` refuses `words`."""
    with pytest.raises(Fail) as caught:
        parser(*words)
    assert caught.value.code == "USAGE"
    assert caught.value.message.isprintable()
    return caught.value


def ours(words: list[str]) -> dict[str, Any] | None:
    """The values that the toy verb has by our parser, None where it refuses."""
    try:
        args, code = toy("toy", *words), ""
    except Fail as fail:
        args, code = None, fail.code
    if args is None:
        assert code == "USAGE"
        return None
    return {name: getattr(args, name) for name in SHARED}


class Oracle(argparse.ArgumentParser):
    """The toy verb's command line in argparse."""

    def __init__(self, words: str) -> None:
        super().__init__(allow_abbrev=False, add_help=False)
        self.add_argument("--one")
        self.add_argument("--many", action="append", default=[])
        self.add_argument("--number", "-n", type=NUMBER.parse, default=7)
        self.add_argument("--switch", "-s", action="store_true")
        self.add_argument("--db", type=Path().parse)
        self.add_argument("--json", action="store_true")
        self.add_argument("words", nargs=words)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def argparse_says(words: list[str]) -> dict[str, Any] | None:
    """The values by argparse, None where it refuses. It mixes flags and words only without a `--`
    (and loses it otherwise), so what `--` means is put in here, and asked of it in a test of its own."""
    end = words.index("--") if "--" in words else len(words)
    try:
        values = vars(Oracle("*").parse_intermixed_args(words[:end]))
    except ValueError:
        return None
    return {**values, "words": values["words"] + words[end + 1 :]}


def repeats(words: list[str]) -> bool:
    """Whether a flag that may be given once is given twice: argparse takes the last one, ours refuses."""
    flags = words[: words.index("--")] if "--" in words else words
    names = ["--number" if word[:2] == "-n" else word.partition("=")[0] for word in flags]
    return any(names.count(name) > 1 for name in ("--one", "--number", "--db"))


FLAGS = [
    *("--one", "--one=x", "--one=", "--one=-x", "--one=a=b", "--many", "--many=y", "--many=", "--many=--one"),
    *("--number", "--number=-5", "--number=5", "--number=x", "--number=", "--number=1001", "-n", "-n=5"),
    *("--switch", "-s", "--switch=1", "--switch=", "--json", "--json=1", "--db", "--db=p", "--db=a b"),
]
UNKNOWN = ["--on", "--switc", "--num=5", "--unknown", "--unknown=1", "-x", "---", "--=", "-=", "--One", "-N", "-5x"]
WORDS = ["-", "-5", "-.5", "-1.5", "5", "0", "word", "", "a b", "v=1", "ä", "*", "one", "=", "toy"]


@QUICK
@given(words=st.lists(st.sampled_from([*FLAGS, *WORDS, *WORDS, "--"]), max_size=8))
def test_a_command_line_means_what_it_means_to_argparse(words: list[str]) -> None:
    if not repeats(words):
        assert ours(words) == argparse_says(words)


@QUICK
@given(words=st.lists(st.sampled_from([*FLAGS, *WORDS, *UNKNOWN, "--"]), max_size=5))
def test_a_command_line_is_refused_where_argparse_refuses_it(words: list[str]) -> None:
    if not repeats(words):
        assert (ours(words) is None) == (argparse_says(words) is None)


@QUICK
@given(
    flags=st.lists(st.sampled_from(["--switch", "--many=y", "--many=-x", "--json", "-s"]), max_size=4),
    words=st.lists(st.sampled_from([*FLAGS, *UNKNOWN, *WORDS]), min_size=1, max_size=4),
)
def test_behind_a_double_dash_nothing_is_a_flag(flags: list[str], words: list[str]) -> None:
    assert ours([*flags, "--", *words]) == vars(Oracle("+").parse_args([*flags, "--", *words]))


SHORT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=25)  # 100 bytes at most


@QUICK
@given(
    one=st.none() | SHORT,
    many=st.lists(SHORT),
    number=st.integers(-1000, 1000),
    order=st.randoms(use_true_random=False),
)
def test_every_value_can_be_given_behind_an_equals_sign(
    one: str | None, many: list[str], number: int, order: Any
) -> None:
    words = [f"--many={value}" for value in many]
    for extra in [f"--one={one}"] * (one is not None) + [f"--number={number}", "--switch"]:
        words.insert(order.randint(0, len(words)), extra)
    args = toy("toy", *words)
    assert (args.one, args.many, args.number, args.switch) == (one, many, number, True)


def test_defaults_stand_where_nothing_is_given() -> None:
    args = toy("toy")
    assert (args.one, args.many, args.number, args.switch, args.words) == (None, [], 7, False, [])
    assert (args.db, args.json, args.help, args.given) == (None, False, False, set())


def test_two_command_lines_share_no_list() -> None:
    assert toy("toy", "--many", "a").many == ["a"]
    assert toy("toy").many == []


# Common flags


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "--db", "p", "toy", "-s", "word"],
        ["--db=p", "toy", "--json", "-s", "word"],
        ["toy", "-s", "word", "--json", "--db", "p"],
        ["--json", "toy", "--db=p", "word", "-s"],
        ["--json", "toy", "--json", "--db=p", "word", "-s"],
    ],
)
def test_common_flags_are_understood_before_and_after_the_verb(words: list[str]) -> None:
    args = toy(*words)
    assert (args.json, args.db, args.switch, args.words) == (True, "p", True, ["word"])


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--json", "--help"], ["--help", "--db", "p"]])
def test_help_alone_needs_no_verb(words: list[str]) -> None:
    verb, args = parse(words, TOYS.get, lambda _: "")
    assert verb is None
    assert args.help
    assert not args.version


@pytest.mark.parametrize("words", [["--version"], ["toy", "--version"], ["--version", "toy"]])
def test_version_is_known_before_and_after_a_verb(words: list[str]) -> None:
    assert parse(words, TOYS.get, lambda _: "")[1].version


@pytest.mark.parametrize("words", [["show", "--help"], ["--help", "show"], ["show", "1", "2", "-h"], ["add", "-h"]])
def test_help_is_answered_however_incomplete_the_rest_is(words: list[str]) -> None:
    verb, args = parse(words, cli.describe, cli.suggest)
    assert verb is not None
    assert args.help


def test_a_flag_of_the_verb_is_unknown_before_it() -> None:
    assert "--one" in refusal(toy, "--one", "x", "toy").message


@pytest.mark.parametrize(
    "words", [["--db", "p", "toy", "--db", "q"], ["--db=p", "--db=p", "toy"], ["toy", "--db=p", "--db=p"]]
)
def test_a_second_queue_is_refused_wherever_it_stands(words: list[str]) -> None:
    assert "--db" in refusal(toy, *words).message


# What is refused, and what the refusal names


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["toy", "--nothing"], "--nothing"),
        (["toy", "--nothing=5"], "--nothing"),
        (["toy", "-x"], "-x"),
        (["toy", "word", "--nothing", "word"], "--nothing"),
        (["--nothing", "toy"], "--nothing"),
        (["--", "toy"], "--"),
        (["nothing"], "nothing"),
        ([""], "''"),
        (["-5", "toy"], "-5"),
        (["toy", "--one"], "--one"),
        (["toy", "--one", "--switch"], "--one"),
        (["toy", "--one", "--"], "--one"),
        (["toy", "--one", "-x"], "--one"),
        (["toy", "-n"], "-n"),
        (["toy", "--db"], "--db"),
        (["toy", "--one", "a", "--one", "a"], "--one"),
        (["toy", "--number", "1", "-n", "1"], "--number"),
        (["toy", "--number", "1", "--number", "7"], "--number"),
        (["toy", "--switch=1"], "--switch"),
        (["toy", "--switch="], "--switch"),
        (["toy", "-s=1"], "-s"),
        (["toy", "--number", "x"], "--number 'x'"),
        (["toy", "--number=1001"], "--number '1001'"),
        (["toy", "-n", "-1001"], "-n '-1001'"),
        (["toy", "--number="], "--number ''"),
        (["toy", "--db="], "--db ''"),
        (["toy", "x" * 101], "WORD 'xxxx"),
        (["command", "--", "", "a"], "command"),
        (["command", "--"], "command"),
        (["command", ""], "command"),
        (["command", "a", "b\0c"], "NUL"),
    ],
)
def test_a_refusal_names_the_flag_or_the_word(words: list[str], named: str) -> None:
    assert named in refusal(toy, *words).message


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["show"], "ID"),
        (["show", "1", "2"], "2"),
        (["show", "0"], "ID '0'"),
        (["show", "-1"], "ID '-1'"),
        (["show", "x"], "ID 'x'"),
        (["status", "now"], "now"),
        (["list", "--state", "Dead"], "--state 'Dead'"),
        (["cancel", "1", "x"], "ID 'x'"),
    ],
)
def test_a_real_verb_refuses_words_by_name(words: list[str], named: str) -> None:
    assert named in refusal(real, *words).message


def test_every_bad_value_of_every_flag_is_refused_in_the_flags_name() -> None:
    tried = 0
    for verb in all_verbs():
        for flag in (*verb.flags, *COMMON):
            for name in flag.names if flag.kind else ():
                for bad in flag.kind.bad if flag.kind else ():
                    fail = refusal(real, verb.name, f"{name}={bad}")
                    assert fail.message.startswith(f"{name} '"), (verb.name, name, bad[:40])
                    assert flag.kind
                    assert flag.kind.says in fail.hint
                    assert len(fail.message) < 300, "a long value must not fill the screen"
                    tried += 1
    assert tried > 100


def test_every_bad_word_of_every_argument_is_refused_in_its_name() -> None:
    for verb in all_verbs():
        if verb.argument and verb.argument.kind:
            for bad in verb.argument.kind.bad:
                fail = refusal(real, verb.name, "--", bad)
                assert fail.message.startswith(f"{verb.argument.name} '"), (verb.name, bad[:40])


def test_every_good_value_of_every_flag_reaches_the_verb() -> None:
    for verb in all_verbs():
        for flag in verb.flags:
            for good in flag.kind.good if flag.kind else ():
                found = getattr(
                    parse([verb.name, f"{flag.names[0]}={good}", *enough(verb)], cli.describe, cli.suggest)[1],
                    flag.attribute,
                )
                assert flag.kind
                assert found == ([flag.kind.parse(good)] if flag.many else flag.kind.parse(good))


def enough(verb: Verb) -> list[str]:
    """The words without which the verb is incomplete."""
    if verb.argument is None or not verb.argument.required:
        return []
    return [verb.argument.kind.good[0]] if verb.argument.kind else ["--", "true"]


def test_what_is_wrong_is_shown_without_what_a_terminal_could_obey() -> None:
    for words in (
        ["toy", "--\x1b[31m"],
        ["\x1b]0;x\x07"],
        ["toy", "--number", "\n\x9b"],
        ["toy", "--number=\udcff\u202e"],
    ):
        assert refusal(toy, *words).message.isprintable()
    assert "\\x1b" in refusal(toy, "\x1b[2J").message


OS_WORD = st.binary(max_size=12).map(lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
TYPED = st.one_of(OS_WORD, st.sampled_from([*FLAGS, *WORDS, *UNKNOWN, "--", "--help", "--plain", "--fancy"]))


@QUICK
@given(verb=st.sampled_from(["toy", "command"]), before=st.lists(TYPED, max_size=2), words=st.lists(TYPED, max_size=5))
def test_whatever_is_typed_is_understood_or_refused_as_usage(verb: str, before: list[str], words: list[str]) -> None:
    try:
        toy(*before, verb, *words)
    except Fail as error:
        fail = error
    else:
        return
    assert fail.code == "USAGE"
    assert fail.message.isprintable()


# No abbreviations, but suggestions


@pytest.mark.parametrize("word", ["--on", "--o", "--numbe", "--sw", "--num=5", "--swItch", "-one", "-sn", "-n5", "-ss"])
def test_no_flag_can_be_abbreviated_or_glued(word: str) -> None:
    assert word.partition("=")[0] in refusal(toy, "toy", word).message


@pytest.mark.parametrize("verb", verb_names())
def test_no_verb_can_be_abbreviated(verb: str) -> None:
    for word in (verb[:-1], verb[0], verb.upper(), verb + "s", f" {verb}"):
        if word not in verb_names():
            assert f"'{word}'" in refusal(real, word).message


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("ad", "add"),
        ("lst", "list"),
        ("statsu", "status"),
        ("cancle", "cancel"),
        ("shwo", "show"),
        ("outptu", "output"),
    ],
)
def test_a_verb_with_a_slip_gets_a_suggestion(word: str, meant: str) -> None:
    assert refusal(real, word).hint == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["add", "--priorty", "5", "--", "x"], "--priority"),
        (["add", "--max-retry=5", "--", "x"], "--max-retries"),
        (["add", "--jsno", "--", "x"], "--json"),
        (["list", "--sate", "dead"], "--state"),
        (["--jsn", "list"], "--json"),
        (["--versoin"], "--version"),
    ],
)
def test_a_flag_with_a_slip_gets_a_suggestion(words: list[str], meant: str) -> None:
    assert refusal(real, *words).hint == f"did you mean {meant}?"


def test_what_resembles_nothing_is_told_where_to_look() -> None:
    assert refusal(real, "xyzzy").hint == "spoolctl --help lists the verbs"
    assert refusal(real, "add", "--xyzzy").hint == "see spoolctl add --help"
    assert refusal(real, "--xyzzy").hint == "see spoolctl --help"


@pytest.mark.parametrize(
    "word",
    [
        "os",
        "../add",
        "add.py",
        "add/",
        "spoolctl.verbs.add",
        "ädd",
        "ａdd",
        "a b",
        "sys",
        "\udcff",
        "__init__",
        "__pycache__",
    ],
)
def test_only_a_verbs_own_name_is_looked_up(word: str) -> None:
    """The name becomes that of a module: nothing else may be reached by it."""
    assert "there is no verb" in refusal(real, word).message


# Values


def test_a_value_that_begins_with_a_dash_needs_the_equals_sign() -> None:
    fail = refusal(real, "add", "--note", "-v", "--", "x")
    assert "--note" in fail.message
    assert "--note=VALUE" in fail.hint
    assert real("add", "--note=-v", "--", "x").note == "-v"
    assert real("add", "--note=--", "--", "x").note == "--"
    assert real("add", "--note=--json", "--", "x").json is False


def test_a_negative_number_and_a_lone_dash_are_values() -> None:
    assert real("add", "--priority", "-5", "--", "x").priority == -5
    assert real("add", "--note", "-", "--", "x").note == "-"
    assert real("add", "--note", "-1.5", "--", "x").note == "-1.5"


def test_a_double_dash_behind_an_equals_sign_is_a_value() -> None:
    """argparse before 3.12 loses it."""
    args = toy("toy", "--one=--", "-s", "--many=--", "word")
    assert (args.one, args.switch, args.many, args.words) == ("--", True, ["--"], ["word"])


def test_a_flag_at_the_end_has_no_value_to_take() -> None:
    fail = refusal(real, "list", "--state")
    assert "--state needs a value" in fail.message
    assert "=VALUE" not in fail.hint  # there was no value that began with a dash


def test_values_are_collected_in_the_order_given() -> None:
    args = real("add", "--tag", "b=1", "--env=B=1", "--tag=a=2", "--env", "A=x=y", "--", "x")
    assert args.tag == [("b", "1"), ("a", "2")]
    assert args.env == [(b"B", b"1"), (b"A", b"x=y")]


# Exclusions


@pytest.mark.parametrize(
    "words", [["--plain", "--fancy"], ["--fancy", "--plain"], ["--plain", "-n", "1"], ["-n=1", "--plain"]]
)
def test_flags_that_exclude_each_other_are_refused_in_either_order(words: list[str]) -> None:
    message = refusal(toy, "toy", *words).message
    assert "--plain" in message
    assert "--fancy" in message or "--number" in message


def test_a_default_excludes_nothing() -> None:
    assert toy("toy", "--plain").plain
    assert toy("toy", "--fancy", "-n", "7").fancy


def test_every_exclusion_of_every_verb_names_a_flag_of_it_and_is_enforced() -> None:
    tried = 0
    for verb in all_verbs():
        for flag in verb.flags:
            for name in flag.excludes:
                other = verb.flag(name)
                assert other is not None, (verb.name, flag.names, name)
                message = refusal(real, verb.name, *spelled(flag), *spelled(other), *enough(verb)).message
                assert flag.names[0] in message
                assert name in message
                tried += 1
    assert tried >= 3


def spelled(flag: Flag) -> list[str]:
    """A flag with a value that it takes."""
    return [f"{flag.names[0]}={flag.kind.good[0]}"] if flag.kind else [flag.names[0]]


# Commands


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "make", "-j2"], [b"make", b"-j2"]),
        (["make", "-j2", "--json", "--queue=x"], [b"make", b"-j2", b"--json", b"--queue=x"]),
        (["--queue", "q", "--", "make"], [b"make"]),
        (["--queue=q", "make", "--", "x"], [b"make", b"--", b"x"]),
        (["--", "--", "x"], [b"--", b"x"]),
        (["--", "--queue", "x"], [b"--queue", b"x"]),
        (["--", "-c", "x"], [b"-c", b"x"]),
        (["--", "x", ""], [b"x", b""]),
        (["--", " "], [b" "]),
        (["-", "x"], [b"-", b"x"]),
        (["--", "caf\udce9", "ä\n"], [b"caf\xe9", b"\xc3\xa4\n"]),
        ([], None),
        (["-c", "x | y"], None),
    ],
)
def test_the_command_begins_at_the_double_dash_or_the_first_bare_word(
    words: list[str], command: list[bytes] | None
) -> None:
    args = real("add", *words)
    assert args.command == command
    assert not args.json  # what belongs to the command is not ours


@QUICK
@given(argv=st.lists(st.binary(min_size=1, max_size=9).filter(lambda raw: b"\0" not in raw), min_size=1))
def test_any_command_passes_through_byte_for_byte(argv: list[bytes]) -> None:
    words = [raw.decode("utf-8", "surrogateescape") for raw in argv]
    assert real("add", "--json", "--", *words).command == argv


def asked(*words: str) -> list[bytes]:
    """The command that `add` would store."""
    return submission(real("add", *words), Context(None, {}, lambda _: None)).argv


def test_a_shell_command_is_run_by_the_shell() -> None:
    assert asked("-c", "a | b; c") == [b"sh", b"-c", b"a | b; c"]
    assert asked("-c=-x") == [b"sh", b"-c", b"-x"]
    assert asked("--", "a | b") == [b"a | b"]


@pytest.mark.parametrize("words", [["-c", "x", "--", "y"], ["-c", "x", "y"], ["-c=x", "--json", "y", "z"]])
def test_a_shell_command_and_a_program_exclude_each_other(words: list[str]) -> None:
    message = refusal(asked, *words).message
    assert "-c" in message
    assert "ARGV" in message


@pytest.mark.parametrize("words", [[], ["--queue", "q"], ["--json"]])
def test_no_command_at_all_is_refused(words: list[str]) -> None:
    assert "command" in refusal(asked, *words).message


@pytest.mark.parametrize(
    "words", [["-c", ""], ["-c", " "], ["-c", "a", "-c", "b"], ["-c"], ["-c", "-x"], ["-c", "a\0b"]]
)
def test_a_shell_command_is_one_and_not_empty(words: list[str]) -> None:
    assert re.match(r"^-c\b", refusal(asked, *words).message)


def test_if_finished_needs_a_key() -> None:
    assert "--if-finished" in refusal(asked, "--if-finished", "add", "--", "x").message
    assert asked("--if-finished", "add", "--key", "k", "--", "x") == [b"x"]
