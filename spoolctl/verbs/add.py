"""add: put a command into the queue."""

from __future__ import annotations

import os

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.language.spec import Argument, Flag, Verb
from spoolctl.language.values import (
    Choice,
    Command,
    Duration,
    Integer,
    Moment,
    Name,
    Pair,
    Path,
    Size,
    Tag,
    Text,
    Variable,
)
from spoolctl.run.bell import ring
from spoolctl.store.submit import Submission, submit
from spoolctl.store.vector import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

COMMAND = Argument("ARGV", None, "the program and its arguments, after -- or from the first bare word on")
ON_OVERFLOW = Flag(
    "--on-overflow",
    kind=Choice(("kill", "truncate"), "WHAT"),
    help="where it writes more: kill it, which is a failure, or let it run and cut out the middle (default: kill)",
)
SUBMIT_FLAGS = (
    Flag("-c", kind=Command(), help="run STRING with sh -c; instead of ARGV"),
    Flag("--cwd", kind=Path(), help="directory of the command (default: the worker's); links are kept"),
    Flag(
        "--env",
        kind=Pair(limits.ENV_KEY_MAX, limits.ENV_VALUE_MAX),
        many=True,
        help="set a variable for the command; the last one of a name wins; stored as plain text",
    ),
    Flag(
        "--secret-env",
        kind=Variable(limits.ENV_KEY_MAX),
        many=True,
        help="a variable that the command needs and the worker must have; only its name is stored",
    ),
    Flag(
        "--timeout",
        kind=Duration(limits.TIMEOUT_MIN, limits.TIMEOUT_MAX),
        default=limits.TIMEOUT_DEFAULT,
        help="end the command, with everything it started, after that long",
    ),
    Flag(
        "--max-retries",
        kind=Integer(0, limits.RETRIES_MAX),
        default=limits.RETRIES_DEFAULT,
        help="executions after the first where the command fails, times out or cannot be started",
    ),
    Flag(
        "--max-crashes",
        kind=Integer(0, limits.CRASHES_MAX),
        help="executions after the first where the worker dies (default: unbounded)",
    ),
    Flag(
        "--max-output",
        kind=Size(limits.OUTPUT_MIN, limits.MAX_INT),
        help="how much it may write to stdout, and to stderr (default: what 'queue' sets, or no limit)",
    ),
    ON_OVERFLOW,
    Flag("--queue", kind=Name(), default=limits.QUEUE_DEFAULT, help="the queue to put it in"),
    Flag(
        "--priority",
        kind=Integer(limits.PRIORITY_MIN, limits.PRIORITY_MAX),
        default=0,
        help="higher ones run first within their queues",
    ),
    Flag("--after", kind=Duration(0, limits.DELAY_MAX), default=0, help="not before that long from now"),
    Flag("--at", kind=Moment(), excludes=("--after",), help="not before that time"),
    Flag("--key", kind=Text(limits.KEY_MAX, "KEY", 1), help="submit once: again, it answers with the same job"),
    Flag(
        "--if-finished",
        kind=Choice(("keep", "add"), "WHAT"),
        default="keep",
        help="where the key's job is done, dead or canceled: keep it as the answer, or add a new one",
    ),
    Flag(
        "--tag",
        kind=Tag(limits.TAG_NAME_MAX, limits.TAG_VALUE_MAX, "K=V"),
        many=True,
        help="a label to find it by; the last one of a name wins",
    ),
    Flag("--note", kind=Text(limits.NOTE_MAX), help="words for people"),
)

BATCH = Flag(
    "--batch",
    kind=Path(),
    help="submit one job a line of FILE (- is stdin), all or none: JSON objects with the names of these flags as keys"
    ' (argv or c, tags and env as objects); flags given beside it hold for every line that does not say otherwise',
    excludes=("-c", "--key"),
)

TRUST = Flag("--trust", help="make the queue even on a file system of a network")

