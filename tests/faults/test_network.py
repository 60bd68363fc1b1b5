"""File systems of a network: recognised by the kernel's own list of mounts, refused where a queue is made."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from spoolctl.errors import Fail
from spoolctl.store import filesystem
from spoolctl.store.filesystem import UNFIT, mount_of, refuse_unfit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Spool

LINE = "{number} 1 0:{number} / {point} rw,relatime shared:{number} - {kind} server:/export rw\n"
LOCAL = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "fuse.bindfs", "f2fs"]


def mounts(folder: Path, *pairs: tuple[str, str]) -> str:
    """A list of mounts, in their order."""
    path = folder / "mountinfo"
    path.write_text("".join(LINE.format(number=n, point=point, kind=kind) for n, (point, kind) in enumerate(pairs)))
    return str(path)


def test_the_deepest_mount_counts_and_of_two_at_one_place_the_last(tmp_path: Path) -> None:
    listed = mounts(
        tmp_path, ("/", "ext4"), ("/a", "nfs4"), ("/a/b", "tmpfs"), ("/a/b", "xfs"), ("/ab", "cifs"), ("/s\\040p", "9p")
    )
    assert mount_of("/x/y", listed) == ("ext4", "/")
    assert mount_of("/a", listed) == ("nfs4", "/a")
    assert mount_of("/a/c/.spoolctl/queue.db", listed) == ("nfs4", "/a")
    assert mount_of("/a/b/c", listed) == ("xfs", "/a/b")
    assert mount_of("/ab/c", listed) == ("cifs", "/ab")
    assert mount_of("/abc", listed) == ("ext4", "/")
    assert mount_of("/s p/c", listed) == ("9p", "/s p")


def test_a_link_is_followed_to_where_the_file_would_lie(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "far")
    listed = mounts(tmp_path, ("/", "ext4"), (str(tmp_path / "far"), "nfs"))
    assert mount_of(str(tmp_path / "link" / "queue.db"), listed) == ("nfs", str(tmp_path / "far"))


def test_where_the_system_does_not_tell_nothing_is_refused(tmp_path: Path) -> None:
    assert mount_of("/", str(tmp_path / "nothing")) is None
    (tmp_path / "odd").write_text("no such form\n")
    assert mount_of("/", str(tmp_path / "odd")) is None


@pytest.mark.parametrize("kind", sorted(UNFIT))
def test_what_is_not_one_systems_own_is_refused_with_the_reason(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "mount_of", lambda path: (kind, "/mnt"))
    with pytest.raises(Fail) as refused:
        refuse_unfit("/mnt/queue.db")
    assert (refused.value.code, refused.value.status) == ("UNFIT_PLACE", 3)
    assert f"on {kind} (mounted at /mnt): {UNFIT[kind]}" in refused.value.message


@pytest.mark.parametrize("kind", LOCAL)
def test_local_ones_are_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "mount_of", lambda path: (kind, "/"))
    refuse_unfit("/queue.db")


def test_a_queue_is_not_made_there_unless_trusted(any_form: Spool) -> None:
    """The tool itself, in a mount namespace in which the kernel's list says that its folder lies on NFS."""
    folder = any_form.folder
    listed = mounts(folder, ("/", "ext4"), (str(folder), "nfs4"))

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        # The number of the process stays the same through exec, so its own list is the one that is covered.
        script = 'mount --bind "$0" /proc/$$/mountinfo && exec "$@"'
        command = ["unshare", "-m", "sh", "-ec", script, listed, *any_form.command, *words]
        return subprocess.run(command, cwd=folder, env=any_form.env, capture_output=True, check=False, timeout=60)

    probe = ["unshare", "-m", "mount", "--bind", listed, "/proc/self/mountinfo"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace, which is not permitted here")
    refused = run("add", "--", "true")
    assert refused.returncode == 3, refused
    assert b"would lie on nfs4" in refused.stderr
    assert b"say --trust" in refused.stderr
    assert os.listdir(folder) == ["mountinfo"], "nothing is made"
    assert run("work", "--drain").returncode == 3
    assert run("add", "--trust", "--", "true").stdout == b"Added job 1\n"
    assert run("add", "--", "true").stdout == b"Added job 2\n", "it is there now"
    assert run("doctor").returncode == 3
    assert run("doctor", "--trust").returncode == 0
    assert run("work", "--drain").returncode == 0
