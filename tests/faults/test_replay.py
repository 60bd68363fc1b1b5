"""Every way in which a power cut can leave the disk: what was acknowledged is there, and a worker goes on.

Real command lines are recorded and replayed (`replay.py`). The controls, in which the same recording is
replayed without some of its syncs, must lose something, or the rig would prove nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from spoolctl.errors import Fail
from spoolctl.store import invariants
from spoolctl.store.database import Database, open_queue
from spoolctl.store.place import Place
from tests.conftest import FAST, Spool
from tests.crash import soundness
from tests.faults import replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.faults.replay import Files, Recording

RULES = {"journalled": False, "strict": True}
QUEUE = ".spoolctl/queue.db"
OUTPUT = QUEUE + ".d/output/"

# The last process to close a queue syncs all of it: that is SQLite's checkpoint. So each verb runs once while a
# worker has the queue open, which does not serve these jobs and syncs nothing: then it is only the verb's own sync
# that saves what it says. There are results of success, failure and a stop; output shorter than a sector, longer
# than a page, and none; a job that dies, and again.
SCRIPT = """
set -e
q() { %s "$@"; }
q add -c 'echo begun; test "$AFTERWARDS" || { touch ../begun; exec sleep 60; }'
q work --drain --jobs 2 --queue default &
until [ -e ../begun ]; do sleep 0.05; done
q add --queue other -c 'echo out of $SPOOLCTL_JOB_ID; echo errors of $SPOOLCTL_JOB_ID >&2'
q add --queue other --max-retries 0 -c 'echo to no avail; exit 3'
q add --queue other -c 'seq 3000; seq 300 >&2'
q add --queue other true
q add --queue other --batch ../lines
q cancel 5
q retry 5
q add -c 'echo late'
q cancel --running --yes 1
wait $!
q add -c 'echo alone'
q work --drain --jobs 2 || test $? = 6
q retry 3
q work --drain || test $? = 6
q add -c 'echo last'
q cancel %d
"""
LINE = json.dumps({"c": "echo line $SPOOLCTL_JOB_ID"}) + "\n"

SPOOLCTL = shlex.join([sys.executable, "-m", "spoolctl"])
BATCH = 6
LAST = 5 + BATCH + 3  # the number of the last job; the batch has 6 and so on

ADDED = re.compile(r"^Added jobs? ([0-9, -]+)$", re.MULTILINE)
MOVED = re.compile(r"^Job (\d+) (canceled|requeued)$", re.MULTILINE)
ENDED = re.compile(r"job (\d+) attempt (\d+) (succeeded|failed|canceled).*; the job is (\w+)$", re.MULTILINE)

RESULTS = """
SELECT job, number, stdout_bytes, stderr_bytes FROM attempts
WHERE state IN ('succeeded', 'failed') OR stdout_bytes IS NOT NULL
"""

Event = tuple[int, str, int]  # job, what, attempt; 0: whichever


class Run(NamedTuple):
    """A recording, and what the folder held at its end."""

    recording: Recording
    final: Files
    said: str


def recorded(folder: Path, words: list[str], env: dict[str, str]) -> Run:
    if shutil.which("strace") is None:
        pytest.skip("records system calls with strace")
    disk = folder / "disk"
    disk.mkdir()
    said = folder / "said"
    said.touch()
    try:
        recording = replay.record(words, disk, said, folder / "log", env)
    except subprocess.CalledProcessError:
        told = said.read_text()
        if "ptrace" in told:
            pytest.skip("traces processes, which is not permitted here")
        pytest.fail(told)
    return Run(recording, replay.read(disk), said.read_text())


def recorded_queue(folder: Path, batch: int) -> Run:
    (folder / "lines").write_text(LINE * batch)
    return recorded_shell(folder, SCRIPT % (SPOOLCTL, LAST - BATCH + batch))


def recorded_shell(folder: Path, commands: str) -> Run:
    spool = Spool(folder / "disk")
    try:
        return recorded(folder, ["sh", "-c", commands], {**spool.env, **FAST})
    finally:
        spool.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return recorded_queue(tmp_path_factory.mktemp("recording"), BATCH)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for the states, in memory where there is such a thing: each is written, and synced, anew."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def promises(said: Iterable[str]) -> set[Event]:
    """What has been acknowledged, in the words of the ledger."""
    text = "".join(said)
    found: set[Event] = set()
    for numbers in ADDED.findall(text):
        for piece in numbers.split(", "):
            first, _, last = piece.partition("-")
            found |= {(job, "added", 0) for job in range(int(first), int(last or first) + 1)}
    for job, how in MOVED.findall(text):
        found.add((int(job), "retried" if how == "requeued" else how, 0))
    for job, attempt, kind, state in ENDED.findall(text):
        found.add((int(job), kind, int(attempt)))
        if state == "dead":
            found.add((int(job), "dead", int(attempt)))
    return found


class Found(NamedTuple):
    """What a queue holds. wrong: what must never be, whatever was acknowledged. outputs: the files of the
    attempts that have a result, and the sizes that it tells."""

    wrong: list[str]
    events: set[Event]
    outputs: dict[str, int]


def look(files: Files, folder: Path) -> Found:
    """Open the queue of a state as its next user would, and read it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if files.get(QUEUE) is None:
        return Found([], set(), {})
    beside = (".spoolctl", QUEUE, QUEUE + "-wal")  # the outputs are looked at in `files`
    replay.write({path: files[path] for path in beside if path in files}, folder)
    try:
        return read(open_queue(Place(str(folder / QUEUE))), folder)
    except Fail as fail:
        return Found([f"{fail.code}: {fail.message}"], set(), {})


