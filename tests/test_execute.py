"""Real workers run real commands: how they are started, what they get, how they end, what is recorded."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spoolctl.store.database import open_queue
from spoolctl.store.submit import Submission, submit
from tests.conftest import Spool

PYTHON = [sys.executable, "-I", "-S", "-c"]
DUMP = ["sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "dump"]  # argv, each word ended by a NUL
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks at processes through /proc")


def drain(spool: Spool, *words: str, code: int = 0, **env: str) -> None:
    spool.run("work", "--drain", *words, code=code, **env)


def output(spool: Spool, job: int) -> bytes:
    return spool.run("output", str(job), "--stdout").stdout


def submit_raw(spool: Spool, commands: list[list[bytes]], max_retries: int = 0) -> list[int]:
    """Put commands straight into the store: what no command line could carry, and many at once."""
    (spool.folder / ".spoolctl").mkdir(mode=0o700, exist_ok=True)
    database = open_queue(spool.place, create_missing=True)
    with database.write() as tx:
        found = []
        for argv in commands:
            wanted = Submission(argv)
            wanted.max_retries = max_retries
            found.append(submit(tx, 0, wanted).job)
    database.close()
    return found


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def only_attempt(spool: Spool, job: int) -> dict[str, Any]:
    (attempt,) = spool.attempts(job)
    return attempt


# How a command ends


def test_a_command_that_succeeds_makes_its_job_done(spool: Spool) -> None:
    job = spool.add("-c", "printf out; printf err >&2")
    drain(spool)
    done, attempt = spool.job(job), only_attempt(spool, job)
    assert (done["state"], done["exit_code"], done["signal"], done["failure_reason"]) == ("done", 0, None, None)
    assert (done["terminal"], done["succeeded"], done["failures"]) == (True, True, 0)
    assert (attempt["state"], attempt["exit_code"], attempt["failure_reason"]) == ("succeeded", 0, None)
    assert (attempt["stdout"]["bytes"], attempt["stderr"]["bytes"]) == (3, 3)
    assert spool.events(job) == ["added", "claimed", "succeeded"]
    replayed = spool.run("output", str(job))
    assert (replayed.stdout, replayed.stderr) == (b"out", b"err")


def test_exit_3_without_retries_is_dead_after_one_run(spool: Spool) -> None:
    job = spool.add("--max-retries", "0", "-c", "exit 3")
    drain(spool, code=6)
    dead, attempt = spool.job(job), only_attempt(spool, job)
    assert (dead["state"], dead["exit_code"], dead["failure_reason"], dead["failures"]) == (
        "dead",
        3,
        "process_exit",
        1,
    )
    assert (attempt["state"], attempt["exit_code"], attempt["failure_reason"]) == ("failed", 3, "process_exit")
    assert spool.events(job) == ["added", "claimed", "failed", "dead"]


def test_a_command_that_a_signal_kills_has_the_signals_name_and_no_exit_code(spool: Spool) -> None:
    killed = spool.add("--max-retries", "0", "-c", "kill -KILL $$")
    dumped = spool.add("--max-retries", "0", "-c", "ulimit -c 0; kill -SEGV $$")
    drain(spool, code=6)
    for job, name in ((killed, "SIGKILL"), (dumped, "SIGSEGV")):
        for record in (spool.job(job), only_attempt(spool, job)):
            assert (record["exit_code"], record["signal"], record["failure_reason"]) == (None, name, "process_exit")


def test_what_cannot_be_started_is_charged_to_the_job_in_the_systems_words_and_the_worker_goes_on(spool: Spool) -> None:
    plain, garbage, orphan, empty = (spool.folder / name for name in ("plain", "garbage", "orphan", "empty"))
    plain.write_text("#!/bin/sh\n")
    garbage.write_text("neither a binary nor a script\n")
    orphan.write_text("#!/no/such/interpreter\n")
    empty.mkdir()
    garbage.chmod(0o755)
    orphan.chmod(0o755)
    refused = {
        spool.add("--max-retries", "0", *words): number
        for number, words in (
            (errno.ENOENT, ["--", "no-such-program-anywhere"]),
            (errno.ENOENT, ["--", str(spool.folder / "missing")]),
            (errno.ENOENT, ["--", str(orphan)]),
            (errno.EACCES, ["--", str(plain)]),
            (errno.EACCES, ["--env", f"PATH={spool.folder}", "--", "plain"]),
            (errno.EACCES, ["--", str(empty)]),
            (errno.ENOEXEC, ["--", str(garbage)]),
            (errno.ENOENT, ["--cwd", str(spool.folder / "missing"), "--", "true"]),
            (errno.ENOTDIR, ["--cwd", str(plain), "--", "true"]),
        )
    }
    (long,) = submit_raw(spool, [[b"true", b"x" * 2_000_000]])
    refused[long] = errno.E2BIG
    good = spool.add("--", "true")
    drain(spool, code=6)
    for job, number in refused.items():
        dead, attempt = spool.job(job), only_attempt(spool, job)
        assert (dead["state"], dead["failure_reason"], dead["failures"]) == ("dead", "spawn_failed", 1), dead
        assert os.strerror(number) in dead["error"], (dead["argv"], dead["error"])
        assert (attempt["state"], attempt["exit_code"], attempt["pid"]) == ("failed", None, None)
        assert attempt["error"] == dead["error"]
    assert spool.state(good) == "done"


def test_a_job_that_keeps_failing_waits_for_its_backoff_and_is_dead_after_all_its_runs(spool: Spool) -> None:
    job = spool.add("--max-retries", "1", "-c", "echo run $SPOOLCTL_ATTEMPT; exit 1")
    drain(spool, code=6)
    dead, (first, second) = spool.job(job), spool.attempts(job)
    assert (dead["state"], dead["failures"]) == ("dead", 2)
    assert moment(dead["due_at"]) - moment(first["finished_at"]) == pytest.approx(2, abs=0.002)
    assert moment(second["started_at"]) >= moment(dead["due_at"])
    assert spool.events(job) == ["added", "claimed", "failed", "claimed", "failed", "dead"]
    assert spool.run("output", str(job), "--all").stdout == b"run 1\nrun 2\n"


# What is left behind


def test_a_timeout_leaves_no_process_behind(spool: Spool) -> None:
    job = spool.add("--max-retries", "0", "--timeout", "1", "-c", "sleep 100 & sleep 100")
    drain(spool, code=6)
    assert spool.left_running() == []
    attempt = only_attempt(spool, job)
    assert (attempt["state"], attempt["failure_reason"], attempt["signal"]) == ("timed_out", "timeout", "SIGTERM")
    assert attempt["seconds"] >= 1
    assert spool.events(job) == ["added", "claimed", "timed_out", "dead"]


IGNORES = ["sh", "-c", "trap '' TERM; while :; do sleep 100; done"]
OBEYS_BUT_ITS_CHILD_IGNORES = ["sh", "-c", "(trap '' TERM; while :; do sleep 100; done) & sleep 100"]
HAS_LEFT_SESSION_AND_OUTPUT = [
    *PYTHON,
    """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(100)
