"""Pages for people, made from the verbs' descriptions. Called by `cli.py` for --help."""

from __future__ import annotations

import pkgutil
import sys
from textwrap import wrap

from spoolctl import __version__, verbs
from spoolctl.errors import EXITS
from spoolctl.language.spec import COMMON
from spoolctl.limits import ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from spoolctl.language.spec import Argument, Flag, Verb

WIDTH = 100
GROUPS = (
    ("submit", "Submit"),
    ("run", "Run"),
    ("look", "Look"),
    ("control", "Control"),
    ("self", "About the tool"),
)
ENOUGH = """\
  spoolctl add -- echo hello     put a command into the queue: Added job 1
  spoolctl work --drain          run what is there, then leave
  spoolctl output 1              what the command wrote
"""


def verb_names() -> list[str]:
    """Every verb, found by its file."""
    return sorted(module.name for module in pkgutil.iter_modules(verbs.__path__))


def all_verbs() -> list[Verb]:
    """Every verb's description, in the order of the groups and their names."""
    found = []
    for name in verb_names():
        __import__(f"spoolctl.verbs.{name}")
        found.append(sys.modules[f"spoolctl.verbs.{name}"].VERB)
    order = [group for group, _ in GROUPS]
    return sorted(found, key=lambda verb: (order.index(verb.group), verb.name))


def overview() -> str:
    """`spoolctl --help`."""
    described = all_verbs()
    lines = [f"spoolctl {__version__}: a local job queue for shell commands, built for operators that die\n\n"]
    lines += ["usage: spoolctl [--db PATH] [--json] VERB …\n\n", ENOUGH]
    for group, title in GROUPS:
        pairs = [(verb.name, verb.summary) for verb in described if verb.group == group]
        lines += [f"\n{title}\n", _columns(pairs)] if pairs else []
    common = [(_flag_usage(flag), flag.help) for flag in COMMON]
    lines += ["\nBefore and after every verb\n", _columns(common)]
    lines += ["\nEnvironment\n", _columns((name, what) for name, what in ENVIRONMENT.items() if "_TEST_" not in name)]
    lines += ["\nExit status\n", _columns((str(status), what) for status, what in EXITS.items())]
    lines += ["\nspoolctl VERB --help explains a verb.\n"]
    return "".join(lines)


def page(verb: Verb) -> str:
    """`spoolctl VERB --help`."""
    lines = [f"{usage(verb)}\n\n{verb.summary[0].upper()}{verb.summary[1:]}.\n"]
    if verb.details:
        lines += ["\n", "\n".join(wrap(verb.details, WIDTH)), "\n"]
    if verb.argument:
        pairs = [(verb.argument.name, _argument_help(verb.argument))]
        lines += ["\n", _columns(pairs)]
    if verb.flags:
        lines += ["\nFlags\n", _columns((_flag_usage(flag), _flag_help(flag)) for flag in verb.flags)]
    lines += ["\nEverywhere\n", _columns((_flag_usage(flag), flag.help) for flag in COMMON)]
    if verb.examples:
        lines += ["\nExamples\n", _columns((f"spoolctl {words}", what) for words, what in verb.examples)]
    return "".join(lines)


def usage(verb: Verb) -> str:
    """The verb's form in one line."""
    parts = ["usage: spoolctl", verb.name, "[FLAG]…" if verb.flags else ""]
    argument = verb.argument
    if argument:
        form = "-- ARGV… | -c STRING" if argument.is_command else argument.name + ("…" if argument.many else "")
        parts.append(form if argument.required else f"[{form}]")
    return " ".join(part for part in parts if part)


def _argument_help(argument: Argument) -> str:
    form = f": {argument.kind.says}" if argument.kind else ""
    return argument.help + form


def _flag_usage(flag: Flag) -> str:
    names = ", ".join(flag.names)
    return f"{names} {flag.kind.word}" if flag.kind else names


def _flag_help(flag: Flag) -> str:
    if flag.kind is None:
        return flag.help
    default = "" if flag.default in (None, []) else f"; default {flag.default}"
    return f"{flag.help} [{flag.kind.says}{default}]"


def _columns(pairs: Iterable[tuple[str, str]]) -> str:
    """Two columns; a left side too wide for its column has a line of its own."""
    left = 28
    lines = []
    for name, what in pairs:
        folded = wrap(what, WIDTH - left - 4) or [""]
        first = f"  {name:<{left}}  " if len(name) <= left else f"  {name}\n" + " " * (left + 4)
        lines.append(first + ("\n" + " " * (left + 4)).join(folded) + "\n")
    return "".join(lines)
