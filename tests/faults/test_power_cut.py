"""The power fails: what was acknowledged is on the disk.

A real file system (ext4 on a loop device) is shut down without flushing anything, after every
process that writes to it has been killed: the same as a power cut between two system calls. The
controls, which do not sync, must lose something, or the rig would prove nothing.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Spool
from tests.crash import soundness

if TYPE_CHECKING:
    from collections.abc import Iterator

EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), ioctl_ext4; the argument: do not flush the journal
NO_FLUSH = 2

# One job a transaction, its number on stdout after COMMIT. Argument: whether to sync.
WRITER = """
import sys, os
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit
database = open_queue(Place(sys.argv[1]), create_missing=True)
while True:
    with database.write(sync=sys.argv[2] == "sync") as tx:
        job = submit(tx, 1, Submission([b"sh", b"-c", b"echo out of $SPOOLCTL_JOB_ID"])).job
    os.write(1, b"%d\\n" % job)
"""


class Disk:
    """A small ext4 in a file; `cut` and `mount` again, as often as one likes."""

    def __init__(self, folder: Path) -> None:
        self.image, self.path, self.cuts = folder / "image", folder / "disk", 0
        self.path.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)

    def mount(self) -> bool:
        # The journal's own timer must not save what nobody synced.
        command = ["mount", "-o", "loop,commit=300", str(self.image), str(self.path)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def cut(self) -> None:
        """The power is gone, and comes back."""
        descriptor = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_FLUSH))
        os.close(descriptor)
        # A process that was killed may hold a file for a moment after it has left /proc.
        Spool(self.path).until(self.unmount, "the unmounting")
        self._copy()
        assert self.mount()

    def _copy(self) -> None:
        """Whoever has made a mount namespace meanwhile keeps the dead file system in it, and to mount its
        image again would bring that one back. A copy of the image is a disk of its own."""
        self.cuts += 1
        old, self.image = self.image, self.image.with_name(f"image-{self.cuts}")
        subprocess.run(["cp", "--sparse=always", str(old), str(self.image)], check=True)
        old.unlink()

    def unmount(self, *words: str) -> bool:
        return subprocess.run(["umount", *words, str(self.path)], check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk() -> Iterator[Disk]:
    if not (shutil.which("mkfs.ext4") and os.path.isdir("/dev/shm")):
        pytest.skip("needs mkfs.ext4 and a file system in memory for its image")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        disk = Disk(folder)
        if not disk.mount():
            pytest.skip("mounts a file system on a loop device, which is not permitted here")
        try:
            yield disk
        finally:
            disk.unmount("--lazy")
    finally:
        shutil.rmtree(folder)


def acknowledged(disk: Disk, how: str, at_least: int, pause: float) -> list[int]:
    """The jobs that a writer was told of before it and the power were cut."""
    acks = disk.image.with_name("acks")
    queue = disk.path / ".spoolctl"
    queue.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["sync", "-f", str(disk.path)], check=True)  # the folder is not what is tested
    spool = Spool(disk.path)
    with open(acks, "wb") as out:
        command = [sys.executable, "-c", WRITER, str(queue / "queue.db"), how]
        writer = subprocess.Popen(command, env=spool.env, stdout=out)
    try:
        spool.until(lambda: len(acks.read_bytes().splitlines()) >= at_least, "the acknowledgements")
        try:
            writer.wait(pause)  # a random moment within a transaction
        except subprocess.TimeoutExpired:
            pass
    finally:
        writer.kill()
        writer.wait()
    disk.cut()
    return [int(line) for line in acks.read_bytes().splitlines()]


def kept(disk: Disk) -> list[int]:
    spool = Spool(disk.path)
    if not os.path.exists(spool.place.path):
        return []
    soundness.check(spool)
    return sorted(job["id"] for job in spool.json("list", "--limit", "10000")["jobs"])


def cut_submissions(disk: Disk, chance: random.Random) -> None:
    """A writer, cut off at a random moment; all that it was told of is there, and no more than one beside."""
    before = kept(disk)
    told = acknowledged(disk, "sync", chance.randint(5, 200), chance.uniform(0, 0.01))
    now = kept(disk)
    assert set(told) <= set(now)
    assert len(now) <= len(before) + len(told) + 1, "one more may have been committed and not yet told"


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_loses_no_acknowledged_submission(disk: Disk, seed: int) -> None:
    cut_submissions(disk, random.Random(seed))


def test_the_rig_finds_what_is_not_synced(disk: Disk) -> None:
    """Without a sync acknowledged jobs are lost. One cut may come just after SQLite's own checkpoint,
    or after the kernel has written by itself, and lose nothing: one of several must."""
    for _ in range(8):
        told = acknowledged(disk, "no sync", 30, 0.0)
        if set(told) - set(kept(disk)):
            return
    pytest.fail("eight cuts have lost nothing: the rig would not notice a missing sync")


def cut_results(disk: Disk, worker: list[str], wanted: int) -> set[int]:
    """The jobs of which a worker has told that they are done before it and the power were cut: a few more
    than `wanted`, of twelve or more."""
    spool = Spool(disk.path)
    spool.run("add", "--batch", "-", stdin=b'{"c": "echo out of $SPOOLCTL_JOB_ID"}\n' * 12)
    outside = disk.image.with_name("log")
    with open(outside, "wb") as log:
        process = subprocess.Popen([*worker, "work", "--jobs", "2"], cwd=disk.path, env=spool.env, stderr=log)
    try:
        spool.until(lambda: outside.read_bytes().count(b"the job is done") >= wanted, "some results")
    finally:
        process.kill()
        process.wait()
        spool.close()
        spool.until(lambda: not spool.left_running(), "the end of the commands")
    disk.cut()
    told = re.findall(rb"job (\d+) attempt \d+ succeeded.*the job is done\n", outside.read_bytes())
    return {int(number) for number in told}


def without_output(disk: Disk, done: set[int]) -> list[int]:
    """Those of `done` that have not all that they have written; each must at least be done."""
    spool = Spool(disk.path)
    soundness.check(spool)
    assert {job: spool.state(job) for job in done} == dict.fromkeys(done, "done")
    texts = {job: spool.run("output", str(job), code=None).stdout for job in sorted(done)}
    return [job for job, text in texts.items() if text != b"out of %d\n" % job]


def drain(disk: Disk) -> None:
    """A worker ends everything, also what the power cut has interrupted."""
    spool = Spool(disk.path)
    spool.run("work", "--drain", "--jobs", "2", SPOOLCTL_TEST_HEARTBEAT_INTERVAL="0.1")
    counts = spool.json("status")["counts"]
    assert counts["done"] == sum(counts.values())
    soundness.check(spool)


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_loses_no_acknowledged_result_and_no_output(disk: Disk, seed: int) -> None:
    """Protects the sync of output files before their results. That of their names this file system
    needs not; test_replay.py protects it."""
    wanted = random.Random(seed).randint(2, 10)
    done = cut_results(disk, Spool(disk.path).command, wanted)
    assert len(done) >= wanted
    assert without_output(disk, done) == []
    drain(disk)


# A worker that records results without having synced what was written.
CARELESS = """
import spoolctl.run.attempt, spoolctl.cli
spoolctl.run.attempt.sync_outputs = lambda *_: None
raise SystemExit(spoolctl.cli.main())
"""


def test_the_rig_finds_output_that_is_not_synced(disk: Disk) -> None:
    for _ in range(8):
        done = cut_results(disk, [sys.executable, "-c", CARELESS], 5)
        if without_output(disk, done):
            return
    pytest.fail("eight cuts have lost no output: the rig would not notice a missing sync")


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_many_power_cuts_of_one_disk_lose_no_acknowledged_submission(disk: Disk, seed: int) -> None:
    """250 cuts; the next test makes as many."""
    chance = random.Random(seed)
    for _ in range(25):
        cut_submissions(disk, chance)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_many_power_cuts_of_one_disk_lose_no_acknowledged_result_and_no_output(disk: Disk, seed: int) -> None:
    """What one cut has interrupted is there to be finished after the next, and what was told before the first
    must outlive the last."""
    chance = random.Random(seed)
    done: set[int] = set()
    for _ in range(25):
        told = cut_results(disk, Spool(disk.path).command, chance.randint(1, 10))
        assert without_output(disk, told) == []
        done |= told
    drain(disk)
    assert without_output(disk, done) == []
