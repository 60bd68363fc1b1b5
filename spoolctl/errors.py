"""The one table of what can go wrong: each error's code, exit status and meaning.

Programs hold on to the codes and the statuses, so both are part of the published contract
(`capabilities --json`). Errors are raised where they are decided, as `Fail`, and printed in
one place, `cli.py`.
"""

EXITS = {
    0: "ok",
    1: "the caller's mistake: the words, a value, an id or a file that does not exist",
    2: "refused until confirmed",
    3: "this machine's fault: disk, permissions, a damaged or replaced file",
    4: "try again: locked, timed out, or stopped before the end",
    5: "conflict with the present state",
    6: "an awaited job did not succeed",
}

# code: (exit status, meaning)
CODES = {
    "USAGE": (1, "the command line cannot be understood, or a value is out of its range"),
    "NOT_FOUND": (1, "no such job, attempt or queue"),
    "NOT_A_QUEUE": (1, "the path names something that is not a queue of spoolctl"),
    "CONFIRM": (2, "the action needs a flag that confirms it"),
    "NO_SPACE": (3, "the disk or the quota is full"),
    "NO_ACCESS": (3, "the system does not permit it"),
    "READ_ONLY": (3, "the queue cannot be written from here"),
    "IO_ERROR": (3, "reading or writing failed"),
    "DAMAGED": (3, "the queue file is damaged"),
    "NEWER_QUEUE": (3, "the queue was made by a newer spoolctl"),
    "UNSAFE_QUEUE": (3, "somebody else can write the queue, and so run commands as you"),
    "UNFIT_PLACE": (3, "the file system cannot keep a queue safe"),
    "QUEUE_GONE": (3, "the queue file was removed or replaced while it was in use"),
    "OUTPUT_MISSING": (3, "an output file is gone"),
    "INTERNAL": (3, "a defect of spoolctl itself"),
    "LOCKED": (4, "another process holds the queue's write lock"),
    "TIMED_OUT": (4, "the time given was over first"),
    "STOPPED": (4, "stopped before the end"),
    "CONFLICT": (5, "the job's present state does not allow it"),
    "KEY_CONFLICT": (5, "the key belongs to a job that runs something else"),
    "WORKER_EXISTS": (5, "a live worker has this id"),
    "JOB_FAILED": (6, "a job ended dead"),
}


class Fail(Exception):
    """A refusal or a failure that the caller is told about.

    code: a key of `CODES`. message: one line that names the flag or file, the value and what is
    wrong. hint: what to do next, or "" where the message says it all.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def status(self) -> int:
        """The exit status that the code stands for."""
        return CODES[self.code][0]
