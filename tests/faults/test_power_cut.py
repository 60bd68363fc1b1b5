"""The power fails: what was acknowledged is on the disk.

A real file system (ext4 on a loop device) is shut down without flushing anything, after every
process that writes to it has been killed: the same as a power cut between two system calls. The
control, which does not sync, must lose something, or the rig would prove nothing.
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
        self.image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)

    def mount(self) -> bool:
        # The journal's own timer must not save what nobody synced.
        command = ["mount", "-o", "loop,commit=300", str(self.image), str(self.path)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def cut(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_FLUSH))
        os.close(descriptor)
        self.unmount()

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.path)], check=False)


@pytest.fixture
def disk() -> Iterator[Disk]:
    if not (shutil.which("mkfs.ext4") and os.path.isdir("/dev/shm")):
        pytest.skip("needs mkfs.ext4 and a file system in memory for its image")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    disk = Disk(folder)
    try:
        if not disk.mount():
            pytest.skip("mounts a file system on a loop device, which is not permitted here")
        yield disk
    finally:
        disk.unmount()
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
    assert disk.mount()
    return [int(line) for line in acks.read_bytes().splitlines()]


def kept(disk: Disk) -> list[int]:
    spool = Spool(disk.path)
    if not spool.place.path or not os.path.exists(spool.place.path):
        return []
    soundness.check(spool)
    return sorted(job["id"] for job in spool.json("list", "--limit", "10000")["jobs"])


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_loses_no_acknowledged_submission(disk: Disk, seed: int) -> None:
    chance = random.Random(seed)
    told = acknowledged(disk, "sync", chance.randint(5, 200), chance.uniform(0, 0.01))
    assert set(told) <= set(kept(disk))
    assert len(kept(disk)) <= len(told) + 1, "one more may have been committed and not yet told"


def test_the_rig_finds_what_is_not_synced(disk: Disk) -> None:
    """Without a sync acknowledged jobs are lost. One cut may come just after SQLite's own checkpoint,
    or after the kernel has written by itself, and lose nothing: one of several must."""
    for _ in range(8):
        told = acknowledged(disk, "no sync", 30, 0.0)
        if set(told) - set(kept(disk)):
            return
    pytest.fail("eight cuts have lost nothing: the rig would not notice a missing sync")


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_loses_no_acknowledged_result_and_no_output(disk: Disk, seed: int) -> None:
    """Protects the sync of output files, and of their names, before their results."""
    spool = Spool(disk.path)
    jobs = [spool.add("-c", "echo out of $SPOOLCTL_JOB_ID") for _ in range(12)]
    outside = disk.image.with_name("log")
    with open(outside, "wb") as log:
        worker = subprocess.Popen([*spool.command, "work", "--jobs", "2"], cwd=disk.path, env=spool.env, stderr=log)
    wanted = random.Random(seed).randint(2, 10)
    spool.until(lambda: outside.read_bytes().count(b"the job is done") >= wanted, "some results")
    worker.kill()
    worker.wait()
    spool.close()
    disk.cut()
    assert disk.mount()
    done = {int(number) for number in re.findall(rb"job (\d+) attempt 1 succeeded", outside.read_bytes())}
    soundness.check(spool)
    for job in done:
        assert spool.state(job) == "done"
        assert spool.text("output", str(job)) == f"out of {job}\n"
    spool.run("work", "--drain", SPOOLCTL_TEST_HEARTBEAT_INTERVAL="0.1")
    assert [spool.state(job) for job in jobs] == ["done"] * 12
