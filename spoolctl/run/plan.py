"""What a worker is asked to do, and what it has done."""

from __future__ import annotations


class Plan:
    """name: None makes one up. queues: empty is every queue. slots: at most so many running jobs a
    queue over all workers, None is no limit of its own. mode: "serve" until told to stop, "drain"
    until the queues have settled, "once" for one job."""

    def __init__(self, name: str | None, queues: tuple[str, ...], jobs: int, slots: int | None, mode: str) -> None:
        self.name, self.queues, self.jobs, self.slots, self.mode = name, queues, jobs, slots, mode


class Tally:
    """executed: attempts that ended here. ended: by the state in which they left their job.
    settled: nothing was left to wait for. stopped: a signal came first."""

    def __init__(self) -> None:
        self.executed = 0
        self.ended = {"done": 0, "failed": 0, "dead": 0, "canceled": 0, "queued": 0}
        self.settled = False
        self.stopped = False
