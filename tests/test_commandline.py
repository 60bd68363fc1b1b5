"""The command line as its user types it, on the source tree and on the single file."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spoolctl import cli
from spoolctl.store.database import open_queue
from tests.conftest import AS_NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conftest import Spool

JOB = {
    *("id", "argv", "argv_b64", "state", "queue", "priority", "key", "tags", "note", "cwd", "cwd_b64", "env"),
    *("secret_env", "max_output", "on_overflow"),
    *("timeout", "max_retries", "max_crashes", "failures", "crashes", "attempts", "created_at", "due_at"),
    *("started_at", "finished_at", "exit_code", "signal", "failure_reason", "error", "stopping", "terminal"),
    "succeeded",
}
ATTEMPT = {
    *("attempt", "state", "worker", "pid", "started_at", "finished_at", "seconds", "user_seconds", "system_seconds"),
    *("peak_memory_bytes", "exit_code", "signal", "failure_reason", "error", "stdout", "stderr", "output_held"),
}
COUNTS = {"queued", "running", "done", "failed", "dead", "canceled"}
ZEROS = "queued: 0   running: 0   done: 0   failed: 0   dead: 0\n"
HOSTILE = "\x1b]0;owned\x07\x1b[31m\nnew line\rback\u202egpj\u2066\x9b2J"
GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate


def typed(spool: Spool, cwd: str | bytes | Path, *words: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """One command line, given in another folder than the spool's."""
    return subprocess.run([*spool.command, *words], cwd=cwd, env=spool.env, capture_output=True, check=False)