def read(database: Database, folder: Path) -> Found:
    with closing(database), database.read() as tx:
        wrong = [*invariants.violations(tx), *(row[0] for row in tx.execute("PRAGMA integrity_check"))]
        events = tx.execute("SELECT job, event, COALESCE(attempt, 0) FROM events").fetchall()
        attempts = tx.execute(RESULTS).fetchall()
    outputs = {}
    for job, attempt, stdout, stderr in attempts:
        path = os.path.relpath(database.place.output(database.queue_id, job, attempt), folder)
        outputs.update({path + ".stdout": stdout or 0, path + ".stderr": stderr or 0})
    return Found(
        wrong=[line for line in wrong if line != "ok"],
        events={event for job, what, attempt in events for event in ((job, what, attempt), (job, what, 0))},
        outputs=outputs,
    )


def lost_output(found: Found, files: Files, final: Files) -> list[str]:
    """The files that do not hold what the commands have written, or not what the result says of them."""
    return [
        path
        for path, size in found.outputs.items()
        if (files.get(path) or b"") != final[path] or size != len(final[path] or b"")
    ]


class Sweep:
    """Goes through states and complains. distinct: how many different ones it has seen."""

    def __init__(self, run: Run, strict: bool, seed: int, tries: int, scratch: Path) -> None:
        self.run, self.strict, self.tries, self.folder = run, strict, tries, scratch / "state"
        self.chance = Random(seed)
        self.seen: dict[bytes, Found] = {}
        self.sample: list[tuple[Files, set[Event]]] = []  # one of `every` distinct ones, for a worker to go on with

    @property
    def distinct(self) -> int:
        return len(self.seen)

    def complaints(self, recording: Recording, every: int = 10**9) -> Iterator[str]:
        """Each state that breaks a promise, in words."""
        told, promised = 0, set[Event]()
        for files, said in replay.states(recording, self.strict, self.chance, self.tries):
            if len(said) > told:
                told, promised = len(said), promises(said)
            key = replay.digest(files)
            if key not in self.seen:
                self.seen[key] = look(files, self.folder)
                if self.distinct % every == 0:
                    self.sample.append((files, promised))
            found = self.seen[key]
            lost = [*sorted(promised - found.events), *lost_output(found, files, self.run.final)]
            for complaint in (*found.wrong, *(f"lost: {one}" for one in lost)):
                yield f"after {said[-1:]}: {complaint}"


