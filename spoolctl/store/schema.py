"""The newest shape of the queue file. Loaded only where a file is made or brought up to date.

To change it: change it here, add a migration that does the same to an existing file in
`migrations.py`, raise `limits.SCHEMA_VERSION`. A test compares a fresh file with a migrated one.

Times are milliseconds since 1970 (UTC), durations seconds. A vector of bytes (argv, env) is one
BLOB, each item ended by a NUL, as in /proc/PID/cmdline: byte for byte, and no parser to load.
"""

TABLES = (
    # queue_id: hex, unlike any other file's; it names the output folder.
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    # AUTOINCREMENT: a number once acknowledged is never given to another job, pruned or not.
    """
    CREATE TABLE jobs (
      id             INTEGER PRIMARY KEY AUTOINCREMENT,
      state          TEXT NOT NULL CHECK (state IN ('queued','running','done','failed','dead','canceled')),
      ready          INTEGER,           -- 1: claimable, 0: waits for due_at, NULL: in neither index
      stop           TEXT,              -- running, and to be stopped: 'cancel' or 'retry'
      queue          TEXT NOT NULL,
      priority       INTEGER NOT NULL,
      due_at         INTEGER NOT NULL,
      first_due      INTEGER NOT NULL,  -- due_at as submitted; backoff and retries do not move it
      worker         INTEGER,           -- workers.id of the one that runs it
      attempts       INTEGER NOT NULL DEFAULT 0,  -- executions begun, ever
      failures       INTEGER NOT NULL DEFAULT 0,  -- since the last manual retry
      crashes        INTEGER NOT NULL DEFAULT 0,  -- since the last manual retry
      max_retries    INTEGER NOT NULL,
      max_crashes    INTEGER,           -- NULL: unbounded
      timeout        NUMERIC NOT NULL,
      created_at     INTEGER NOT NULL,
      started_at     INTEGER,
      finished_at    INTEGER,
      exit_code      INTEGER,           -- of the last attempt, like the next three
      signal         TEXT,
      failure_reason TEXT,
      error          TEXT,
      key            TEXT,
      note           TEXT,
      cwd            BLOB,
      env            BLOB,              -- KEY=VALUE NUL …
      argv           BLOB NOT NULL,
      secret         BLOB,              -- names of variables that the worker must have, each ended by a NUL
      max_output     INTEGER,           -- bytes of each stream; NULL: the queue's limit, if it has one
      overflow       TEXT,              -- what becomes of a job that writes more: 'kill' (or NULL) or 'truncate'
      CHECK ((state IN ('queued','failed')) = (ready IS NOT NULL)),
      CHECK ((state = 'running') = (worker IS NOT NULL)),
      CHECK (stop IS NULL OR state = 'running')
    )
    """,
    """
    CREATE TABLE attempts (
      job            INTEGER NOT NULL,
      number         INTEGER NOT NULL,
      state          TEXT NOT NULL,
      worker         TEXT NOT NULL,     -- its name, which outlives its row
      marker         TEXT NOT NULL,     -- SPOOLCTL_MARKER of its processes
      pid            INTEGER,           -- leader of its process group, once recorded
      pid_start      INTEGER,           -- the kernel's start time of that pid; -1: it has ended before its group
      started_at     INTEGER NOT NULL,
      finished_at    INTEGER,
      seconds        REAL,              -- by a monotonic clock
      user_seconds   REAL,
      system_seconds REAL,
      peak_memory    INTEGER,           -- bytes
      exit_code      INTEGER,
      signal         TEXT,
      failure_reason TEXT,
      error          TEXT,
      stuck          TEXT,              -- why its processes cannot be ended, while that is so
      stdout_bytes   INTEGER,
      stderr_bytes   INTEGER,
      stdout_cut     INTEGER,           -- bytes cut out of the middle
      stderr_cut     INTEGER,
      PRIMARY KEY (job, number)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE events (
      seq     INTEGER PRIMARY KEY,      -- never reused: the newest event of all is never removed
      at      INTEGER NOT NULL,
      job     INTEGER NOT NULL,
      attempt INTEGER,
      event   TEXT NOT NULL,
      worker  TEXT,
      detail  TEXT
    )
    """,
    "CREATE TABLE tags (name TEXT, value TEXT, job INTEGER, PRIMARY KEY (name, value, job)) WITHOUT ROWID",
    # Settings that bind every worker; a queue without a row has none. slots NULL: unbounded.
    """
    CREATE TABLE queues (
      name       TEXT PRIMARY KEY,
      slots      INTEGER,
      paused     INTEGER NOT NULL DEFAULT 0,
      max_output INTEGER,
      overflow   TEXT
    ) WITHOUT ROWID
    """,
    "CREATE TABLE counts (queue TEXT, state TEXT, n INTEGER NOT NULL, PRIMARY KEY (queue, state)) WITHOUT ROWID",
    """
    CREATE TABLE workers (
      id           INTEGER PRIMARY KEY AUTOINCREMENT,
      name         TEXT NOT NULL,
      lock         TEXT NOT NULL,       -- file in workers/ that it holds locked while it lives
      pid          INTEGER NOT NULL,
      pid_start    INTEGER,             -- the kernel's start time of pid
      boot_id      TEXT,
      pid_ns       TEXT,                -- pid namespace in which pid means something
      host         TEXT NOT NULL,
      jobs         INTEGER NOT NULL,    -- how many it runs at once
      queues       TEXT NOT NULL,       -- names between spaces; '' is every queue
      started_at   INTEGER NOT NULL,
      heartbeat_at INTEGER NOT NULL
    )
    """,
)

