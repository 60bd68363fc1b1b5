"""show: everything about one job."""

from __future__ import annotations

from spoolctl.language.spec import Argument, Verb
from spoolctl.language.values import JOB
from spoolctl.run.liveness import lock_held
from spoolctl.store import read
from spoolctl.text import command_line, duration, printable, size, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "show",
    "show everything about one job",
    group="look",
    details="The only verb that shows the values of --env.",
    argument=Argument("ID", JOB, "the number of a job; spoolctl list shows them"),
    examples=[("show 7", "for people"), ("show 7 --json", "job, attempts and events for a program")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """The job with its attempts and its events."""
    database = context.open(read_only=True)
    with database.read() as tx:
        shown = read.show(tx, database, args.words[0])
    database.close()
    for attempt in shown["attempts"]:
        attempt["output_held"] = lock_held(attempt["stdout"]["path"])
    return shown


def text(data: dict[str, Any]) -> str:
    """The facts a line each, then the attempts, then the ledger."""
    lines = [f"{name + ':':<13}{value}\n" for name, value in facts(data["job"]) if value not in (None, "")]
    if data["attempts"]:
        head = ["attempt", "state", "took", "how", "output", "worker"]
        lines += ["\n", table(head, [_attempt(attempt) for attempt in data["attempts"]])]
    rows = [
        [e["at"] or "", e["event"], str(e["attempt"] or ""), printable(e["worker"] or ""), printable(e["detail"] or "")]
        for e in data["events"]
    ]
    return "".join([*lines, "\n", table(["at", "event", "attempt", "worker", "detail"], rows)])


def facts(job: dict[str, Any]) -> list[tuple[str, Any]]:
    """What is known of a job, by name; None where there is nothing to tell."""
    crashes = "unbounded" if job["max_crashes"] is None else f"{job['max_crashes'] + 1} runs"
    return [
        ("job", job["id"]),
        ("state", job["state"] + (" (being stopped)" if job["stopping"] else "")),
        ("command", command_line(job["argv"])),
        ("queue", job["queue"]),
        ("priority", job["priority"] or None),
        ("key", printable(job["key"] or "")),
        ("tags", " ".join(printable(f"{name}={value}") for name, value in job["tags"].items())),
        ("note", printable(job["note"] or "")),
        ("cwd", printable(job["cwd"] or "")),
        ("env", " ".join(printable(f"{name}={value}") for name, value in job["env"].items())),
        ("secret env", ", ".join(map(printable, job["secret_env"]))),
        ("timeout", f"{job['timeout']}s"),
        ("max output", job["max_output"] and f"{size(job['max_output'])}, then {job['on_overflow']}"),
        ("failures", f"{job['failures']} of {job['max_retries'] + 1} runs"),
        ("crashes", f"{job['crashes']} of {crashes}" if job["crashes"] or job["max_crashes"] is not None else None),
        ("created", job["created_at"]),
        ("due", job["due_at"] if job["state"] in ("queued", "failed") else None),
        ("started", job["started_at"]),
        ("finished", job["finished_at"]),
        ("result", how(job)),
    ]


def how(record: dict[str, Any]) -> str:
    """How a job's last attempt, or an attempt, ended."""
    ended = record["signal"] or ("" if record["exit_code"] is None else f"exit {record['exit_code']}")
    return ", ".join(part for part in (record["failure_reason"], ended, printable(record["error"] or "")) if part)


def _attempt(attempt: dict[str, Any]) -> list[str]:
    took = "" if attempt["seconds"] is None else duration(attempt["seconds"])
    return [
        str(attempt["attempt"]),
        attempt["state"],
        took,
        how(attempt),
        f"{_file(attempt['stdout'])} + {_file(attempt['stderr'])}"
        + (" (still held)" if attempt["output_held"] and attempt["state"] != "running" else ""),
        printable(attempt["worker"]),
    ]


def _file(output: dict[str, Any]) -> str:
    cut = f" ({size(output['cut'])} cut out)" if output["cut"] else ""
    return "missing" if output["missing"] else size(output["bytes"] or 0) + cut