def go_on(files: Files, promised: set[Event], folder: Path) -> None:
    """The next users after the power cut: one adds a job, a worker ends everything."""
    folder.mkdir()
    replay.write(files, folder)
    spool = Spool(folder)
    try:
        spool.add("true")
        spool.env.update(FAST, AFTERWARDS="1")
        done = spool.run("work", "--drain", "--jobs", "2", code=None)
        assert done.returncode in (0, 6), done.stderr
        counts = spool.json("status")["counts"]
        assert sum(counts[state] for state in ("queued", "running", "failed")) == 0, counts
        soundness.check(spool)
        assert promised <= look(replay.read(folder), folder / "again").events
    finally:
        spool.close()
        shutil.rmtree(folder)


def all_go_on(sample: list[tuple[Files, set[Event]]], scratch: Path) -> None:
    """Several at a time: they mostly wait, for the backoff of what the power cut has interrupted."""
    with ThreadPoolExecutor(8) as pool:
        running = [
            pool.submit(go_on, files, promised, scratch / str(number))
            for number, (files, promised) in enumerate(sample)
        ]
        for one in running:
            one.result()


# Uses every call that the rig follows, each in a way that would show if it were followed wrongly.
ODD = """
import os, sys
def new(name, flags=0):
    return os.open(os.path.abspath(name), os.O_RDWR | os.O_CREAT | flags)
os.mkdir(os.path.abspath("folder"))
one = new("one")
two = os.dup(one)
os.write(one, b"first")
os.write(two, b" and second")
if os.fork() == 0:
    os.write(two, b" of a child")
    os._exit(0)
os.wait()
os.lseek(two, 1, os.SEEK_SET)
os.write(one, b"I")
os.read(two, 4)
os.write(two, b"&")
os.pwritev(one, [b"12", b"345"], 40)
os.writev(one, [b"x", b"yz"])
grown = new("grown", os.O_APPEND)
os.write(grown, b"abc")
os.pwrite(new("grown"), b"X", 1)
os.pwrite(new("grown"), b"far", 30)
os.write(grown, b"def")
command = "echo said by a child; head -c 9000 /dev/zero; echo to both >&2"
actions = [(os.POSIX_SPAWN_DUP2, grown, 1), (os.POSIX_SPAWN_DUP2, new("other", os.O_APPEND), 2)]
os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ, file_actions=actions), 0)
os.ftruncate(new("short"), 5000)
os.truncate(os.path.abspath("short"), 700)
os.posix_fallocate(new("long"), 100, 200)
os.write(new("long", os.O_TRUNC), b"little")
gone = new("gone")
os.unlink(os.path.abspath("gone"))
os.write(gone, b"to nobody")
os.write(new("gone"), b"anew")
os.write(new("folder/new"), b"moves over the old")
os.write(new("folder/old"), b"old")
os.rename(os.path.abspath("folder/new"), os.path.abspath("folder/old"))
folder = os.open(os.path.abspath("folder"), os.O_RDONLY)
os.close(os.open("inner", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
os.rename("inner", "renamed", src_dir_fd=folder, dst_dir_fd=folder)
os.mkdir("empty", dir_fd=folder)
os.rmdir(os.path.abspath("folder/empty"))
os.rename(os.path.abspath("folder"), os.path.abspath("moved"))
os.write(1, b"the end")
"""

# Safe are the first byte of `a` and, but by the strict rule, its name. Of the second one the size may be there alone.
SMALL = """
import os
a = os.open(os.path.abspath("a"), os.O_WRONLY | os.O_CREAT)
os.write(a, b"1")
os.fsync(a)
os.write(1, b"the ")
os.write(a, b"2")
os.close(os.open(os.path.abspath("b"), os.O_WRONLY | os.O_CREAT))
os.write(1, b"end")
"""


@pytest.mark.parametrize("program", [ODD, SMALL], ids=["odd", "small"])
def test_a_recording_misses_nothing_of_what_a_program_does(tmp_path: Path, program: str) -> None:
    run = recorded(tmp_path, [sys.executable, "-c", program], dict(os.environ))
    assert run.said == "the end"
    assert replay.everything(run.recording) == run.final


OF_A: list[Files] = [{"a": b"1"}, {"a": b"12"}, {"a": b"1\0"}]
WITH_B: list[Files] = [{**files, "b": b""} for files in OF_A]
EXPECTED: dict[str, list[Files]] = {"journalled": [*OF_A, *WITH_B], "strict": [{}, {"b": b""}, *OF_A, *WITH_B]}