VERB = Verb(
    "add",
    "put a command into the queue",
    group="submit",
    details="The job is on disk when its number is printed. A worker (spoolctl work) runs it.",
    argument=COMMAND,
    flags=(*SUBMIT_FLAGS, BATCH, TRUST),
    examples=[
        ("add -- make test", "run a program"),
        ("add -c 'date > stamp && ls'", "run a shell command"),
        ("add --key nightly-2027-01-31 --timeout 2h -- ./nightly", "submit once, however often it is called"),
        ("add --batch jobs.jsonl --queue nightly", "many at once, each line like {\"argv\": [\"make\", \"test\"]}"),
        ("add --queue gpu --priority 5 --tag batch=7 -- train", "choose a queue, an order and a label"),
    ],
    mutates=True,
    creates=True,
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """Submit one job, or with --batch many."""
    if args.batch is not None:
        return _run_batch(args, context)
    wanted = submission(args, context)
    database = context.open(create_missing=True, trust=args.trust)
    with database.write() as tx:
        answer = submit(tx, context.clock.wall(), wanted, args.if_finished == "add")
    ring(database.place)
    database.close()
    return {
        "job_id": answer.job,
        "state": answer.state,
        "deduplicated": answer.deduplicated,
        "env": sorted(name.decode("utf-8", "backslashreplace") for name in wanted.env),
        "warnings": answer.warnings,
    }


def text(data: dict[str, Any]) -> str:
    """The fixed line, or what is there already."""
    if "ids" in data:
        there = f" ({data['deduplicated']} were there already)" if data["deduplicated"] else ""
        return f"Added jobs {_ranges(data['ids'])}{there}\n" if data["ids"] else "Added no job: there is no line\n"
    if data["deduplicated"]:
        return f"Job {data['job_id']} has this key already ({data['state']})\n"
    return f"Added job {data['job_id']}\n"


def _run_batch(args: Args, context: Context) -> dict[str, Any]:
    """Submit a job a line, all or none. The lines are read before the queue is locked."""
    from spoolctl.language import batch  # with JSON, which one job does without
    from spoolctl.store.bulk import Bulk

    if args.command is not None:
        raise Fail("USAGE", "--batch and ARGV exclude each other", "the commands are in the file")
    try:
        stream = open(0 if args.batch == "-" else args.batch, "rb", closefd=args.batch != "-")
    except OSError as error:
        raise Fail("USAGE", f"--batch {args.batch}: {error.strerror}", "name a file, or - for stdin") from error
    with stream:
        lines = batch.read(stream, SUBMIT_FLAGS, args)
        first = next(lines, None)  # what is wrong with the first line makes no queue
        database = context.open(create_missing=True, trust=args.trust)
        bulk = Bulk(database)
        while first is not None:
            number, line = first
            try:
                bulk.collect(submission(line, context), line.if_finished == "add")
            except Fail as fail:
                raise Fail(fail.code, f"--batch line {number}: {fail.message}", fail.hint) from None
            if bulk.count % 50_000 == 0 and context.interactive:
                context.say(f"{bulk.count} lines read")
            first = next(lines, None)
    ids, known = bulk.submit(context.clock.wall())
    ring(database.place)
    database.close()
    return {"ids": ids, "added": len(ids) - known, "deduplicated": known}


def _ranges(ids: list[int]) -> str:
    """`1-3, 5, 7-9`, in the order given."""
    found: list[list[int]] = []
    for number in ids:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def submission(args: Args, context: Context) -> Submission:
    """What the words ask for. Raises Fail("USAGE") where they ask for no command, or for two."""
    if (args.command is None) == (args.c is None):
        what = "no command is given" if args.c is None else "-c and ARGV exclude each other"
        raise Fail("USAGE", what, "give either -- PROGRAM ARG… or -c STRING")
    if args.if_finished != "keep" and args.key is None:
        raise Fail("USAGE", "--if-finished needs --key", "without a key every submission is a new job")
    if args.on_overflow is not None and args.max_output is None:
        raise Fail("USAGE", "--on-overflow needs --max-output", "the queue's own limit has its own, see spoolctl queue")
    wanted = Submission(args.command or [b"sh", b"-c", args.c])
    wanted.cwd = None if args.cwd is None else absolute(args.cwd, context)
    wanted.env = dict(args.env)
    wanted.secret = secrets(args.secret_env, wanted.env) if args.secret_env else None
    wanted.tags = dict(args.tag)
    wanted.delay, wanted.at = int(args.after * 1000), args.at
    wanted.queue, wanted.priority, wanted.timeout = args.queue, args.priority, args.timeout
    wanted.max_retries, wanted.max_crashes = args.max_retries, args.max_crashes
    wanted.max_output = args.max_output
    wanted.overflow = None if args.max_output is None else args.on_overflow or "kill"
    wanted.key, wanted.note = args.key, args.note
    return wanted


def secrets(names: list[bytes], env: dict[bytes, bytes]) -> bytes:
    """The names as they are stored. Raises Fail where the value of one is given too."""
    for name in names:
        if name in env:
            both = f"--secret-env {name.decode('utf-8', 'backslashreplace')}: --env sets it"
            raise Fail("USAGE", both, "give one of the two: a secret's value is the worker's")
    return pack(sorted(set(names)))


def absolute(path: str, context: Context) -> bytes:
    """The path from the root, with its links kept: `.` is $PWD where that names this folder."""
    if not os.path.isabs(path):
        here, logical = context.cwd(), context.environ.get("PWD", "")
        path = os.path.join(logical if os.path.isabs(logical) and _same_folder(logical, here) else here, path)
    return os.fsencode(os.path.normpath(path))


def _same_folder(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