def in_shell(spool: Spool, script: str, *words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """What a shell makes of `script`, in which "$@" is a command line of the tool."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    line = ["sh", "-c", script, "sh", *spool.command, *words]
    return subprocess.run(line, cwd=spool.folder, env=spool.env, check=False, **streams)


def refused_in_words(spool: Spool, words: list[Any], *says: str, code: int = 1, **env: str) -> None:
    """A refusal as people see it: one line on stderr, and nothing else anywhere."""
    before = sorted(spool.folder.iterdir())
    plain = spool.run(*words, code=code, **env)
    line = plain.stderr.decode()
    assert plain.stdout == b""
    assert line.startswith("spoolctl: error: ")
    assert line.endswith("\n")
    assert line.count("\n") == 1, line
    for part in says:
        assert part in line
    assert sorted(spool.folder.iterdir()) == before


def error_object(stdout: bytes, says: Sequence[str]) -> dict[str, str]:
    """The error object that is all of `stdout`, and says all of `says`."""
    answer = json.loads(stdout)
    error: dict[str, str] = answer["error"]
    assert stdout.count(b"\n") == 1
    assert answer.keys() == {"error"}
    assert error.keys() == {"code", "message", "hint"}
    for part in says:
        assert part in error["message"] + " " + error["hint"]
    return error


def refused(spool: Spool, words: list[Any], *says: str, code: int = 1, **env: str) -> dict[str, str]:
    """Both faces of a refusal: for people, and the error object for programs."""
    refused_in_words(spool, words, *says, code=code, **env)
    before = sorted(spool.folder.iterdir())
    told = spool.run("--json", *words, code=code, **env)
    assert told.stderr == b""
    assert sorted(spool.folder.iterdir()) == before
    return error_object(told.stdout, says)


def hurry(spool: Spool) -> None:
    """Let every job that waits for its time be due now."""
    database = open_queue(spool.place)
    with database.write() as tx:
        tx.execute("UPDATE jobs SET due_at = 0 WHERE ready = 0")
    database.close()


def harmless(text: str) -> bool:
    """Whether nothing in `text` is more to a terminal than a character or the end of a line."""
    return all(char == "\n" or char.isprintable() for char in text)


# The main job, and the lines that are fixed


def test_a_command_is_queued_run_and_read_back(any_form: Spool) -> None:
    added = any_form.run("add", "--", "echo", "hello from spoolctl")
    assert (added.stdout, added.stderr) == (b"Added job 1\n", b"")
    worked = any_form.run("work", "--drain")
    assert worked.stdout == b"executed 1: 1 done\n"
    assert b"job 1 attempt 1 succeeded (exit 0)" in worked.stderr
    read = any_form.run("output", "1")
    assert (read.stdout, read.stderr) == (b"hello from spoolctl\n", b"")
    assert any_form.text("status") == "queued: 0   running: 0   done: 1   failed: 0   dead: 0\n"


def test_status_counts_what_runs_in_its_fixed_line_and_in_json(any_form: Spool) -> None:
    any_form.add("--", "true")
    running = any_form.add("--", "sh", "-c", GATE)
    any_form.worker("--drain", "--worker-id", "w1")
    any_form.until_state(running, "running")
    assert any_form.text("status") == "queued: 0   running: 1   done: 1   failed: 0   dead: 0\n"
    status = any_form.json("status")
    assert status.keys() == {"counts", "recent_dead", "queues", "workers", "warnings"}
    assert status["counts"] == {"queued": 0, "running": 1, "done": 1, "failed": 0, "dead": 0, "canceled": 0}
    assert status["recent_dead"] == []
    assert [queue.keys() for queue in status["queues"]] == [{"queue", "slots", "paused", *COUNTS}]
    assert status["workers"] == {"alive": 1, "hung": 0, "dead": 0}
    shown = any_form.json("show", str(running))
    assert shown["job"]["finished_at"] is None
    assert shown["job"]["succeeded"] is None
    assert shown["attempts"][0]["finished_at"] is shown["attempts"][0]["seconds"] is None
    workers = any_form.json("workers")
    assert workers.keys() == {"workers", "warnings"}
    [worker] = workers["workers"]
    assert worker.keys() == {
        *("worker", "state", "pid", "host", "queues", "jobs", "running", "started_at", "heartbeat_age"),
    }
    assert (worker["worker"], worker["state"], worker["running"]) == ("w1", "alive", [running])
    (any_form.folder / "go").touch()
    any_form.until_state(running, "done")


def test_a_dead_job_is_requeued_in_the_fixed_words(any_form: Spool) -> None:
    for _ in range(6):
        any_form.add("--after", "1h", "--", "true")
    dead = any_form.add("--max-retries", "0", "--", "sh", "-c", "exit 3")
    drain = any_form.json("work", "--drain", code=6)
    assert drain.keys() == {"worker", "mode", "executed", "ended", "settled", "stopped", "warnings"}
    assert drain["ended"] == {"done": 0, "failed": 0, "dead": 1, "canceled": 0, "queued": 0}
    assert (drain["mode"], drain["executed"], drain["settled"], drain["stopped"]) == ("drain", 1, True, False)
    [job] = any_form.json("status")["recent_dead"]
    assert job.keys() == JOB
    assert (job["id"], job["failure_reason"], job["exit_code"], job["succeeded"]) == (7, "process_exit", 3, False)
    assert any_form.text("retry", str(dead)) == "Job 7 requeued\n"
    assert any_form.job(7)["state"] == "queued"


def test_retries_read_as_failures_of_runs(any_form: Spool) -> None:
    any_form.add("--", "false")
    assert "of 4 runs" not in any_form.text("list")
    for failures in ("1 of 4 runs", "2 of 4 runs"):
        any_form.run("work", "--once")
        assert failures in any_form.text("list")
        assert f"failures:    {failures}\n" in any_form.text("show", "1")
        hurry(any_form)


def test_jobs_run_by_priority_then_by_age(any_form: Spool) -> None:
    for priority, name in (("0", "b"), ("-1", "d"), ("7", "a"), ("0", "c")):
        any_form.add("--priority", priority, "-c", f"echo {name} >> order")
    any_form.run("work", "--drain")
    assert (any_form.folder / "order").read_text() == "a\nb\nc\nd\n"


# The shapes that programs hold on to


def test_add_answers_with_the_job_and_names_the_environment_only(any_form: Spool) -> None:
    answer = any_form.json("add", "--env", "B=hunter2", "--env", "A=hunter3", "--", "true")
    assert answer == {"job_id": 1, "state": "queued", "deduplicated": False, "env": ["A", "B"], "warnings": []}


def test_a_job_that_has_not_run_has_every_key_and_null_for_what_is_unknown(any_form: Spool) -> None:
    any_form.add("--", "true")
    listed = any_form.json("list")
    assert listed.keys() == {"jobs", "more", "warnings"}
    [job] = listed["jobs"]
    assert job.keys() == JOB
    unknown = {"argv_b64", "key", "note", "cwd", "cwd_b64", "max_crashes", "started_at", "finished_at", "exit_code"}
    unknown |= {"signal", "failure_reason", "error", "succeeded", "max_output", "on_overflow"}
    assert {name for name in JOB if job[name] is None} == unknown
    assert (job["argv"], job["tags"], job["env"], job["timeout"], job["max_retries"]) == (["true"], {}, [], 300, 3)
    shown = any_form.json("show", "1")
    assert shown.keys() == {"job", "attempts", "events", "warnings"}
    assert shown["job"] == {**job, "env": {}}
    assert shown["attempts"] == []
    assert [event["event"] for event in shown["events"]] == ["added"]
    assert shown["events"][0].keys() == {"seq", "at", "event", "attempt", "worker", "detail"}


def test_an_attempt_has_every_key(any_form: Spool) -> None:
    any_form.add("--", "sh", "-c", "kill -9 $$")
    any_form.run("work", "--once")
    shown = any_form.json("show", "1")
    [attempt] = shown["attempts"]
    assert attempt.keys() == ATTEMPT
    assert attempt["stdout"].keys() == attempt["stderr"].keys() == {"path", "bytes", "missing", "cut"}
    assert (attempt["state"], attempt["signal"], attempt["exit_code"]) == ("failed", "SIGKILL", None)
    assert (attempt["failure_reason"], attempt["stdout"]["bytes"]) == ("process_exit", 0)
    assert attempt["seconds"] >= 0
    assert attempt["finished_at"].endswith("Z")
    assert (shown["job"]["state"], shown["job"]["terminal"], shown["job"]["finished_at"]) == ("failed", False, None)


def test_list_finds_by_state_queue_tag_and_key_and_says_when_there_is_more(any_form: Spool) -> None:
    any_form.add("--queue", "gpu", "--tag", "batch=7", "--tag", "kind=a", "--key", "k", "--", "true")
    any_form.add("--tag", "batch=7", "--", "true")
    any_form.add("--max-retries", "0", "--queue", "gpu", "--", "false")
    any_form.run("work", "--drain", "--queue", "gpu", code=6)

    def found(*words: str) -> list[int]:
        return [job["id"] for job in any_form.json("list", *words)["jobs"]]

    assert found() == [3, 2, 1]
    assert found("--state", "done", "--state", "dead") == [3, 1]
    assert found("--queue", "gpu", "--state", "queued") == []
    assert found("--queue", "default", "--queue", "gpu") == [3, 2, 1]
    assert found("--tag", "batch=7") == [2, 1]
    assert found("--tag", "batch=7", "--tag", "kind=a") == [1]
    assert found("--tag", "batch=8") == []
    assert found("--key", "k") == [1]
    assert found("--key", "k", "--state", "dead") == []
    assert any_form.json("list", "--limit", "2")["more"] is True
    assert any_form.json("list", "--limit", "3")["more"] is False
    assert any_form.text("list", "--limit", "2").endswith("(there are more: --limit N shows them)\n")


# What is refused

WRONG = {
    "no verb": ([], "--help"),
    "unknown verb": (["bogus"], "bogus", "--help"),
    "a slip in the verb": (["sttaus"], "sttaus", "did you mean status?"),
    "a name inside the package": (["verbs.add"], "verbs.add"),
    "escape sequences in the verb": (["\x1b[31mred\n"], "\\x1b[31mred\\n"),
    "bytes in the verb": ([b"\xff\xfe"], "\\xff\\xfe"),
    "unknown flag": (["add", "--zzz", "true"], "--zzz", "add --help"),
    "a slip in the flag": (["add", "--timeot=5", "true"], "--timeot", "did you mean --timeout?"),
    "an abbreviation": (["add", "--time", "5", "true"], "--time"),
    "a verb's flag before it": (["--timeout", "5", "add", "true"], "--timeout"),
    "a switch with a value": (["status", "--json=yes"], "--json", "no value"),
    "a missing value": (["add", "--timeout"], "--timeout needs a value", "1 to 9223372036854775807"),
    "a missing value before --": (["add", "--timeout", "--", "true"], "--timeout needs a value"),
    "text for a duration": (["add", "--timeout", "soon", "true"], "--timeout 'soon'", "30s, 10m, 2h or 7d"),
    "timeout 0": (["add", "--timeout", "0", "true"], "--timeout '0'", "1 to 9223372036854775807"),
    "a timeout that is too long": (["add", "--timeout", str(2**63), "true"], "--timeout", "9223372036854775807"),
    "a negative timeout": (["add", "--timeout", "-5", "true"], "--timeout '-5'", "from 1"),
    "no number at all": (["add", "--timeout", "nan", "true"], "--timeout 'nan'"),
    "text for a number": (["add", "--max-retries", "many", "true"], "--max-retries 'many'", "0 to 1000000"),
    "a fraction": (["add", "--max-retries", "1.5", "true"], "--max-retries '1.5'", "whole number"),
    "a negative number": (["add", "--max-crashes", "-1", "true"], "--max-crashes '-1'", "0 to 1000000"),
    "a number out of range": (["add", "--priority", "1000001", "true"], "--priority", "-1000000 to 1000000"),
    "no command": (["add"], "no command", "-- PROGRAM", "-c STRING"),
    "an empty command": (["add", "--"], "the command is empty"),
    "an empty program": (["add", "--", ""], "the command is empty"),
    "an empty program without --": (["add", "", "x"], "the command is empty"),
    "an empty shell command": (["add", "-c", " "], "-c ' '", "not empty"),
    "two commands": (["add", "-c", "true", "--", "true"], "-c and ARGV exclude each other"),
    "env without =": (["add", "--env", "A", "true"], "--env 'A'", "no '='", "KEY=VALUE", "1 to 128"),
    "env without a key": (["add", "--env", "=1", "true"], "--env '=1'", "1 to 128"),
    "an env key that is too long": (["add", "--env", "k" * 129 + "=1", "true"], "--env", "129 bytes", "1 to 128"),
    "an env value that is too long": (["add", "--env", "A=" + "v" * 4097, "true"], "--env", "4097 bytes", "0 to 4096"),
    "a tag without =": (["add", "--tag", "x", "true"], "--tag 'x'", "K=V"),
    "a tag that is not text": (["add", "--tag", b"x=\xff", "true"], "--tag 'x=\\xff'", "not UTF-8"),
    "a note that is not text": (["add", "--note", b"\xff", "true"], "--note '\\xff'", "not UTF-8"),
    "an empty key": (["add", "--key", "", "true"], "--key ''", "1 to 200"),
    "a queue that is no name": (["add", "--queue", "a b", "true"], "--queue 'a b'", "1 to 64"),
    "an empty cwd": (["add", "--cwd", "", "true"], "--cwd ''", "not empty"),
    "a date without dashes": (["add", "--at", "20270101", "true"], "--at '20270101'", "2027-01-31T08:00"),
    "a day that does not exist": (["add", "--at", "2027-02-29", "true"], "--at '2027-02-29'"),
    "a second of 1970": (["add", "--at", "1798761600", "true"], "--at '1798761600'"),
    "two times": (["add", "--at", "2027-01-31", "--after", "5", "true"], "--at and --after exclude each other"),
    "if-finished without a key": (["add", "--if-finished", "add", "true"], "--if-finished needs --key"),
    "an unknown choice": (["list", "--state", "zombie"], "--state 'zombie'", "queued, running, done, failed, dead"),
    "a limit of 0": (["list", "--limit", "0"], "--limit '0'", "1 to 10000"),
    "no jobs at once": (["work", "--jobs", "0"], "--jobs '0'", "1 to 1000"),
    "once and drain": (["work", "--once", "--drain"], "--once and --drain exclude each other"),
    "no id": (["show"], "'show' needs ID"),
    "an id that is no number": (["output", "one"], "ID 'one'", "1 to 9223372036854775807"),
    "id 0": (["show", "0"], "ID '0'", "from 1"),
    "an id that is too large": (["show", str(2**63)], f"ID '{2**63}'", "1 to 9223372036854775807"),
    "two ids": (["show", "1", "2"], "'2' is one word too many"),
    "a word too many": (["status", "now"], "'now' is one word too many"),
    "a value given twice": (["add", "--timeout", "5", "--timeout", "5", "true"], "--timeout is given twice"),
    "two queues": (["--db", "a", "status", "--db", "b"], "--db is given twice"),
    "an empty --db": (["status", "--db", ""], "--db ''", "not empty"),
    "an empty --db=": (["--db=", "status"], "--db ''", "not empty"),
    "both streams": (["output", "1", "--stdout", "--stderr"], "--stdout and --stderr exclude each other"),
    "all attempts and one": (["output", "1", "--all", "--attempt", "1"], "--all and --attempt exclude each other"),
    "attempt 0": (["output", "1", "--attempt", "0"], "--attempt '0'", "from 1"),
    "a folder that does not exist": (["--db", "no/where.db", "add", "true"], "no/where.db", "does not exist"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_line_that_names_what_is_wrong_and_leaves_nothing(any_form: Spool, wrong: Any) -> None:
    words, *says = wrong
    refused_in_words(any_form, words, *says)
    assert list(any_form.folder.iterdir()) == []


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_input_is_an_error_object_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], wrong: Any
) -> None:
    words, *says = wrong
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPOOLCTL_DB", raising=False)
    monkeypatch.setattr(sys, "argv", ["spoolctl", "--json", *map(os.fsdecode, words)])
    assert cli.main() == 1
    out, err = capfdbinary.readouterr()
    assert error_object(out, says)["code"] == "USAGE"
    assert err == b""
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_id_is_refused_by_every_verb_that_takes_one(any_form: Spool) -> None:
    any_form.add("--", "true")
    for verb in ("show", "output", "retry", "cancel"):
        assert refused(any_form, [verb, "7"], "there is no job 7")["code"] == "NOT_FOUND"


def test_of_several_ids_one_that_is_unknown_stops_all(any_form: Spool) -> None:
    any_form.add("--", "true")
    refused(any_form, ["cancel", "1", "7"], "there is no job 7")
    assert any_form.job(1)["state"] == "queued"


def test_a_conflict_is_exit_5_with_the_way_out(any_form: Spool) -> None:
    any_form.add("--", "true")
    assert refused(any_form, ["retry", "1"], "job 1 is queued", code=5)["code"] == "CONFLICT"
    any_form.run("work", "--drain")
    refused(any_form, ["retry", "1"], "job 1 is done", "retry --force 1", code=5)
    refused(any_form, ["cancel", "1"], "job 1 is done", code=5)


def test_a_running_job_is_stopped_only_when_confirmed(any_form: Spool) -> None:
    job = any_form.add("--", "sh", "-c", GATE)
    any_form.worker("--drain")
    any_form.until_state(job, "running")
    for words in (["cancel", "1"], ["cancel", "--running", "1"]):
        assert refused(any_form, words, "running", "cancel --running --yes 1", code=2)["code"] == "CONFIRM"
    assert any_form.text("cancel", "--running", "--yes", "1") == "Job 1 canceled\n"
    assert any_form.job(job)["state"] == "canceled"


# Which queue


@pytest.mark.parametrize(
    "words",
    [["--json", "--db", "q.db", "status"], ["status", "--db=q.db", "--json"], ["--db", "q.db", "status", "--json"]],
    ids=" ".join,
)
def test_common_flags_are_understood_before_and_after_the_verb(any_form: Spool, words: list[str]) -> None:
    any_form.run("add", "--db", "q.db", "--", "true")
    assert json.loads(any_form.run(*words).stdout)["counts"]["queued"] == 1
    assert sorted(path.name for path in any_form.folder.iterdir()) == ["q.db", "q.db.d"]


def test_what_follows_the_command_belongs_to_the_command(any_form: Spool) -> None:
    any_form.run("add", "echo", "--json", "--db", "x", "--", "--help")
    assert any_form.json("list")["jobs"][0]["argv"] == ["echo", "--json", "--db", "x", "--", "--help"]


def test_the_variable_names_the_queue_and_the_flag_overrides_it(any_form: Spool) -> None:
    any_form.run("add", "--", "true", SPOOLCTL_DB="one.db")
    any_form.run("add", "--", "true", SPOOLCTL_DB=str(any_form.folder / "one.db"))
    any_form.run("--db", "two.db", "add", "--", "true", SPOOLCTL_DB="one.db")
    any_form.run("--db", "two.db", "status", SPOOLCTL_DB="")
    assert any_form.json("status", SPOOLCTL_DB="one.db")["counts"]["queued"] == 2
    assert any_form.json("status", "--db", "two.db")["counts"]["queued"] == 1


def test_an_empty_variable_is_a_mistake_and_not_unset(any_form: Spool) -> None:
    for words in (["status"], ["add", "true"], ["work", "--once"]):
        assert refused(any_form, words, "SPOOLCTL_DB is empty", SPOOLCTL_DB="")["code"] == "USAGE"
    assert list(any_form.folder.iterdir()) == []


def test_the_nearest_queue_above_is_found_and_a_folder_without_one_is_passed_over(any_form: Spool) -> None:
    any_form.add("--", "true")
    below = any_form.folder / "a" / "b"
    (below / ".spoolctl").mkdir(parents=True)
    assert typed(any_form, below, "add", "true").stdout == b"Added job 2\n"
    assert list((below / ".spoolctl").iterdir()) == []


def test_what_is_no_queue_is_refused_and_left_as_it_is(any_form: Spool) -> None:
    (any_form.folder / "text").write_text("hello\n" * 1000)
    (any_form.folder / "folder").mkdir()
    for words in (["add", "true"], ["status"], ["work", "--once"]):
        for name in ("text", "folder"):
            assert refused(any_form, ["--db", name, *words], name, "--db")["code"] == "NOT_A_QUEUE"
    assert (any_form.folder / "text").read_text() == "hello\n" * 1000


# Reading where there is nothing


def test_reading_verbs_answer_with_zeros_where_no_queue_is_and_create_nothing(any_form: Spool) -> None:
    where = str(any_form.folder / ".spoolctl" / "queue.db")
    for verb, answer in (("status", ZEROS), ("list", ""), ("workers", "")):
        done = any_form.run(verb)
        assert done.stdout.decode() == answer
        assert where in done.stderr.decode()
        told = any_form.json(verb)
        assert any(where in warning for warning in told["warnings"])
    assert any_form.json("status")["counts"] == dict.fromkeys(COUNTS, 0)
    assert any_form.json("list")["jobs"] == []
    assert list(any_form.folder.iterdir()) == []


def test_no_job_is_found_where_no_queue_is_and_nothing_is_created(any_form: Spool) -> None:
    for verb in ("show", "output", "retry", "cancel"):
        assert refused(any_form, [verb, "1"])["code"] == "NOT_FOUND"
    assert list(any_form.folder.iterdir()) == []


# What must not be seen, and what must not be obeyed


def test_the_values_of_env_are_seen_in_show_only(any_form: Spool) -> None:
    seen = b""
    for words in (["add", "--max-retries", "0"], ["add", "--json", "--max-retries", "0"]):
        done = any_form.run(*words, "--env", "TOKEN=hunter2", "--env", "EMPTY=", "--", "false")
        seen += done.stdout + done.stderr
    for words in (["list"], ["list", "--json"], ["work", "--drain"], ["status"], ["status", "--json"], ["output", "1"]):
        done = any_form.run(*words, code=None)
        seen += done.stdout + done.stderr
    assert b"hunter2" not in seen
    assert any_form.json("list")["jobs"][0]["env"] == ["EMPTY", "TOKEN"]
    assert "TOKEN=hunter2" in any_form.text("show", "1")
    assert any_form.job(1)["env"] == {"TOKEN": "hunter2", "EMPTY": ""}


def test_control_characters_never_reach_a_terminal_raw(any_form: Spool) -> None:
    words = ["--key", "k" + HOSTILE, "--note", HOSTILE, "--tag", f"t{HOSTILE}={HOSTILE}"]
    words += ["--env", f"E{HOSTILE}={HOSTILE}", "--max-retries", "0", "--cwd", HOSTILE, "--", "p" + HOSTILE, HOSTILE]
    texts = [any_form.run("add", *words)]
    texts += [any_form.run("add", *words), any_form.run("add", *words, "more", code=5)]
    texts += [any_form.run("list"), any_form.run("show", "1"), any_form.run("work", "--drain", code=6)]
    texts += [any_form.run("status"), any_form.run("show", "1"), any_form.run("list"), any_form.run("workers")]
    wrong = ([HOSTILE], ["show", HOSTILE], ["show", "--" + HOSTILE], ["add", "--at", HOSTILE, "true"])
    texts += [any_form.run(*some, code=1) for some in (*wrong, ["--db", HOSTILE + "/x", "add", "true"])]
    for done in texts:
        assert harmless(done.stdout.decode()), done.stdout
        assert harmless(done.stderr.decode()), done.stderr
    assert b"\\x1b[31m\\nnew line\\rback\\u202egpj" in texts[3].stdout
    for verb in ("show", "list", "status"):
        answer = any_form.run(verb, "--json", *(["1"] if verb == "show" else []))
        assert answer.stdout.isascii()
        assert harmless(answer.stdout.decode())
    assert any_form.job(1)["note"] == HOSTILE


# Bytes that arrive as they were typed


def test_argv_that_is_not_utf8_survives_the_round_trip(any_form: Spool) -> None:
    argv = [b"printf", b"%s|", b"\xff\xfe", "ä".encode(), b"", b"a b\n'\"\\", b"\xe4", b"x" * 100_000]
    any_form.run("add", "--", *argv)
    [job] = any_form.json("list")["jobs"]
    assert [base64.b64decode(word) for word in job["argv_b64"]] == argv
    assert job["argv"][2:5] == ["\\xff\\xfe", "ä", ""]
    any_form.run("work", "--drain")
    assert any_form.run("output", "1").stdout == b"".join(word + b"|" for word in argv[2:])


def test_a_word_has_no_base64_where_it_is_text(any_form: Spool) -> None:
    any_form.run("add", "-c", "echo 'ä'")
    [job] = any_form.json("list")["jobs"]
    assert (job["argv"], job["argv_b64"]) == (["sh", "-c", "echo 'ä'"], None)


# The same key, the right time


def test_the_same_key_is_the_same_job_also_when_it_is_done(any_form: Spool) -> None:
    assert any_form.text("add", "--key", "k", "--", "true") == "Added job 1\n"
    assert any_form.text("add", "--key", "k", "--", "true") == "Job 1 has this key already (queued)\n"
    again = any_form.json("add", "--key", "k", "--note", "new", "--tag", "a=1", "--after", "9", "--", "true")
    assert (again["job_id"], again["state"], again["deduplicated"]) == (1, "queued", True)
    assert [warning.rsplit(" ", 1)[1] for warning in again["warnings"]] == ["note", "tags", "delay"]
    any_form.run("work", "--drain")
    assert any_form.json("add", "--key", "k", "--", "true")["state"] == "done"
    anew = any_form.json("add", "--key", "k", "--if-finished", "add", "--", "true")
    assert (anew["job_id"], anew["deduplicated"]) == (2, False)


def test_a_key_that_belongs_to_something_else_is_a_conflict_that_names_what_differs(any_form: Spool) -> None:
    any_form.run("add", "--key", "k", "--", "true")
    for words, what in ((["--", "false"], "argv"), (["--timeout", "9", "--", "true"], "timeout")):
        error = refused(any_form, ["add", "--key", "k", *words], "--key k", "job 1", what, code=5)
        assert error["code"] == "KEY_CONFLICT"
    assert len(any_form.json("list")["jobs"]) == 1


def test_a_time_may_be_given_in_several_forms_and_means_the_same(any_form: Spool) -> None:
    forms = ("2027-01-31T08:00Z", "2027-01-31 08:00:00Z", "2027-01-31T09:00:00.000+01:00", "2027-01-31T09:00")
    for form in forms:
        any_form.run("add", "--at", form, "--", "true", TZ="XXX-1")
    assert {job["due_at"] for job in any_form.json("list")["jobs"]} == {"2027-01-31T08:00:00.000Z"}


def test_a_time_that_has_passed_means_now_and_a_delay_means_later(any_form: Spool) -> None:
    any_form.add("--at", "1999-12-31T23:59:59Z", "--", "true")
    any_form.add("--after", "1.5h", "--", "true")
    assert any_form.json("work", "--drain")["ended"]["done"] == 1
    past, later = any_form.job(1), any_form.job(2)
    assert (past["state"], later["state"]) == ("done", "queued")
    assert past["due_at"] == past["created_at"]
    assert later["due_at"] > later["created_at"]


# Odd surroundings


@pytest.mark.parametrize("name", ["a b ?#%41&='\"\n", b"not \xff utf8"], ids=["punctuation", "bytes"])
def test_it_works_in_a_folder_with_an_odd_name(any_form: Spool, name: str | bytes) -> None:
    folder = os.path.join(os.fsencode(any_form.folder), os.fsencode(name))
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes no such name")
    typed(any_form, folder, "add", "--cwd", ".", "--", "pwd", "-P")
    assert typed(any_form, folder, "work", "--drain").returncode == 0
    real = os.path.realpath(folder) + b"\n"
    assert typed(any_form, folder, "output", "1").stdout == real
    told = typed(any_form, folder, "output", "1", "--json").stdout
    assert json.loads(told)["attempts"][0]["stdout"]["bytes"] == len(real)
    assert os.listdir(folder) == [b".spoolctl"]


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_bytes_survive_a_locale_that_knows_only_ascii(any_form: Spool, locale: str) -> None:
    any_form.env.update(LC_ALL=locale, LANG=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    del any_form.env["HOME"]
    any_form.run("add", "--note", "é".encode(), "--", "printf", "%s", "é".encode(), b"\xff")
    any_form.run("work", "--drain")
    assert any_form.run("output", "1").stdout == b"\xc3\xa9\xff"
    assert any_form.job(1)["note"] == "é"
    for words in (["list"], ["show", "1"], ["--help"], ["bogus-é"]):
        assert any_form.run(*words, code=None).stdout.isascii()


def test_it_works_with_an_empty_environment(any_form: Spool) -> None:
    any_form.env = {name: any_form.env[name] for name in ("PYTHONPATH",) if name in any_form.env}
    any_form.run("add", "--", "echo", "hi")
    any_form.run("work", "--drain")
    assert any_form.run("output", "1").stdout == b"hi\n"


def test_a_directory_that_is_gone_is_one_line_and_no_hindrance_where_it_is_not_needed(any_form: Spool) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    for words in (["status"], ["add", "true"]):
        done = in_shell(any_form, script, *words)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (3, b"", 1), done.stderr
        assert b"current directory" in done.stderr
    elsewhere = ["--db", str(any_form.folder / "q.db")]
    assert in_shell(any_form, script, *elsewhere, "add", "true").stdout == b"Added job 1\n"
    assert in_shell(any_form, script, *elsewhere, "status").stdout.startswith(b"queued: 1   ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_descriptor_is_no_hindrance_and_nothing_is_written_where_it_does_not_belong(
    any_form: Spool, closed: str
) -> None:
    for words in (["add", "true"], ["status"], ["list"], ["add", "--json", "true"]):
        done = in_shell(any_form, f'exec "$@" {closed}', *words)
        assert done.returncode == 0
        assert b"Traceback" not in done.stderr
        assert b"error" not in done.stderr
    assert any_form.json("status")["counts"]["queued"] == 2
    assert (any_form.folder / ".spoolctl" / "queue.db").read_bytes()[:15] == b"SQLite format 3"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["list"], ["status"], ["--help"], ["--version"], ["capabilities"]], ids=" ".join)
def test_a_full_disk_behind_stdout_is_exit_3_and_one_line(any_form: Spool, words: list[str]) -> None:
    any_form.add("--", "true")
    done = in_shell(any_form, 'exec "$@" > /dev/full', *words)
    lines = [line for line in done.stderr.splitlines() if b"error" in line]
    assert (done.returncode, len(lines)) == (3, 1), done.stderr
    assert b"No space left" in lines[0]


# Where it may read and not write


@pytest.fixture
def readable(spool: Spool) -> Iterator[Spool]:
    """A queue with one job done, in a folder where its reader may not write."""
    folder = Path(tempfile.mkdtemp())
    shared = type(spool)(folder)
    shared.run("add", "--", "echo", "hi")
    shared.run("work", "--drain")
    shared.command = [sys.executable, "-c", AS_NOBODY]
    subprocess.run(["chmod", "-R", "a+rX,a-w", str(folder)], check=True)
    yield shared
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.rmtree(folder)


def test_reading_verbs_work_where_they_may_not_write_and_create_nothing(readable: Spool) -> None:
    before = sorted(readable.folder.rglob("*"))
    assert readable.text("status") == "queued: 0   running: 0   done: 1   failed: 0   dead: 0\n"
    assert readable.text("output", "1") == "hi\n"
    assert "echo hi" in readable.text("list")
    assert "succeeded" in readable.text("show", "1")
    assert readable.text("workers") == ""
    assert sorted(readable.folder.rglob("*")) == before


def test_writing_verbs_say_that_they_may_not_write(readable: Spool) -> None:
    for words in (["add", "true"], ["retry", "--force", "1"], ["work", "--once"]):
        error = refused(readable, words, "queue.db", "writable", code=3)
        assert error["code"] == "READ_ONLY"
    assert readable.text("status") == "queued: 0   running: 0   done: 1   failed: 0   dead: 0\n"
