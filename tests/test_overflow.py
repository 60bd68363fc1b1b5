"""--max-output: a command that writes without end is stopped, or keeps the head and the tail of what it wrote."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spoolctl.run.overflow import MARK, Overflow, Stream, mark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Spool

MARKED = re.compile(rb"\n\[spoolctl: at least (\d+) bytes are left out here; the limit is (\d+)\] *\n")
# One line a number, for as long as it is let; at each it looks whether it may stop.
SLOW = "i=0; until [ -e stop ]; do i=$((i+1)); seq $((i*1000)) $((i*1000+999)); sleep 0.01; done; echo end"


def parts(output: bytes) -> tuple[bytes, int, bytes]:
    """Head, bytes left out, tail."""
    [found] = MARKED.finditer(output)
    assert len(found.group()) == MARK
    return output[: found.start()], int(found.group(1)), output[found.end() :]


def test_a_runaway_is_killed_and_its_first_bytes_stay(any_form: Spool) -> None:
    """Protects the look at the files while the command runs: `yes` would go on to its time-out."""
    job = any_form.add("--max-output", "100K", "--max-retries", "0", "--timeout", "1h", "--", "yes")
    any_form.run("work", "--drain", code=6)
    ended, [attempt] = any_form.job(job), any_form.attempts(job)
    assert (ended["state"], ended["failure_reason"]) == ("dead", "output_limit")
    assert "more than its limit of 102400" in ended["error"]
    assert attempt["stdout"]["cut"] > 0
    assert attempt["state"] == "failed"
    assert any_form.run("output", str(job)).stdout == b"y\n" * 51200
    assert any_form.left_running() == []


def test_one_that_has_ended_before_anybody_looked_has_failed_as_well(spool: Spool) -> None:
    """Whether a job fails must not depend on the moment of the look."""
    for command in ("seq 1 9999", "seq 1 9999 >&2; exit 0"):
        job = spool.add("--max-output", "1K", "--max-retries", "0", "-c", command)
        spool.run("work", "--drain", code=6)
        assert spool.job(job)["failure_reason"] == "output_limit"
    assert len(spool.run("output", str(job)).stderr) == 1024


def test_what_keeps_to_its_limit_is_left_alone(spool: Spool) -> None:
    for how in ("kill", "truncate"):
        both = "head -c 1024 /dev/zero; head -c 1024 /dev/zero >&2"
        job = spool.add("--max-output", "1K", "--on-overflow", how, "-c", both)
        spool.run("work", "--drain")
        assert spool.job(job)["state"] == "done"
        done = spool.run("output", str(job))
        assert done.stdout == done.stderr == b"\0" * 1024


def test_what_a_runaway_has_started_elsewhere_goes_with_it(spool: Spool) -> None:
    job = spool.add("--max-output", "10K", "--max-retries", "0", "-c", "setsid yes >&1 & sleep 600")
    spool.run("work", "--drain", code=6)
    assert spool.job(job)["failure_reason"] == "output_limit"
    assert spool.left_running() == []


def test_head_and_tail_stay_and_the_cut_is_marked(any_form: Spool) -> None:
    job = any_form.add("--max-output", "10K", "--on-overflow", "truncate", "--", "seq", "1", "200000")
    any_form.run("work", "--drain")
    whole = b"".join(b"%d\n" % number for number in range(1, 200001))
    output = any_form.run("output", str(job)).stdout
    head, left_out, tail = parts(output)
    assert 5000 < len(output) <= 10240, "a look on the way makes room for more than there comes"
    assert whole.startswith(head)
    assert whole.endswith(tail)
    missing = len(whole) - len(head) - len(tail)
    assert missing - 100_000 < left_out <= missing, "what came in the moment of a cut may be missing uncounted"
    [attempt] = any_form.attempts(job)
    assert (attempt["stdout"]["cut"], attempt["stderr"]["cut"]) == (left_out, 0)
    assert "cut out" in any_form.text("show", str(job))


def test_a_link_in_the_place_of_the_output_is_not_followed(spool: Spool) -> None:
    """The command can put one there; what it leads to is not ours to cut."""
    victim = spool.folder / "victim"
    victim.write_bytes(b"x" * 100_000)
    for how in ("kill", "truncate"):
        swap = f"ln -sf {victim} $(readlink /proc/$$/fd/1); exit 0"
        spool.add("--max-output", "2K", "--on-overflow", how, "--max-retries", "0", "-c", swap)
    spool.run("work", "--drain", code=None)
    assert victim.stat().st_size == 100_000


def test_a_long_writer_is_cut_again_and_again_and_goes_on(spool: Spool) -> None:
    job = spool.add("--max-output", "20K", "--on-overflow", "truncate", "-c", SLOW)
    worker = spool.worker("--once")
    spool.until_state(job, "running")
    file = spool.attempts(job)[0]["stdout"]["path"]
    spool.until(lambda: b"\n90999\n" in read(file), "ninety thousand lines")
    (spool.folder / "stop").touch()
    assert worker.wait(60) == 0
    head, left_out, tail = parts(read(file))
    numbers = [int(line) for line in tail.split(b"\n")[1:-2]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "nothing doubled, nothing out of its order"
    assert head.startswith(b"1000\n1001\n")
    assert tail.endswith(b"\nend\n")
    assert len(read(file)) <= 20480
    assert left_out > 400_000


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@settings(deadline=None, max_examples=80)
@given(
    limit=st.integers(1024, 3000),
    chunks=st.lists(st.tuples(st.integers(1, 4000), st.booleans()), max_size=12),
)
def test_whatever_is_written_is_kept_from_both_ends_and_counted(
    tmp_path_factory: pytest.TempPathFactory, limit: int, chunks: list[tuple[int, bool]]
) -> None:
    """Any sequence of appends and looks leaves a beginning, the true number of missing bytes, and an end."""
    output = tmp_path_factory.mktemp("cut") / "1.1"
    paths = [output.with_name("1.1.stdout"), output.with_name("1.1.stderr")]
    overflow, written = Overflow(str(output), limit, keep=True), b""
    for path in paths:
        path.write_bytes(b"")
    for count, look in chunks:
        new = b"".join(b"%06d" % (len(written) // 6 + n) for n in range(count))[:count]
        with open(paths[0], "ab") as file:
            file.write(new)
        written += new
        assert not look or overflow.look() is None
    assert overflow.end() is None
    output_now = paths[0].read_bytes()
    assert len(output_now) <= limit
    if not overflow.streams[0].cut_out:
        assert output_now == written
        return
    head, left_out, tail = parts(output_now)
    assert written.startswith(head)
    assert written.endswith(tail)
    assert len(head) + left_out + len(tail) == len(written)


def test_a_writer_that_is_faster_than_the_copying_loses_only_its_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It appends more than is kept, between each two system calls of the cut."""
    path = tmp_path / "1.1.stdout"
    path.write_bytes(b"a" * 5000)
    stream = Stream(str(path), 1024)
    real, wrote = os.pread, [5000]

    def busy(file: int, count: int, offset: int) -> bytes:
        piece = real(file, count, offset)
        with open(path, "ab") as more:
            more.write(b"%06d" % wrote[0] * 500)
        wrote[0] += 3000
        return piece

    monkeypatch.setattr(os, "pread", busy)
    stream.cut(512)
    head, left_out, tail = parts(path.read_bytes())
    assert len(head) + left_out + len(tail) == wrote[0]
    assert len(tail) <= 1024


