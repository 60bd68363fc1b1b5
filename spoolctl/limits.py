"""Every bound, default and environment variable, once. No imports: everything may use it.

`capabilities --json` publishes this file; the value kinds of `language/values.py` enforce it.
Lengths are bytes in UTF-8, durations are seconds, unless a name says otherwise.
"""

MAX_INT = 2**63 - 1  # SQLite's largest integer
APPLICATION_ID = 0x73706F6C  # "spol": tells our files, https://www.sqlite.org/pragma.html#pragma_application_id
SCHEMA_VERSION = 1

TIMEOUT_DEFAULT = 300
TIMEOUT_MIN, TIMEOUT_MAX = 1, MAX_INT
RETRIES_DEFAULT = 3
RETRIES_MAX = 1_000_000
CRASHES_MAX = 1_000_000
PRIORITY_MIN, PRIORITY_MAX = -1_000_000, 1_000_000
DELAY_MAX = 3650 * 86400
WAIT_MAX = 3650 * 86400
JOBS_MAX = 1000

ENV_KEY_MAX = 128
ENV_VALUE_MAX = 4096
KEY_MAX = 200
NOTE_MAX = 4096
TAG_NAME_MAX = 64
TAG_VALUE_MAX = 256
NAME_MAX = 64  # of a queue or a worker

OUTPUT_MIN = 1024  # bytes; the least that --max-output may be
OUTPUT_TAIL = 4 << 20  # bytes of an output's end that are kept at the most where its middle is cut out

LIST_DEFAULT = 50
LIST_MAX = 10_000
RECENT_DEAD = 10
OUTPUT_PREVIEW = 65536  # bytes of each stream that `output --json` carries

BACKOFF_BASE, BACKOFF_CAP = 2, 60
STOP_WAIT = 30  # how long `cancel` and `retry --force` wait for a running job's end
TERM_GRACE = 5.0  # between TERM and KILL
HEARTBEAT_INTERVAL = 5.0
REAP_THRESHOLD = 30.0
WAL_KEPT = 16 << 20  # bytes; four times what the automatic checkpoint lets the -wal file grow to
BUSY_TIMEOUT = 5.0  # how long a verb waits for the write lock
HEARTBEAT_MIN, HEARTBEAT_MAX = 0.01, 60.0
REAP_MIN, REAP_MAX = 0.01, 3600.0

QUEUE_DEFAULT = "default"
FOLDER, FILE = ".spoolctl", "queue.db"

# Read by spoolctl itself.
ENVIRONMENT = {
    "SPOOLCTL_DB": "the queue file, unless --db names one",
    "SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "test knob: seconds between a worker's heartbeats",
    "SPOOLCTL_TEST_REAP_THRESHOLD": "test knob: seconds until a heartbeat counts as stale",
    "SPOOLCTL_TEST_DIE_AT": "test knob: the point at which a worker kills itself (NAME or NAME:N)",
}

# Set for the command that runs.
COMMAND_ENVIRONMENT = {
    "SPOOLCTL_JOB_ID": "the job's number",
    "SPOOLCTL_ATTEMPT": "which execution of the job this is, from 1",
    "SPOOLCTL_KEY": "the job's --key; unset where it has none",
    "SPOOLCTL_QUEUE": "the job's queue",
    "SPOOLCTL_MARKER": "unique for this attempt; its processes are found by it",
}


def backoff(unsuccessful: int) -> int:
    """Seconds to wait after the n-th unsuccessful attempt, n >= 1: 2, 4, 8, 16, 32, 60, 60 …"""
    # The exponent is bounded first: 2 to the power of a million would be a number of 300,000 digits.
    return min(BACKOFF_CAP, BACKOFF_BASE << min(unsuccessful - 1, 10))
