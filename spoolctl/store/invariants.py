"""What must be true of a queue at every moment, whoever died in between.

Each query lists violations; a sound queue answers none. It reads everything, so it is for
`doctor --deep` and for the crash tests, which run it after every kill.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

RULES = {
    "at most one attempt of a job runs": """
        SELECT job FROM attempts WHERE state = 'running' GROUP BY job HAVING COUNT(*) > 1
    """,
    "the running attempt is the last one of a running job": """
        SELECT a.job FROM attempts AS a JOIN jobs AS j ON j.id = a.job
        WHERE a.state = 'running' AND (j.state <> 'running' OR a.number <> j.attempts)
        UNION
        SELECT id FROM jobs WHERE state = 'running'
        AND NOT EXISTS (SELECT 1 FROM attempts WHERE job = id AND number = attempts AND state = 'running')
    """,
    "a running job has an owner on the roll": """
        SELECT id FROM jobs WHERE state = 'running' AND worker NOT IN (SELECT id FROM workers)
    """,
    "attempts are numbered without gaps": """
        SELECT j.id FROM jobs AS j WHERE j.attempts <> (SELECT COUNT(*) FROM attempts WHERE job = j.id)
        OR j.attempts <> (SELECT COALESCE(MAX(number), 0) FROM attempts WHERE job = j.id)
        OR (SELECT MIN(number) FROM attempts WHERE job = j.id) <> 1
    """,
    "attempts, events and tags are of jobs that are there": """
        SELECT job FROM attempts WHERE job NOT IN (SELECT id FROM jobs)
        UNION SELECT job FROM events WHERE job NOT IN (SELECT id FROM jobs)
        UNION SELECT job FROM tags WHERE job NOT IN (SELECT id FROM jobs)
    """,
    "counts equal a recount": """
        SELECT queue || '/' || state FROM (
          SELECT queue, state, COUNT(*) AS n FROM jobs GROUP BY queue, state
          UNION ALL SELECT queue, state, -n FROM counts
        ) GROUP BY queue, state HAVING SUM(n) <> 0
    """,
    "a job waits in an index if and only if it waits": """
        SELECT id FROM jobs WHERE (ready IS NOT NULL) <> (state IN ('queued', 'failed'))
        OR (worker IS NOT NULL) <> (state = 'running')
    """,
    "each claim and each end has its event": """
        SELECT j.id FROM jobs AS j WHERE
          (SELECT COUNT(*) FROM events WHERE job = j.id AND event = 'claimed') <> j.attempts
          OR (SELECT COUNT(*) FROM events WHERE job = j.id AND attempt IS NOT NULL AND event NOT IN ('claimed', 'dead'))
             <> (SELECT COUNT(*) FROM attempts WHERE job = j.id AND state <> 'running')
    """,
    "the last event agrees with the state": """
        SELECT id FROM (
          SELECT j.id, j.state, (SELECT event FROM events WHERE job = j.id ORDER BY seq DESC LIMIT 1) AS last
          FROM jobs AS j
        ) WHERE NOT (
          (state = 'queued' AND last IN ('added', 'retried', 'released')) OR (state = 'running' AND last = 'claimed')
          OR (state = 'done' AND last = 'succeeded') OR (state = 'failed' AND last IN ('failed', 'timed_out', 'reaped'))
          OR (state = 'dead' AND last = 'dead') OR (state = 'canceled' AND last = 'canceled')
        )
    """,
    "no job has had more executions than its budgets allow": """
        SELECT id FROM jobs WHERE failures > max_retries + 1 OR (max_crashes IS NOT NULL AND crashes > max_crashes + 1)
    """,
    "an ended attempt has an end, and none before its beginning": """
        SELECT job FROM attempts WHERE (state = 'running') <> (finished_at IS NULL) OR seconds < 0
    """,
}
MARKERS = "SELECT job, number, marker FROM attempts WHERE state NOT IN ('running', 'succeeded')"


def violations(tx: Connection) -> list[str]:
    """A line for each broken rule, with the first jobs that break it; empty where all is sound."""
    found = []
    for rule, query in RULES.items():
        broken = [str(row[0]) for row in tx.execute(query).fetchmany(5)]
        if broken:
            found.append(f"not true: {rule} ({', '.join(broken)})")
    return found


def settled_markers(tx: Connection) -> dict[str, tuple[int, int]]:
    """marker: (job, attempt) of every attempt of which no process may be alive any more. Background
    children of a success may be."""
    return {marker: (job, number) for job, number, marker in tx.execute(MARKERS)}
