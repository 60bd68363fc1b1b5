"""output: replay what a job has written, byte for byte."""

from __future__ import annotations

import os

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.language.spec import Argument, Flag, Verb
from spoolctl.language.values import JOB, Integer
from spoolctl.store import read
from spoolctl.store.control import not_found
from spoolctl.store.explain import from_system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

CHUNK = 1 << 20
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a fifo in its place has no end
STREAMS = (("stdout", 1), ("stderr", 2))

VERB = Verb(
    "output",
    "replay what a job has written",
    group="look",
    details=(
        "What the command wrote to stdout goes to stdout, what it wrote to stderr to stderr, nothing added. Of a"
        " running job it is what there is so far."
    ),
    argument=Argument("ID", JOB, "the number of a job; spoolctl list shows them"),
    flags=(
        Flag("--attempt", kind=Integer(1, limits.MAX_INT), help="of this execution (default: the last)"),
        Flag("--all", help="of every execution, the first one first", excludes=("--attempt",)),
        Flag("--stdout", help="only stdout", excludes=("--stderr",)),
        Flag("--stderr", help="only stderr"),
    ),
    examples=[("output 7", "of the last execution"), ("output 7 --attempt 1 --stderr", "the errors of the first one")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """Where the output is, and with --json the end of it."""
    job = args.words[0]
    database = context.open(read_only=True)
    with database.read() as tx:
        if not read.jobs(tx, [job]):
            raise not_found(job)
        attempts = read.attempts(tx, database, job)
    database.close()
    if args.attempt is not None:
        attempts = [attempt for attempt in attempts if attempt["attempt"] == args.attempt]
        if not attempts:
            raise Fail("NOT_FOUND", f"--attempt {args.attempt}: job {job} has no such attempt", f"spoolctl show {job}")
    elif not args.all:
        attempts = attempts[-1:]
    wanted = ["stdout"] if args.stdout else ["stderr"] if args.stderr else ["stdout", "stderr"]
    chosen = [{"attempt": a["attempt"], "state": a["state"], **{name: a[name] for name in wanted}} for a in attempts]
    if args.json:
        for attempt in chosen:
            for name in wanted:
                attempt[name].update(_preview(attempt[name]))
    return {"job_id": job, "attempts": chosen, "warnings": [] if chosen else [f"job {job} has not been started yet"]}


def stream(data: dict[str, Any], args: Args, put: Callable[[int, bytes], bool]) -> None:
    """Copy the files in pieces: an output may be larger than the memory."""
    lost = []
    for attempt in data["attempts"]:
        for name, descriptor in STREAMS:
            file = attempt.get(name)
            if file and file["missing"]:
                lost.append(file["path"])
            elif file and not _copy(file["path"], descriptor, put):
                return
    if lost:
        why = "it was removed, lost by its disk, or not copied (backup --with-output)"
        raise Fail("OUTPUT_MISSING", f"{lost[0]} is gone", why)


def _copy(path: str, descriptor: int, put: Callable[[int, bytes], bool]) -> bool:
    """False where the reader has gone away."""
    try:
        file = os.open(path, READ)
    except FileNotFoundError:
        return True  # it has not been made yet
    except OSError as error:
        raise from_system(error, path) from error
    try:
        left = os.fstat(file).st_size  # what there is so far: some write faster than one can read
        while left:
            piece = os.read(file, min(CHUNK, left))
            if not piece:
                break
            if not put(descriptor, piece):
                return False
            left -= len(piece)
        return True
    finally:
        os.close(file)


def _preview(file: dict[str, Any]) -> dict[str, Any]:
    """The end of the output as text, for programs that want no second call."""
    try:
        with open(file["path"], "rb", opener=lambda path, _: os.open(path, READ)) as stream:
            stream.seek(max(0, (file["bytes"] or 0) - limits.OUTPUT_PREVIEW))
            raw = stream.read(limits.OUTPUT_PREVIEW)
    except OSError:
        return {"text": None, "truncated": None}
    return {"text": raw.decode("utf-8", "backslashreplace"), "truncated": (file["bytes"] or 0) > len(raw)}
