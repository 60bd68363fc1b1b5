"""The command line: words to verb, run, print. The only place that turns errors into exit codes.

Nothing but the verb's answer is ever on stdout. Never a traceback, never a half-written object;
a reader that goes away ends the output, not the work.
"""

from __future__ import annotations

import os
import sys

from spoolctl import __version__
from spoolctl.context import Context
from spoolctl.errors import Fail
from spoolctl.language.parse import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from spoolctl.language.spec import Verb

left_out = 0  # lines of the log that could not be written


def main() -> int:
    """Do what the command line asks; the exit status."""
    secure_descriptors()
    tokens = words(sys.argv[1:])
    asked_json = False
    try:
        verb, args = parse(tokens, describe, suggest)
        asked_json = args.json
        if args.help or args.version or verb is None:
            return overview(verb, args)
        return execute(verb, args)
    except Fail as fail:
        report(fail, asked_json or json_asked(tokens))
        return fail.status
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        report(defect(error), asked_json)
        return 3


def secure_descriptors() -> None:
    """Make sure that 0, 1 and 2 are open: else the next file opened would become stdout, and an
    answer would be written into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def words(argv: list[str]) -> list[str]:
    """The arguments as UTF-8 with other bytes as surrogates, whatever table Python decoded them by."""
    if sys.getfilesystemencoding() == "utf-8":
        return argv
    return [os.fsencode(word).decode("utf-8", "surrogateescape") for word in argv]


def describe(name: str) -> Verb | None:
    """The description of a verb, from its file; None where there is no such verb."""
    module = load(name)
    return module.VERB if module else None


def load(name: str) -> ModuleType | None:
    """The module of a verb: the one thing that is loaded by name."""
    if not name.isidentifier() or not name.isascii() or name[0] == "_":
        return None
    full = f"spoolctl.verbs.{name}"
    try:
        __import__(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        return None
    return sys.modules[full]


def suggest(name: str) -> str:
    """The hint for a verb that is not there."""
    from spoolctl.language.parse import did_you_mean
    from spoolctl.surface.help import verb_names

    return did_you_mean(name, [*verb_names(), "--help", "--version"]) or "spoolctl --help lists the verbs"


def overview(verb: Verb | None, args: Any) -> int:
    """--help and --version, and the tool without a verb."""
    if not args.version and not args.help:
        raise Fail("USAGE", "say what to do", "spoolctl --help lists the verbs")
    if args.version:
        answer(as_json({"version": __version__}) if args.json else encode(f"spoolctl {__version__}\n"))
    else:
        from spoolctl.surface import help as pages

        page = pages.page(verb) if verb else pages.overview()
        answer(as_json({"help": page}) if args.json else encode(page))
    return 0


def execute(verb: Verb, args: Any) -> int:
    """Run the verb and print its answer."""
    module = load(verb.name)
    assert module is not None
    context = Context(args.db, os.environ, log, os.isatty(2))
    try:
        data = module.run(args, context)
    except Fail as fail:
        # "There is no job 1" is half of the truth where there is no queue either.
        fail.hint = "; ".join(context.warnings) or fail.hint
        raise
    warnings = context.warnings + data.get("warnings", [])
    if not args.json:
        for warning in warnings:
            say(f"warning: {warning}")
    if args.json:
        answer(as_json({**data, "warnings": [plain(warning) for warning in warnings]}))
    elif hasattr(module, "stream"):
        module.stream(data, args, put)
    else:
        answer(encode(module.text(data)))
    status: int = module.status(data) if hasattr(module, "status") else 0
    return status


def answer(said: bytes) -> None:
    """Write the answer. Where that cannot be done, what it was is told with the error: the work has
    been done, and must not be taken for undone."""
    try:
        put(1, said)
    except Fail as fail:
        from spoolctl.text import cut, printable

        told = cut(printable(said.strip()), 200)
        raise Fail(fail.code, f"{fail.message}; the answer was: {told}", fail.hint) from fail


def report(fail: Fail, json: bool) -> None:
    """Print an error, where its reader looks for it."""
    if json:
        error = {"code": fail.code, "message": plain(fail.message), "hint": plain(fail.hint)}
        try:
            put(1, as_json({"error": error}))
            return
        except Fail:
            pass  # then at least on stderr
    say(f"error: {fail.message}" + (f" ({fail.hint})" if fail.hint else ""))


def json_asked(tokens: list[str]) -> bool:
    """Whether words that could not be parsed ask for JSON; what follows `--` is somebody else's."""
    return "--json" in (tokens[: tokens.index("--")] if "--" in tokens else tokens)


def defect(error: Exception) -> Fail:
    """An error that nobody has thought of, in one line that says where it happened."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
    if isinstance(error, OSError):
        from spoolctl.store.explain import from_system

        return from_system(error, "spoolctl")
    return Fail("INTERNAL", f"{type(error).__name__}: {error}{where}", "this is a defect of spoolctl; please report it")


def as_json(data: dict[str, Any]) -> bytes:
    """One object, one line. A byte that is not UTF-8 (in a path) is shown as an escape: half a
    surrogate pair is no JSON to a strict reader."""
    import json  # the text path does without it

    said = json.dumps(data)
    if "\\udc" in said:
        plain = json.dumps(data, ensure_ascii=False)
        said = "".join(f"\\\\x{ord(c) - 0xDC00:02x}" if "\udc80" <= c <= "\udcff" else c for c in plain)
    return (said + "\n").encode("utf-8")


def encode(text: str) -> bytes:
    """`text` as the terminal's encoding has it."""
    return text.encode((sys.stdout and sys.stdout.encoding) or "utf-8", "backslashreplace")


def say(line: str) -> None:
    """One line for people, on stderr. A reader that has gone away is no reason to stop."""
    try:
        put(2, encode(plain(f"spoolctl: {line}") + "\n"))
    except Fail:
        pass


def log(line: str) -> None:
    """The same for what is said on the way. A reader that has stopped reading (a full pipe, Ctrl-S)
    must not stop the worker: what it does not take is left out, and how much that was is told."""
    import select

    global left_out
    if not select.select([], [2], [], 0)[1]:
        left_out += 1
        return
    if left_out:
        say(f"({left_out} lines were left out: nobody read them)")
        left_out = 0
    say(line)


def plain(line: str) -> str:
    """The line with everything that a terminal could obey escaped."""
    if line.isprintable():
        return line
    from spoolctl.text import printable  # most lines are plain, and most calls say none

    return printable(line)


def put(descriptor: int, data: bytes) -> bool:
    """Write all of `data`; False where the reader has gone away, which is its right.

    Written with the system call: Python's own streams complain at exit about a closed pipe.
    Raises Fail where it cannot be written for another reason.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            wait_writable(descriptor)
        except BrokenPipeError:
            return False
        except OSError as error:
            name = "stdout" if descriptor == 1 else "stderr"
            raise Fail("IO_ERROR", f"{name}: {error.strerror}", "make room, or write somewhere else") from error
    return True


def wait_writable(descriptor: int) -> None:
    """A terminal or pipe that somebody has set to non-blocking is full: wait until it is not."""
    import select

    select.select([], [descriptor], [])