""",
]


@needs_proc
def test_a_timeout_kills_what_ignores_term_be_it_the_leader_its_child_or_one_that_called_setsid(spool: Spool) -> None:
    """Protects the KILL after the grace, that it goes to the group though the leader has obeyed (the
    fence sees to it), and the search by marker: without any one of them this fails."""
    leader, child, session = (
        spool.add("--max-retries", "0", "--timeout", "2", "--", *command)
        for command in (IGNORES, OBEYS_BUT_ITS_CHILD_IGNORES, HAS_LEFT_SESSION_AND_OUTPUT)
    )
    drain(spool, "--jobs", "3", code=6)
    assert spool.left_running() == []
    signals = {job: only_attempt(spool, job)["signal"] for job in (leader, child, session)}
    assert signals == {leader: "SIGKILL", child: "SIGTERM", session: "SIGTERM"}
    assert only_attempt(spool, leader)["seconds"] >= 2 + 5
    assert all(only_attempt(spool, job)["state"] == "timed_out" for job in signals)


@needs_proc
def test_what_a_failed_command_has_left_is_ended_before_its_result_is_there(spool: Spool) -> None:
    """Protects the fence after an ordinary failure: the look at the group, also for a child without
    marker and output; the look at the output's lock, for one that has left the session; and the
    search for who holds that lock, for one that has emptied its environment as well."""
    # The leader fails as soon as its child is in the other session, which the end of a pipe tells.
    leave = """
