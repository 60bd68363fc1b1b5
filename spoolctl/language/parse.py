"""Words to values: the one parser, for every verb, from its description.

Its own rather than argparse: that costs a third of the start-up, guesses abbreviations, and
words its errors differently in each Python. The grammar they share is tested against argparse.
Called by `cli.py`; every refusal is a Fail("USAGE") that names the flag, the value and the range.
"""

from __future__ import annotations

from spoolctl.errors import Fail
from spoolctl.language.spec import COMMON
from spoolctl.language.values import digits, raw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from spoolctl.language.spec import Flag, Verb
    from spoolctl.language.values import Kind

    Finder = Callable[[str], "Verb | None"]


class Args:
    """The values of one command line, an attribute a flag (`--max-retries`: `max_retries`).

    command: the bytes of ARGV, or None. given: the flags' names that were typed. words: the
    argument's values.
    """

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.words: list[Any] = []
        self.command: list[bytes] | None = None

    def __getattr__(self, name: str) -> Any:  # only reached where no value was set
        raise AttributeError(name)


def parse(words: Sequence[str], find: Finder, suggest: Callable[[str], str]) -> tuple[Verb | None, Args]:
    """The verb and the values that `words` (without the program's name) spell.

    find: the description of a verb by its name, None where there is no such verb. suggest: the
    hint for a verb that is not there. Without a verb (`--help`, `--version`) the first is None.
    """
    args = Args()
    rest = list(words)
    _flags(None, rest, args)
    if not rest:
        _defaults(COMMON, args)
        return None, args
    name = rest.pop(0)
    verb = find(name)
    if verb is None:
        raise Fail("USAGE", f"there is no verb {_shown(name)}", suggest(name))
    _flags(verb, rest, args)
    _defaults((*verb.flags, *COMMON), args)
    if not args.help and not args.version:
        _exclusions(verb, args)
        _argument(verb, rest, args)
    return verb, args


def _flags(verb: Verb | None, rest: list[str], args: Args) -> None:
    """Take the flags out of `rest` and leave the bare words; without a verb stop at the first."""
    bare: list[str] = []
    while rest:
        word = rest[0]
        if word == "--" and verb:
            bare += rest if _takes_command(verb) else rest[1:]
            rest.clear()
        elif word[:1] != "-" or word == "-" or (_is_number(word) and not _takes_command(verb)):
            if verb is None or _takes_command(verb):
                return
            bare.append(rest.pop(0))
        else:
            _flag(verb, rest, args)
    rest[:] = bare


def _takes_command(verb: Verb | None) -> bool:
    return verb is not None and verb.argument is not None and verb.argument.is_command


def _flag(verb: Verb | None, rest: list[str], args: Args) -> None:
    """Take one flag, and its value where it has one, off the front of `rest`."""
    name, sign, value = rest.pop(0).partition("=")
    flag = verb.flag(name) if verb else next((f for f in COMMON if name in f.names), None)
    if flag is None:
        raise _unknown(verb, name)
    if flag.kind is None:
        if sign:
            raise Fail("USAGE", f"{name} takes no value")
        setattr(args, flag.attribute, True)
    else:
        if not sign:
            if not rest or (rest[0][:1] == "-" and rest[0] != "-" and not _is_number(rest[0])):
                dashed = f"; a value that begins with '-' is written {name}=VALUE" if rest else ""
                raise Fail("USAGE", f"{name} needs a value", f"give {flag.kind.says}{dashed}")
            value = rest.pop(0)
        _store(flag, value_of(flag.kind, value, name), args)
    args.given.add(flag.names[0])


def value_of(kind: Kind, word: str, name: str) -> Any:
    """The value of `word`, or the Fail that says which flag or argument refuses it and why."""
    try:
        return kind.parse(word)
    except ValueError as error:
        raise Fail("USAGE", f"{name} {_shown(word)}: {error}", f"give {kind.says}") from None


def _store(flag: Flag, value: Any, args: Args) -> None:
    if flag.many:
        args.__dict__.setdefault(flag.attribute, []).append(value)
    elif flag.names[0] in args.given:
        raise Fail("USAGE", f"{flag.names[0]} is given twice")
    else:
        setattr(args, flag.attribute, value)


def _defaults(flags: Sequence[Flag], args: Args) -> None:
    for flag in flags:
        if flag.attribute not in args.__dict__:
            setattr(args, flag.attribute, [] if flag.many else flag.default)


def _exclusions(verb: Verb, args: Args) -> None:
    for flag in verb.flags:
        if flag.names[0] in args.given:
            for other in flag.excludes:
                if other in args.given:
                    raise Fail("USAGE", f"{flag.names[0]} and {other} exclude each other")


def _argument(verb: Verb, rest: list[str], args: Args) -> None:
    """Give the bare words to the verb's argument."""
    argument = verb.argument
    if _takes_command(verb):
        args.command = _command(rest)
        return
    if rest and (argument is None or (len(rest) > 1 and not argument.many)):
        raise Fail("USAGE", f"{_shown(rest[1 if argument else 0])} is one word too many for '{verb.name}'")
    if not rest and argument and argument.required:
        raise Fail("USAGE", f"'{verb.name}' needs {argument.name}", argument.help)
    if argument and argument.kind:
        args.words = [value_of(argument.kind, word, argument.name) for word in rest]


def _command(rest: list[str]) -> list[bytes] | None:
    """ARGV as bytes; None where there is none."""
    if not rest:
        return None
    words = rest[1:] if rest[0] == "--" else rest
    if not words or not words[0]:
        raise Fail("USAGE", "the command is empty", "give a program and its arguments: add -- PROGRAM ARG…")
    if any("\0" in word for word in words):
        raise Fail("USAGE", "the command contains a NUL byte", "no system call can pass it on")
    try:
        return [raw(word) for word in words]
    except ValueError as error:
        raise Fail("USAGE", f"the command: {error}") from None


def _is_number(word: str) -> bool:
    """A negative number is a value, not a flag (as argparse has it)."""
    return word[:1] == "-" and digits(word[1:].replace(".", "", 1))


def _unknown(verb: Verb | None, name: str) -> Fail:
    known = verb.all_names() if verb else [n for flag in COMMON for n in flag.names]
    whose = f"'{verb.name}' has no flag" if verb else "there is no flag"
    help_ = f"spoolctl {verb.name} --help" if verb else "spoolctl --help"
    return Fail("USAGE", f"{whose} {_shown(name)[1:-1]}", did_you_mean(name, known) or f"see {help_}")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A suggestion from `known`, or ""."""
    from difflib import get_close_matches  # slow to load, and only a mistake needs it

    close = get_close_matches(word, known, 1, 0.6)
    return f"did you mean {close[0]}?" if close else ""


def _shown(word: str) -> str:
    """A word as given, between quotes, cut where it is long, with nothing that a terminal could obey."""
    if not word.isprintable():
        from spoolctl.text import printable  # loaded for mistakes only, and for few of them

        word = printable(word)
    return f"'{word}'" if len(word) <= 60 else f"'{word[:59]}…'"