def test_the_mark_has_one_length() -> None:
    assert len(mark(0, 1024)) == len(mark(2**63 - 1, 2**63 - 1)) == MARK


def test_a_limit_of_the_queue_binds_jobs_without_one(any_form: Spool) -> None:
    own = any_form.add("--queue", "q", "--max-output", "1M", "--max-retries", "0", "--", "seq", "1", "9999")
    bound = any_form.add("--queue", "q", "--max-retries", "0", "--", "seq", "1", "9999")
    other = any_form.add("--max-retries", "0", "--", "seq", "1", "9999")
    told = any_form.json("queue", "q", "--max-output", "2K")
    settings = {"queue": "q", "slots": None, "paused": False, "max_output": 2048, "on_overflow": "kill"}
    assert told["queues"] == [settings]
    any_form.run("work", "--drain", code=6)
    assert [any_form.job(job)["state"] for job in (own, bound, other)] == ["done", "dead", "done"]
    any_form.run("queue", "q", "--max-output", "2K", "--on-overflow", "truncate")
    assert any_form.json("retry", str(bound))["retried"] == [bound]
    any_form.run("work", "--drain")
    assert len(any_form.run("output", str(bound)).stdout) <= 2048
    any_form.run("queue", "q", "--max-output", "3K")
    assert "3.0 KiB, then truncate" in any_form.text("queue", "q"), "what is not named stays"
    any_form.run("queue", "q", "--on-overflow", "kill")
    assert "3.0 KiB, then kill" in any_form.text("queue", "q")
    any_form.run("queue", "q", "--max-output", "none")
    any_form.run("retry", "--force", str(bound))
    any_form.run("work", "--drain")
    assert len(any_form.run("output", str(bound)).stdout) > 40000


def test_the_settings_of_queues_are_shown(spool: Spool) -> None:
    spool.add("true")
    assert spool.text("queue") == "queue    state  slots  max output\ndefault  open   -      -\n"
    spool.run("queue", "new", "--max-output", "10M", "--on-overflow", "truncate")
    assert "new      open   -      10 MiB, then truncate\n" in spool.text("queue")
    assert spool.text("queue", "default").count("\n") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["queue", "q", "--on-overflow", "kill"], "--on-overflow needs --max-output"),
        (["queue", "q", "--max-output", "none", "--on-overflow", "kill"], "--on-overflow needs --max-output"),
        (["queue", "--max-output", "10K"], "a setting needs NAME"),
        (["queue", "q", "--max-output", "10"], "--max-output '10': it is out of range"),
        (["add", "--on-overflow", "kill", "--", "true"], "--on-overflow needs --max-output"),
        (["add", "--max-output", "none", "--", "true"], "--max-output 'none': it is not a size"),
    ],
)
def test_what_makes_no_sense_is_refused(spool: Spool, words: list[str], said: str) -> None:
    spool.add("true")
    assert said in spool.run(*words, code=1).stderr.decode()


def test_a_queue_that_is_not_there_is_not_found(spool: Spool) -> None:
    spool.add("true")
    assert "there is no queue nope" in spool.run("queue", "nope", code=1).stderr.decode()