import os, sys
told, telling = os.pipe()
if os.fork() == 0:
    os.setsid()
    left = {name: value for name, value in os.environ.items() if sys.argv[2] == "marked" or name == "SPOOL_TEST"}
    os.execve(sys.argv[1], ["sleep", "100"], left)
os.close(telling)
os.read(told, 1)
sys.exit(1)
"""
    sleep = shutil.which("sleep") or ""
    unmarked = 'env -i SPOOL_TEST="$SPOOL_TEST" sleep 100 > /dev/null 2>&1 & exit 1'
    commands = [
        ["sh", "-c", "sleep 100 & exit 1"],
        ["sh", "-c", unmarked],
        [*PYTHON, leave, sleep, "marked"],
        [*PYTHON, leave, sleep, "unmarked"],
    ]
    jobs = [spool.add("--max-retries", "0", "--", *command) for command in commands]
    worker = spool.worker("--jobs", "4")
    for job in jobs:
        spool.until_state(job, "dead")
    # All is gone as soon as the result is there: a retry could not start any earlier.
    assert spool.left_running() == [worker.pid]


def test_background_children_of_a_success_are_left_alone(spool: Spool) -> None:
    job = spool.add("-c", "sleep 100 & echo $!")
    drain(spool)
    assert spool.state(job) == "done"
    os.kill(int(output(spool, job)), 0)


# What the command gets


def test_argv_arrives_byte_for_byte(spool: Spool) -> None:
    words = [
        b"a b",
        b"",
        b"\n",
        b"'",
        b'"',
        b"$HOME `id` \\ *",
        b"--json",
        b"--",
        b"",
        "ä€🐌".encode(),
        b"\xff\xc3",
        b"x" * 100_000,
    ]
    job = spool.add("--", *DUMP, *words)
    drain(spool)
    assert output(spool, job) == b"".join(word + b"\0" for word in words)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"\n")), max_size=6),
        min_size=25,
        max_size=50,
    )
)
def test_any_argv_arrives_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, batch: list[list[bytes]]) -> None:
    spool = Spool(tmp_path_factory.mktemp("argv"))
    jobs = submit_raw(spool, [[*(word.encode() for word in DUMP), *words] for words in batch])
    drain(spool, "--jobs", "2")
    database = open_queue(spool.place, read_only=True)
    for job, words in zip(jobs, batch):
        written = Path(spool.place.output(database.queue_id, job, 1) + ".stdout").read_bytes()
        assert written == b"".join(word + b"\0" for word in words)
    database.close()


def environment(spool: Spool, job: int) -> dict[bytes, bytes]:
    return dict(pair.split(b"=", 1) for pair in output(spool, job).split(b"\0") if pair)


def test_the_environment_is_the_workers_then_the_jobs_then_the_tools(spool: Spool) -> None:
    dump = [*PYTHON, "import os; os.write(1, b''.join(k + b'=' + v + b'\\0' for k, v in os.environb.items()))"]
    pairs = ["OVER=job", "TWICE=1", "TWICE=2", "EMPTY=", "SUM=1+1=2", b"ODD=\xff", "SPOOLCTL_JOB_ID=77"]
    flags = [word for pair in pairs for word in ("--env", pair)]
    keyed = spool.add("--key", "a key", "--queue", "q.1", *flags, "--", *dump)
    keyless = spool.add("--", *dump)
    drain(spool, OVER="worker", KEPT="worker", SPOOLCTL_KEY="of an outer job", SPOOLCTL_MARKER="of an outer job")
    found, other = environment(spool, keyed), environment(spool, keyless)
    wanted = {b"KEPT": b"worker", b"OVER": b"job", b"TWICE": b"2", b"EMPTY": b"", b"SUM": b"1+1=2", b"ODD": b"\xff"}
    assert wanted.items() <= found.items()
    told = {b"JOB_ID": b"%d" % keyed, b"ATTEMPT": b"1", b"KEY": b"a key", b"QUEUE": b"q.1"}
    assert {b"SPOOLCTL_" + name: value for name, value in told.items()}.items() <= found.items()
    assert other[b"OVER"] == b"worker"
    assert b"SPOOLCTL_KEY" not in other
    markers = {found[b"SPOOLCTL_MARKER"], other[b"SPOOLCTL_MARKER"], b"of an outer job", b""}
    assert len(markers) == 4


def test_the_jobs_own_path_decides_where_its_program_is_found(spool: Spool) -> None:
    folder = spool.folder / "own bin"
    folder.mkdir()
    for name in ("greet", "cat"):
        (folder / name).write_text(f"#!/bin/sh\necho own {name}\n")
        (folder / name).chmod(0o755)
    own = [spool.add("--env", f"PATH={folder}", "--", name) for name in ("greet", "cat")]
    workers = spool.add("--max-retries", "0", "--", "greet")
    drain(spool, code=6)
    assert [output(spool, job) for job in own] == [b"own greet\n", b"own cat\n"]
    assert spool.job(workers)["failure_reason"] == "spawn_failed"


def test_cwd_is_made_absolute_where_it_is_given_and_its_links_are_kept(spool: Spool) -> None:
    real, link, elsewhere = spool.folder / "real", spool.folder / "link", spool.folder / "elsewhere"
    real.mkdir()
    elsewhere.mkdir()
    link.symlink_to(real)
    say = ["sh", "-c", 'echo "$PWD"; pwd -P']
    named = spool.add("--cwd", "link", "--", *say)
    dotted = subprocess.run(
        [*spool.command, "add", "--cwd", ".", "--", *say],
        cwd=link,
        env={**spool.env, "PWD": str(link)},
        check=True,
        capture_output=True,
    )
    assert dotted.stdout == b"Added job 2\n"
    workers = spool.add("--", *say)
    command = [*spool.command, "--db", spool.place.path, "work", "--drain"]
    subprocess.run(command, cwd=elsewhere, env={**spool.env, "PWD": str(elsewhere)}, check=True, capture_output=True)
    through_link = f"{link}\n{real.resolve()}\n".encode()
    assert [output(spool, named), output(spool, 2)] == [through_link, through_link]
    assert output(spool, workers) == f"{elsewhere}\n{elsewhere.resolve()}\n".encode()


def test_stdin_is_dev_null_whatever_the_workers_is(spool: Spool) -> None:
    job = spool.add("-c", "cat; echo end")
    same = spool.add("--", *PYTHON, "import os; assert os.fstat(0).st_rdev == os.stat('/dev/null').st_rdev")
    spool.run("work", "--drain", stdin=b"not for the command")
    assert output(spool, job) == b"end\n"
    assert spool.state(same) == "done"


TROUBLED = {signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD}


@needs_proc
@pytest.mark.parametrize("how", ["ignored", "blocked"])
def test_the_command_has_default_signals_and_an_empty_mask_though_the_worker_was_started_without(
    spool: Spool, how: str
) -> None:
    """Protects setsigdef and setsigmask at the spawn."""

    def trouble() -> None:
        if how == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, TROUBLED)
        else:
            for number in TROUBLED:
                signal.signal(number, signal.SIG_IGN)

    job = spool.add("--", "cat", "/proc/self/status")
    subprocess.run(
        [*spool.command, "work", "--drain"],
        cwd=spool.folder,
        env=spool.env,
        preexec_fn=trouble,
        check=True,
        capture_output=True,
    )
    fields = dict(line.split(":", 1) for line in output(spool, job).decode().splitlines())
    # glibc leaves two signals of its own, which nobody can send, ignored in what it spawns.
    usable = sum(1 << (number - 1) for number in signal.valid_signals())
    sets = {name: int(fields[name], 16) & usable for name in ("SigIgn", "SigBlk", "SigCgt")}
    assert sets == {"SigIgn": 0, "SigBlk": 0, "SigCgt": 0}


@needs_proc
def test_the_command_gets_three_descriptors_and_no_other(spool: Spool) -> None:
    """Protects close_inherited: without it the command has the worker's extra descriptor."""
    job = spool.add("--", *PYTHON, "import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))")
    reader, writer = os.pipe()
    subprocess.run(
        [*spool.command, "work", "--drain"],
        cwd=spool.folder,
        env=spool.env,
        pass_fds=(reader, writer),
        check=True,
        capture_output=True,
    )
    os.close(reader)
    os.close(writer)
    assert output(spool, job) == b"0 1 2 3\n"  # 3 is the listing's own