INDEXES = (
    # What is claimable and what is not yet due live apart: a claim never walks over future jobs.
    "CREATE INDEX jobs_ready ON jobs (queue, priority DESC, due_at, id) WHERE ready = 1",
    "CREATE INDEX jobs_future ON jobs (due_at) WHERE ready = 0",
    "CREATE INDEX jobs_backoff ON jobs (due_at) WHERE ready = 0 AND state = 'failed'",
    # A job passes through 'running' in the smallest index, not through that of all states.
    "CREATE INDEX jobs_running ON jobs (worker) WHERE state = 'running'",
    "CREATE INDEX jobs_stop ON jobs (id) WHERE stop IS NOT NULL",
    "CREATE INDEX jobs_key ON jobs (key, id) WHERE key IS NOT NULL",
    "CREATE INDEX jobs_dead ON jobs (finished_at) WHERE state = 'dead'",
    "CREATE INDEX jobs_state ON jobs (queue, state, id) WHERE state <> 'running'",
    "CREATE INDEX events_job ON events (job)",
    "CREATE INDEX tags_job ON tags (job)",
)

# `status` reads these sums; nothing ever counts rows.
TRIGGERS = (
    """
    CREATE TRIGGER jobs_added AFTER INSERT ON jobs BEGIN
      INSERT INTO counts VALUES (new.queue, new.state, 1) ON CONFLICT (queue, state) DO UPDATE SET n = n + 1;
    END
    """,
    """
    CREATE TRIGGER jobs_moved AFTER UPDATE OF state, queue ON jobs
    WHEN old.state <> new.state OR old.queue <> new.queue BEGIN
      UPDATE counts SET n = n - 1 WHERE queue = old.queue AND state = old.state;
      INSERT INTO counts VALUES (new.queue, new.state, 1) ON CONFLICT (queue, state) DO UPDATE SET n = n + 1;
    END
    """,
    """
    CREATE TRIGGER jobs_removed AFTER DELETE ON jobs BEGIN
      UPDATE counts SET n = n - 1 WHERE queue = old.queue AND state = old.state;
    END
    """,
)

EVERYTHING = TABLES + INDEXES + TRIGGERS
