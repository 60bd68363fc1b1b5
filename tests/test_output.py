"""`output`: what a command wrote comes back byte for byte, or its loss is said."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spoolctl.store.database import open_queue
from spoolctl.verbs import output

if TYPE_CHECKING:
    from tests.conftest import Spool

# Tells what its child writes to stdout (as a count) and how much memory the child took at the most, in KiB.
# A small process of its own does it: a child's peak is never less than that of the process which started it.
MEASURE = """
import os, sys
reader, writer = os.pipe()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)])
os.close(writer)
count = 0
piece = os.read(reader, 1 << 16)
while piece:
    count += len(piece)
    piece = os.read(reader, 1 << 16)
_, status, used = os.wait4(pid, 0)
print(status, count, used.ru_maxrss // (1024 if sys.platform == "darwin" else 1))
"""
LARGE = 300_000_000
ODD = b"\x00\x01no end\xff\xc3\r\n\x1b[31m"  # NULs, half a character, an escape sequence, no newline at the end
WRITE_BOTH = 'printf "\\000\\001no end\\377\\303\\r\\n\\033[31m"; printf "E\\303" >&2'


def ran(spool: Spool, script: str, runs: int = 1, code: int = 0) -> None:
    """Submit a shell command and execute it `runs` times, without waiting for its backoffs."""
    spool.run("add", "--max-retries", str(max(0, runs - 1)), "-c", script)
    for run in range(runs):
        database = open_queue(spool.place)
        with database.write() as tx:
            tx.execute("UPDATE jobs SET due_at = 0 WHERE ready = 0")
        database.close()
        spool.run("work", "--once", code=code if run == runs - 1 else 0)


def files(spool: Spool, job: int = 1, attempt: int = -1) -> dict[str, Path]:
    """Where the output of an attempt is, by the name of the stream."""
    found = spool.attempts(job)[attempt]
    return {name: Path(found[name]["path"]) for name in ("stdout", "stderr")}


def started(spool: Spool, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
    """A command line that the test reads from at its own pace."""
    return subprocess.Popen([*spool.command, *words], cwd=spool.folder, env=spool.env, **streams)


# What comes back


def test_both_streams_come_back_byte_for_byte_and_apart(any_form: Spool) -> None:
    ran(any_form, WRITE_BOTH)
    done = any_form.run("output", "1")
    assert (done.stdout, done.stderr) == (ODD, b"E\xc3")
    only = any_form.run("output", "1", "--stdout")
    assert (only.stdout, only.stderr) == (ODD, b"")
    only = any_form.run("output", "1", "--stderr")
    assert (only.stdout, only.stderr) == (b"", b"E\xc3")


def test_no_output_is_nothing_at_all(any_form: Spool) -> None:
    ran(any_form, "true")
    done = any_form.run("output", "1")
    assert (done.stdout, done.stderr) == (b"", b"")


def test_every_attempt_keeps_its_own_output(any_form: Spool) -> None:
    ran(any_form, 'echo "run $SPOOLCTL_ATTEMPT"; echo "error $SPOOLCTL_ATTEMPT" >&2; exit 3', runs=3, code=6)
    assert any_form.text("output", "1") == "run 3\n"
    assert any_form.text("output", "1", "--attempt", "1") == "run 1\n"
    assert any_form.run("output", "1", "--attempt", "2", "--stderr").stderr == b"error 2\n"
    every = any_form.run("output", "1", "--all")
    assert (every.stdout, every.stderr) == (b"run 1\nrun 2\nrun 3\n", b"error 1\nerror 2\nerror 3\n")
    any_form.run("retry", "1")
    any_form.run("work", "--once")
    assert any_form.text("output", "1", "--all") == "run 1\nrun 2\nrun 3\nrun 4\n"


def test_a_running_job_shows_what_there_is_so_far(any_form: Spool) -> None:
    job = any_form.add("-c", "echo so far; until [ -e go ]; do sleep 0.02; done; echo the rest")
    any_form.worker("--drain")
    any_form.until_state(job, "running")
    any_form.until(lambda: any_form.run("output", "1").stdout == b"so far\n", "the first line")
    (any_form.folder / "go").touch()
    any_form.until_state(job, "done")
    assert any_form.text("output", "1") == "so far\nthe rest\n"


def test_a_job_that_has_not_started_has_no_output_and_says_so(any_form: Spool) -> None:
    any_form.add("--after", "1h", "--", "true")
    done = any_form.run("output", "1")
    assert (done.stdout, done.stderr) == (b"", b"spoolctl: warning: job 1 has not been started yet\n")
    told = any_form.json("output", "1")
    assert told == {"job_id": 1, "attempts": [], "warnings": ["job 1 has not been started yet"]}


def test_a_command_that_could_not_be_started_has_empty_output(any_form: Spool) -> None:
    any_form.add("--max-retries", "0", "--", "no-such-program")
    any_form.run("work", "--drain", code=6)
    done = any_form.run("output", "1")
    assert (done.stdout, done.stderr) == (b"", b"")


# What cannot come back


def test_an_unknown_job_or_attempt_is_named(any_form: Spool) -> None:
    ran(any_form, "true")
    for words, said in ((["2"], b"there is no job 2"), (["1", "--attempt", "2"], b"--attempt 2: job 1 has no such")):
        done = any_form.run("output", *words, code=1)
        assert done.stdout == b""
        assert said in done.stderr
        assert json.loads(any_form.run("output", "--json", *words, code=1).stdout)["error"]["code"] == "NOT_FOUND"


def test_a_file_that_was_removed_is_missing_and_not_empty(any_form: Spool) -> None:
    ran(any_form, "echo out; echo err >&2")
    gone = files(any_form)["stdout"]
    gone.unlink()
    done = any_form.run("output", "1", code=3)
    assert (done.stdout, done.stderr.splitlines()[0]) == (b"", b"err")
    assert done.stderr.count(b"\n") == 2
    assert str(gone) in done.stderr.decode()
    assert any_form.run("output", "1", "--stderr").stderr == b"err\n"
    [attempt] = any_form.json("output", "1", code=None)["attempts"]
    assert (attempt["stdout"]["missing"], attempt["stdout"]["text"]) == (True, None)
    assert (attempt["stderr"]["missing"], attempt["stderr"]["text"]) == (False, "err\n")
    assert any_form.attempts(1)[0]["stdout"]["missing"] is True
    assert "missing" in any_form.text("show", "1")


def test_a_link_in_the_place_of_an_output_file_is_not_followed(any_form: Spool) -> None:
    ran(any_form, "echo out")
    (any_form.folder / "secret").write_text("secret")
    path = files(any_form)["stdout"]
    path.unlink()
    path.symlink_to(any_form.folder / "secret")
    done = any_form.run("output", "1", code=None)
    assert done.stdout == b""
    assert done.returncode == 3


# For programs


def test_the_preview_has_every_key_and_is_text(any_form: Spool) -> None:
    ran(any_form, WRITE_BOTH)
    told = any_form.json("output", "1")
    assert told.keys() == {"job_id", "attempts", "warnings"}
    [attempt] = told["attempts"]
    assert attempt.keys() == {"attempt", "state", "stdout", "stderr"}
    assert attempt["stdout"].keys() == {"path", "bytes", "missing", "cut", "text", "truncated"}
    assert (attempt["stdout"]["bytes"], attempt["stdout"]["truncated"]) == (len(ODD), False)
    assert attempt["stdout"]["text"] == "\x00\x01no end\\xff\\xc3\r\n\x1b[31m"
    assert Path(attempt["stdout"]["path"]).read_bytes() == ODD
    assert any_form.json("output", "1", "--stderr")["attempts"][0].keys() == {"attempt", "state", "stderr"}


def test_the_preview_of_a_long_output_is_its_end(any_form: Spool) -> None:
    ran(any_form, "head -c 70000 /dev/zero | tr '\\0' x; printf end")
    [attempt] = any_form.json("output", "1")["attempts"]
    assert attempt["stdout"]["text"] == "x" * (65536 - 3) + "end"
    assert (attempt["stdout"]["bytes"], attempt["stdout"]["truncated"]) == (70003, True)


# Readers of every kind


def test_300_megabytes_are_read_in_constant_memory(spool: Spool) -> None:
    ran(spool, f"head -c {LARGE} /dev/zero")
    try:
        line = [sys.executable, "-c", MEASURE, *spool.command, "output", "1"]
        done = subprocess.run(line, cwd=spool.folder, env=spool.env, capture_output=True, check=True)
        status, count, peak = map(int, done.stdout.split())
        assert (status, count) == (0, LARGE)
        assert peak < 60 * 1024
        assert len(spool.run("output", "1", "--json").stdout) < 1_000_000
    finally:
        files(spool)["stdout"].unlink()


def test_a_reader_that_has_enough_ends_it_quietly(any_form: Spool) -> None:
    ran(any_form, "seq 1 200000; echo err >&2")
    process = started(any_form, "output", "1", "--stdout", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline() == b"1\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_list_into_head_ends_quietly(any_form: Spool) -> None:
    for _ in range(3):
        any_form.run("add", "--", "echo", "x" * 100_000)
    line = ["sh", "-c", '{ "$@"; echo $? > code; } | head -c 5', "sh", *any_form.command, "list", "--json"]
    done = subprocess.run(line, cwd=any_form.folder, env=any_form.env, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b'{"job', b"")
    assert (any_form.folder / "code").read_text() == "0\n"


def test_a_closed_stdout_is_quiet(any_form: Spool) -> None:
    ran(any_form, "seq 1 200000")
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *any_form.command, "output", "1"]
    done = subprocess.run(line, cwd=any_form.folder, env=any_form.env, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_exit_3_and_one_line(any_form: Spool) -> None:
    ran(any_form, "echo hi")
    with open("/dev/full", "wb") as full:
        process = started(any_form, "output", "1", stdout=full, stderr=subprocess.PIPE)
    assert process.stderr
    said = process.stderr.read()
    assert process.wait() == 3
    assert said.count(b"\n") == 1
    assert b"stdout: No space left on device" in said


def test_everything_arrives_through_a_slow_pipe_that_never_blocks(any_form: Spool) -> None:
    ran(any_form, "seq 1 100000")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # the open file's, so the tool has it too
    process = started(any_form, "output", "1", stdout=writer, stderr=subprocess.PIPE)

    any_form.until(lambda: not select.select([], [writer], [], 0)[1], "the pipe is full")
    os.close(writer)
    with open(reader, "rb") as stream:
        assert stream.read() == b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert process.stderr
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_output_that_grows_faster_than_it_is_read_comes_to_an_end(tmp_path: Path) -> None:
    """Of a running job it is what there is so far: a reader would else follow a runaway for ever."""
    path = tmp_path / "1.1.stdout"
    path.write_bytes(b"so far")
    read: list[bytes] = []

    def put(descriptor: int, piece: bytes) -> bool:
        read.append(bytes(piece))
        with open(path, "ab") as more:
            more.write(b"and more")
        assert len(read) < 100
        return True

    assert output._copy(str(path), 1, put)
    assert read == [b"so far"]