def test_the_command_leads_a_session_of_its_own(spool: Spool) -> None:
    job = spool.add("--", *PYTHON, "import os; print(os.getpid() == os.getpgid(0) == os.getsid(0), os.getpid())")
    drain(spool)
    assert output(spool, job).decode() == f"True {only_attempt(spool, job)['pid']}\n"


def test_what_reopens_its_output_to_append_overwrites_nothing(spool: Spool) -> None:
    """Protects O_APPEND of the output files."""
    job = spool.add("-c", "echo one; echo two >> /dev/stdout; echo three; echo four >> /dev/stderr; echo five >&2")
    drain(spool)
    replayed = spool.run("output", str(job))
    assert (replayed.stdout, replayed.stderr) == (b"one\ntwo\nthree\n", b"four\nfive\n")


# What is measured


def test_the_time_and_memory_of_each_command_are_recorded(spool: Spool) -> None:
    burn = "import os\nkept = bytearray(80_000_000)\nwhile os.times().user + os.times().system < 0.2: pass"
    busy, idle = spool.add("--", *PYTHON, burn), spool.add("--", "true")
    drain(spool)
    used, little = only_attempt(spool, busy), only_attempt(spool, idle)
    assert used["user_seconds"] + used["system_seconds"] >= 0.2
    assert used["seconds"] > 0
    assert used["peak_memory_bytes"] >= 80_000_000 > little["peak_memory_bytes"] > 0  # each its own, not a sum
    assert used["user_seconds"] + used["system_seconds"] > little["user_seconds"] + little["system_seconds"] >= 0


