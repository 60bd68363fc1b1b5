"""On what kind of file system a path lies, and whether a queue is safe there.

A queue needs locks and shared memory that every process which opens it shares
(https://www.sqlite.org/wal.html, "all processes … must be on the same host computer"). Called where a
queue is made, and by `doctor`.
"""

from __future__ import annotations

import os

from spoolctl.errors import Fail

MACHINES = "processes of other machines that mount it share neither locks nor memory with those of this one"
HOST = "the system on its other side shares neither locks nor memory with this one"
REMOTE = "what is behind it keeps no locks, and writes come late or in another order"

# Every kind that is refused, and why. What is not here is local, or claims to behave so (fuse-overlayfs,
# ntfs-3g, gocryptfs, bindfs, ecryptfs): SQLite's own errors tell where it does not.
UNFIT = {
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda"), MACHINES),
    # Cluster file systems: coherent among themselves, yet a lock there says nothing of a process here.
    **dict.fromkeys(("ceph", "fuse.ceph", "glusterfs", "fuse.glusterfs", "lustre", "beegfs", "gpfs"), MACHINES),
    **dict.fromkeys(("orangefs", "pvfs2", "gfs2", "ocfs2", "fuse.moosefs", "fuse.mfs", "fuse.juicefs"), MACHINES),
    # A folder of the host in a virtual machine or a container's machine; 9p is also a Windows drive in WSL.
    **dict.fromkeys(("9p", "virtiofs", "vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "prl_fs", "drvfs"), HOST),
    **dict.fromkeys(("fuse.grpcfuse", "fakeowner", "fuse.osxfs", "osxfs"), HOST),
    **dict.fromkeys(("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys"), REMOTE),
    **dict.fromkeys(("fuse.mountpoint-s3", "fuse.blobfuse", "fuse.curlftpfs", "fuse.davfs", "davfs"), REMOTE),
}
MOUNTS = "/proc/self/mountinfo"


def refuse_unfit(path: str) -> None:
    """Raise Fail("UNFIT_PLACE") where a queue at `path` would not be safe."""
    found = mount_of(path)
    if found and found[0] in UNFIT:
        said = f"{path} would lie on {found[0]} (mounted at {found[1]}): {UNFIT[found[0]]}"
        raise Fail("UNFIT_PLACE", said, "name one on a local disk with --db, or say --trust if only one system uses it")


def mount_of(path: str, mounts: str = MOUNTS) -> tuple[str, str] | None:
    """(kind, mount point) of the file system of `path`, which need not exist; None where the system
    does not tell. mounts: a file in the form of proc(5), mountinfo."""
    real = os.fsencode(os.path.realpath(path))
    best: tuple[bytes, bytes] | None = None
    try:
        with open(mounts, "rb") as file:
            for line in file:
                before, _, after = line.partition(b" - ")
                point, kind = _unescaped(before.split(b" ")[4]), after.split(b" ")[0]
                # The last one of equals: it lies over the others.
                if _within(real, point) and (best is None or len(point) >= len(best[1])):
                    best = (kind, point)
    except (OSError, IndexError):
        return None
    return (os.fsdecode(best[0]), os.fsdecode(best[1])) if best else None


def _within(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def _unescaped(point: bytes) -> bytes:
    """Space, tab, newline and backslash are written as three octal digits."""
    for code in (b"\\040", b"\\011", b"\\012", b"\\134"):
        point = point.replace(code, bytes([int(code[1:], 8)]))
    return point
