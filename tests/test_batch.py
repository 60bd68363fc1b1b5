"""`add --batch`: one job a line, all or none, judged by the same kinds as the flags."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Spool


def lines(*objects: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def batch(spool: Spool, data: bytes, *words: str, code: int = 0) -> Any:
    return json.loads(spool.run("add", "--json", "--batch", "-", *words, stdin=data, code=code).stdout)


def test_jobs_are_added_in_the_order_of_their_lines(any_form: Spool) -> None:
    first, last = lines({"argv": ["echo", "a"]}, {"c": "echo b"}), lines({"argv": ["echo", "c"]})
    answer = batch(any_form, first + b"\n  \n" + last)
    assert answer == {"ids": [1, 2, 3], "added": 3, "deduplicated": 0, "warnings": []}
    assert any_form.json("work", "--drain")["executed"] == 3
    assert [any_form.text("output", str(job)) for job in (1, 2, 3)] == ["a\n", "b\n", "c\n"]


def test_a_line_sets_what_the_flags_set(spool: Spool) -> None:
    line = {
        "argv": ["x"],
        "queue": "gpu",
        "priority": -3,
        "timeout": "2h",
        "max_retries": 1,
        "max_crashes": 0,
        "key": "k",
        "tags": {"batch": "7", "n": 1},
        "env": {"A": "1"},
        "cwd": "/tmp",
        "note": "words",
        "after": 1.5,
    }
    batch(spool, lines(line))
    job = spool.job(1)
    assert (job["queue"], job["priority"], job["timeout"], job["key"]) == ("gpu", -3, 7200, "k")
    assert (job["max_retries"], job["max_crashes"], job["cwd"], job["note"]) == (1, 0, "/tmp", "words")
    assert job["tags"] == {"batch": "7", "n": "1"}
    assert job["env"] == {"A": "1"}
    assert job["due_at"] > job["created_at"]
    assert spool.events(1) == ["added"]


def test_flags_beside_it_hold_for_the_lines_that_do_not_say_otherwise(spool: Spool) -> None:
    batch(spool, lines({"argv": ["x"]}, {"argv": ["x"], "queue": "own"}), "--queue", "theirs", "--priority", "4")
    assert [(spool.job(n)["queue"], spool.job(n)["priority"]) for n in (1, 2)] == [("theirs", 4), ("own", 4)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"argv": []}', "argv must be a list"),
        (b'{"argv": [""]}', "argv must be a list"),
        (b'{"argv": "ls"}', "argv must be a list"),
        (b'{"argv": [1]}', "argv must be a list"),
        (b'{"argv": ["a\\u0000"]}', "NUL"),
        (b'{"argv": ["\\ud800"]}', "UTF-8"),
        (b'{"argv": ["x"], "c": "y"}', "exclude"),
        (b'{"queue": "x"}', "no command"),
        (b'{"argv": ["x"], "timeout": 0}', "timeout '0': it is out of range"),
        (b'{"argv": ["x"], "timeout": true}', "timeout must be a string or a number"),
        (b'{"argv": ["x"], "tags": "a=b"}', "tags must be an object"),
        (b'{"argv": ["x"], "batch": "f"}', "no key 'batch'"),
        (b'{"argv": ["x"], "nosuch": 1}', "no key 'nosuch'"),
        (b'{"argv": ["x"], "if_finished": "add"}', "--if-finished needs --key"),
        (b'["x"]', "not an object"),
        (b'{"argv": ["x"]', "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_nothing_is_added(spool: Spool, line: bytes, words: str) -> None:
    spool.add("true")
    error = batch(spool, lines({"argv": ["ok"]}) + line + b"\n", code=1)["error"]
    assert error["code"] == "USAGE"
    assert error["message"].startswith("--batch line 2: ")
    assert words in error["message"] + error["hint"]
    assert spool.json("status")["counts"]["queued"] == 1


def test_keys_hold_within_a_batch_and_across_batches(spool: Spool) -> None:
    data = lines({"argv": ["a"], "key": "k"}, {"argv": ["b"]}, {"argv": ["a"], "key": "k"})
    assert batch(spool, data) == {"ids": [1, 2, 1], "added": 2, "deduplicated": 1, "warnings": []}
    assert batch(spool, data)["ids"] == [1, 3, 1]


def test_a_key_conflict_adds_nothing(spool: Spool) -> None:
    spool.add("--key", "k", "--", "a")
    error = batch(spool, lines({"argv": ["z"]}, {"argv": ["other"], "key": "k"}), code=5)["error"]
    assert error["code"] == "KEY_CONFLICT"
    assert spool.json("status")["counts"]["queued"] == 1


def test_an_empty_batch_adds_nothing_and_says_so(spool: Spool) -> None:
    assert spool.run("add", "--batch", "-").stdout == b"Added no job: there is no line\n"


def test_ranges_are_told_to_people(spool: Spool) -> None:
    data = lines({"argv": ["a"], "key": "k"}, {"argv": ["b"]}, {"argv": ["c"]}, {"argv": ["a"], "key": "k"})
    said = spool.run("add", "--batch", "-", stdin=data).stdout
    assert said == b"Added jobs 1-3, 1 (1 were there already)\n"


def test_a_file_that_is_not_there_makes_no_queue(spool: Spool) -> None:
    assert b"--batch nosuch: No such file" in spool.run("add", "--batch", "nosuch", code=1).stderr
    assert not (spool.folder / ".spoolctl").exists()


def test_a_producer_that_is_slow_locks_nobody_out(spool: Spool) -> None:
    """Protects the temporary table: collected inside the write transaction, the other `add` would time out."""
    spool.add("true")
    command = [*spool.command, "add", "--batch", "-"]
    slow = subprocess.Popen(command, cwd=spool.folder, env=spool.env, stdin=subprocess.PIPE)
    spool.processes.append(slow)
    assert slow.stdin is not None
    slow.stdin.write(lines(*[{"argv": ["x"]}] * 3000))
    slow.stdin.flush()
    assert spool.add("true") == 2
    slow.stdin.close()
    assert slow.wait(60) == 0
    assert spool.json("status")["counts"]["queued"] == 3002