def test_a_wall_clock_that_goes_backwards_makes_no_negative_duration(spool: Spool) -> None:
    """Protects the monotonic clock of durations."""
    backwards = """
import sys, time
from spoolctl.context import Clock
start = time.time() + 3600 + 10 * time.monotonic()
Clock.wall = lambda self: int(1000 * (start - 10 * time.monotonic()))
from spoolctl.cli import main
sys.exit(main())
"""
    job = spool.add("--", "sleep", "0.2")
    subprocess.run(
        [sys.executable, "-c", backwards, "work", "--once"],
        cwd=spool.folder,
        env=spool.env,
        check=True,
        capture_output=True,
    )
    attempt = only_attempt(spool, job)
    assert attempt["started_at"] > attempt["finished_at"]
    assert attempt["seconds"] >= 0


def test_jobs_3_runs_three_at_once(spool: Spool) -> None:
    """A barrier: each waits until it sees all three. One after the other they would wait for ever."""
    (spool.folder / "here").mkdir()
    wait = "touch here/$SPOOLCTL_JOB_ID; until [ $(ls here | wc -l) -eq 3 ]; do sleep 0.02; done"
    jobs = [spool.add("-c", wait) for _ in range(3)]
    drain(spool, "--jobs", "3")
    assert [spool.state(job) for job in jobs] == ["done"] * 3