@pytest.mark.parametrize("rule", RULES)
def test_the_states_after_a_small_recording_are_those_that_the_rule_allows(tmp_path: Path, rule: str) -> None:
    run = recorded(tmp_path, [sys.executable, "-c", SMALL], dict(os.environ))
    every = replay.states(run.recording, RULES[rule], Random(1), 100)
    found = {replay.digest(files) for files, said in every if "".join(said) == "the end"}
    assert found == {replay.digest(files) for files in EXPECTED[rule]}


def test_the_recording_of_the_queue_misses_nothing(run: Run) -> None:
    """Neither a change of a file, nor one of the acknowledgements that the other tests hold it to."""
    assert replay.everything(run.recording) == run.final
    said = [one.what.text for one in run.recording if isinstance(one.what, replay.Said)]
    assert "".join(said) == run.said
    expected = {(job, "added", 0) for job in range(1, LAST + 1)}
    expected |= {(1, "canceled", 0), (5, "canceled", 0), (LAST, "canceled", 0), (5, "retried", 0), (3, "retried", 0)}
    expected |= {(3, what, attempt) for what in ("failed", "dead") for attempt in (1, 2)}
    expected |= {(job, "succeeded", 1) for job in range(2, LAST) if job != 3}
    # strace halts what it traces, so `cancel` may think that the worker is stopped, and end the job in its place.
    assert promises(said) - {(1, "canceled", 1)} == expected
    outputs = {path: len(content) for path, content in run.final.items() if path.startswith(OUTPUT) and content}
    assert len(outputs) == 15
    assert max(outputs.values()) > 4096


@pytest.mark.parametrize("rule", RULES)
def test_no_power_cut_loses_what_was_acknowledged(run: Run, scratch: Path, rule: str) -> None:
    """Protects synchronous=FULL, and the syncs of outputs, of new folders and of new names."""
    sweep = Sweep(run, RULES[rule], 1, 1, scratch)
    complaint = next(sweep.complaints(run.recording, every=120), None)
    assert complaint is None
    assert sweep.distinct > 1000
    all_go_on(sweep.sample, scratch)


@pytest.mark.parametrize("rule", RULES)
def test_a_folder_that_a_killed_maker_has_left_is_made_safe_by_the_next(
    tmp_path: Path, scratch: Path, rule: str
) -> None:
    """It may have been killed after mkdir and before the sync."""
    run = recorded_shell(tmp_path, f'mkdir -m 700 "$PWD/.spoolctl" && exec {SPOOLCTL} add true')
    assert run.said == "Added job 1\n"
    complaint = next(Sweep(run, RULES[rule], 1, 4, scratch).complaints(run.recording), None)
    assert complaint is None


CONTROLS = {
    "a job, where the WAL is not synced": (r"-wal$", r"lost: \(\d+, 'added', 0\)", "journalled"),
    "a result, where the WAL is not synced": (r"-wal$", r"lost: \(\d+, 'succeeded', 1\)", "journalled"),
    "output, where it is not synced": (r"/output/", r"lost: .*/2\.1\.stdout", "journalled"),
    "output, where its name is not synced": (r"/output/[^/]+/0$", r"lost: .*/2\.1\.stdout", "strict"),
    "everything, where new folders are not synced": (r"^$", r"lost: \(1, 'added', 0\)", "strict"),
}


@pytest.mark.parametrize("lost", CONTROLS)
def test_the_rig_finds_that_a_power_cut_loses(run: Run, scratch: Path, lost: str) -> None:
    ignored, complaint, rule = CONTROLS[lost]
    recording = replay.without_syncs(run.recording, ignored)
    assert len(recording) < len(run.recording)
    sweep = Sweep(run, RULES[rule], 1, 2, scratch)
    assert any(re.search(complaint, said) for said in sweep.complaints(recording))


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", RULES)
def test_no_power_cut_of_many_loses_what_was_acknowledged(tmp_path: Path, scratch: Path, rule: str) -> None:
    run = recorded_queue(tmp_path, 60)
    sweep = Sweep(run, RULES[rule], 2, 12, scratch)
    complaint = next(sweep.complaints(run.recording, every=400), None)
    assert complaint is None
    assert sweep.distinct > 10_000
    all_go_on(sweep.sample, scratch)
