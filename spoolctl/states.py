"""The life of a job as tables: every state, reason and event, and which action moves what where.

The store builds its SQL from `MOVES` and the tests try every (state, action) pair against it,
so no pair can be forgotten. Names here are part of the published contract.
"""

QUEUED, RUNNING, DONE, FAILED, DEAD, CANCELED = "queued", "running", "done", "failed", "dead", "canceled"

JOB_STATES = {
    QUEUED: "waits for a worker, or for its time",
    RUNNING: "a worker executes it",
    DONE: "succeeded",
    FAILED: "the last attempt did not succeed; the next one waits for its backoff",
    DEAD: "did not succeed and has no budget left",
    CANCELED: "withdrawn",
}
WAITING = (QUEUED, FAILED)
TERMINAL = (DONE, DEAD, CANCELED)

ATTEMPT_STATES = ("running", "succeeded", "failed", "timed_out", "abandoned", "canceled")

REASONS = {
    "process_exit": "the command ended with a code other than 0, or by a signal",
    "timeout": "the command ran longer than --timeout",
    "spawn_failed": "the command could not be started",
    "output_limit": "the command wrote more than --max-output",
    "worker_crash": "the worker died while the command ran",
    "canceled": "the job was cancelled",
    "worker_stopped": "the worker was told to stop at once; the job's budget is untouched",
}

EVENTS = (
    "added",
    "claimed",
    "succeeded",
    "failed",
    "timed_out",
    "reaped",
    "dead",
    "retried",
    "canceled",
    "released",
)

# action: {state before: state after}. A pair that is not here is refused.
MOVES = {
    "claim": {QUEUED: RUNNING, FAILED: RUNNING},
    "succeed": {RUNNING: DONE},
    "fail": {RUNNING: FAILED},
    "bury": {RUNNING: DEAD},
    "release": {RUNNING: QUEUED},
    "withdraw": {RUNNING: CANCELED},
    # A running job is only marked: it keeps its place until its processes are proved gone.
    "stop": {RUNNING: RUNNING},
    "cancel": {QUEUED: CANCELED, FAILED: CANCELED},
    "retry": {DEAD: QUEUED, CANCELED: QUEUED, FAILED: QUEUED},
    "force": {DEAD: QUEUED, CANCELED: QUEUED, FAILED: QUEUED, DONE: QUEUED},
}

# How an attempt ended: what that does to the job while budget is left, the budget it spends, and
# the event that tells it. Every end of an attempt passes `store/settle.py` with one of these.
OUTCOMES = {
    "succeeded": ("succeed", None, "succeeded"),
    "failed": ("fail", "failures", "failed"),
    "timed_out": ("fail", "failures", "timed_out"),
    "abandoned": ("fail", "crashes", "reaped"),
    "canceled": ("withdraw", None, "canceled"),
    # Put back without spending a budget; the attempt itself reads "abandoned".
    "released": ("release", None, "released"),
}
