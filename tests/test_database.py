"""The queue file: made once and completely, private, never mistaken for another, and locked by whom it says."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spoolctl.errors import Fail
from spoolctl.limits import APPLICATION_ID
from spoolctl.limits import SCHEMA_VERSION as VERSION
from spoolctl.states import JOB_STATES
from spoolctl.store import creation, migrations, read, schema
from spoolctl.store.database import Database, open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Spool

ROOT = Path(__file__).resolve().parent.parent
NOW = 1_800_000_000_000
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"  # one that every user may run; ours may be in a home


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where nothing is yet."""
    return Place(str(tmp_path / ".spoolctl" / "queue.db"))


def make(place: Place) -> Database:
    return open_queue(place, create_missing=True)


def add(database: Database, argv: bytes = b"true") -> int:
    with database.write() as tx:
        return submit(tx, NOW, Submission([argv])).job


def jobs(database: Database) -> list[int]:
    with database.read() as tx:
        return [job for (job,) in tx.execute("SELECT id FROM jobs ORDER BY id")]


def value(database: Database, pragma: str) -> Any:
    return database.connection.execute(f"PRAGMA {pragma}").fetchone()[0]


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path under `folder`, with its mode and its bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[os.fsdecode(os.path.relpath(path, folder))] = (path.lstat().st_mode, content)
    return found


def refusal(code: str, place: Place, **how: bool) -> Fail:
    """The Fail of that code with which the place cannot be opened; its message names the file."""
    with pytest.raises(Fail) as caught:
        open_queue(place, **how).close()
    assert caught.value.code == code
    assert place.path in caught.value.message
    return caught.value


HOW = pytest.mark.parametrize(
    "how", [{}, {"create_missing": True}, {"read_only": True}], ids=["write", "create", "read"]
)


# Making one


def test_thirty_threads_that_come_first_make_one_queue(place: Place) -> None:
    ready, ids, errors = threading.Barrier(30), [], []

    def come() -> None:
        try:
            ready.wait()
            database = make(place)
            add(database)
            ids.append(database.queue_id)
            database.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=come) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(ids) == 30
    assert len(set(ids)) == 1
    database = open_queue(place, read_only=True)
    assert jobs(database) == list(range(1, 31)), "whoever was told its job's number has its job"
    database.close()


COME = """
import sys, threading
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
def come():
    ids.append(open_queue(Place(sys.argv[1]), create_missing=True).queue_id)
ids = []
threads = [threading.Thread(target=come) for _ in range(5)]
print("here", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*ids)
"""


def test_thirty_comers_in_six_processes_make_one_queue(place: Place) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COME, place.path],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "here\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        ids = [word for process in processes for word in process.communicate(timeout=60)[0].split()]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(ids) == 30
    assert len(set(ids)) == 1


def test_a_queue_has_an_id_that_no_other_has(tmp_path: Path) -> None:
    """It names the output folder: a new queue in the place of a removed one shows nothing of the old one's."""
    ids = set()
    for name in ("a", "b", "b"):
        path = tmp_path / name
        path.unlink(missing_ok=True)
        database = make(Place(str(path)))
        ids.add(database.queue_id)
        database.close()
    assert len(ids) == 3
    assert all(int(queue_id, 16) for queue_id in ids)


def test_a_new_queue_is_durable_and_marked_as_ours(place: Place) -> None:
    database = make(place)
    assert value(database, "journal_mode") == "wal"
    assert value(database, "synchronous") == 2  # FULL
    assert value(database, "fullfsync") == 1
    assert value(database, "application_id") == APPLICATION_ID
    assert value(database, "user_version") == VERSION
    assert os.path.basename(place.path) + ".new" not in os.listdir(os.path.dirname(place.path))
    database.close()


def test_a_number_is_never_given_twice(place: Place) -> None:
    database = make(place)
    assert [add(database), add(database)] == [1, 2]
    with database.write() as tx:
        tx.execute("DELETE FROM jobs")
    assert add(database) == 3
    with database.read() as tx:
        assert read.counts(tx) == {"default": {**dict.fromkeys(JOB_STATES, 0), "queued": 1}}
    database.close()


@pytest.mark.parametrize("left", ["queue.db.new", "queue.db.new-wal", "queue.db.new-journal"])
def test_what_a_killed_maker_left_is_no_obstacle(place: Place, left: str) -> None:
    spool = Path(place.path).parent
    spool.mkdir()
    (spool / left).write_bytes(b"half a file" * 1000)
    database = make(place)
    assert add(database) == 1
    database.close()
    assert {path.name for path in spool.iterdir()} <= {"queue.db", "queue.db.d", left}


def test_only_a_folder_of_our_own_name_is_made(tmp_path: Path) -> None:
    """A slip in --db must not grow folders somewhere."""
    place = Place(str(tmp_path / "typo" / "queue.db"))
    assert str(tmp_path / "typo") in refusal("USAGE", place, create_missing=True).message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", [".spoolctl", ".spoolctl/queue.db.d"])
def test_a_file_where_a_folder_must_be_is_an_error_of_the_machine(place: Place, tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("mine")
    with pytest.raises(Fail) as caught:
        make(place)
    assert caught.value.status == 3
    assert (tmp_path / blocked).read_text() == "mine"


# The shape of the file


def master(connection: sqlite3.Connection) -> list[Any]:
    """Every table, index and trigger with its words, the statement's layout aside."""
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return [(kind, name, table, " ".join((sql or "").split())) for kind, name, table, sql in found]


def test_a_fresh_file_equals_one_that_came_through_every_migration() -> None:
    fresh, migrated = (sqlite3.connect(":memory:", isolation_level=None) for _ in range(2))
    for statement in schema.EVERYTHING:
        fresh.execute(statement)
    for newest in range(1, VERSION + 1):
        migrations.migrate(migrated, newest)
        assert migrations.version(migrated) == newest
    assert master(migrated) == master(fresh)
    made = creation.fresh(":memory:")
    assert master(made) == master(fresh)
    assert len(master(fresh)) > 20
    for connection in (fresh, migrated, made):
        connection.close()


def test_every_version_has_its_migration() -> None:
    assert sorted(migrations.STEPS) == list(range(1, VERSION + 1))


def test_a_migration_that_fails_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(migrations.STEPS, VERSION + 1, ("CREATE TABLE more (x)", "CREATE TABLE more (x)"))
    connection = creation.fresh(":memory:")
    before = master(connection)
    with pytest.raises(sqlite3.OperationalError):
        migrations.migrate(connection, VERSION + 1)
    assert master(connection) == before
    assert migrations.version(connection) == VERSION
    assert not connection.in_transaction
    connection.close()


def bare(place: Place) -> None:
    """A file of ours in which no migration has been made."""
    Path(place.path).parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(place.path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()


def test_an_older_file_is_brought_up_to_date_once_by_all_who_open_it_at_once(place: Place) -> None:
    bare(place)
    ready, errors = threading.Barrier(12), []

    def come() -> None:
        connection = sqlite3.connect(place.path, isolation_level=None, timeout=30)
        try:
            ready.wait()
            migrations.migrate(connection, VERSION)
        except Exception as error:
            errors.append(error)
        connection.close()

    threads = [threading.Thread(target=come) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    connection = sqlite3.connect(place.path)
    assert migrations.version(connection) == VERSION
    assert [name for kind, name, _, _ in master(connection) if kind == "trigger"] == [
        "jobs_added",
        "jobs_moved",
        "jobs_removed",
    ]
    connection.close()


# What is not our queue


@HOW
def test_a_queue_of_a_newer_spoolctl_is_refused_and_left_alone(
    place: Place, tmp_path: Path, how: dict[str, bool]
) -> None:
    database = make(place)
    add(database)
    database.connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    before = tree(tmp_path)
    assert str(VERSION + 1) in refusal("NEWER_QUEUE", place, **how).message
    assert tree(tmp_path) == before


@HOW
@pytest.mark.parametrize("application", [0, APPLICATION_ID + 1])
def test_a_database_of_another_program_is_refused_and_left_alone(
    place: Place, tmp_path: Path, how: dict[str, bool], application: int
) -> None:
    Path(place.path).parent.mkdir()
    connection = sqlite3.connect(place.path)
    connection.execute(f"PRAGMA application_id = {application}")
    connection.execute("CREATE TABLE bookmarks (x)")
    connection.close()
    before = tree(tmp_path)
    refusal("NOT_A_QUEUE", place, **how)
    assert tree(tmp_path) == before


@HOW
@pytest.mark.parametrize("content", [b"x", b"dear diary\n" * 500, b"\0" * 4096], ids=["a byte", "text", "zeros"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    place: Place, tmp_path: Path, how: dict[str, bool], content: bytes
) -> None:
    Path(place.path).parent.mkdir()
    Path(place.path).write_bytes(content)
    before = tree(tmp_path)
    refusal("NOT_A_QUEUE", place, **how)
    assert tree(tmp_path) == before


@HOW
@pytest.mark.parametrize("kind", ["directory", "pipe", "broken link", "link to itself"])
def test_what_is_no_file_is_refused_and_left_alone(
    place: Place, tmp_path: Path, how: dict[str, bool], kind: str
) -> None:
    """Not even opened: a pipe would block for ever."""
    Path(place.path).parent.mkdir()
    if kind == "directory":
        os.mkdir(place.path)
    elif kind == "pipe":
        os.mkfifo(place.path)
    else:
        os.symlink("nowhere" if kind == "broken link" else "queue.db", place.path)
    refusal("NOT_A_QUEUE", place, **how)
    assert os.listdir(tmp_path / ".spoolctl") == ["queue.db"]


def test_a_file_that_was_cut_short_is_damaged(place: Place) -> None:
    database = make(place)
    for _ in range(50):
        add(database)
    database.close()
    with open(place.path, "r+b") as file:
        file.truncate(os.path.getsize(place.path) // 2)

    def use() -> None:
        database = open_queue(place)
        try:
            add(database)
        finally:
            database.close()

    with pytest.raises(Fail) as caught:
        use()
    assert caught.value.code == "DAMAGED"
    assert place.path in caught.value.message


def test_an_empty_file_counts_as_none(place: Place, tmp_path: Path) -> None:
    """As mktemp leaves it."""
    Path(place.path).parent.mkdir()
    Path(place.path).touch(0o644)
    refusal("NOT_FOUND", place)
    before = tree(tmp_path)
    reader = open_queue(place, read_only=True)
    assert jobs(reader) == []
    reader.close()
    assert tree(tmp_path) == before
    database = make(place)
    assert add(database) == 1
    database.close()
    assert stat.S_IMODE(os.stat(place.path).st_mode) == 0o600


def test_add_takes_an_empty_file_for_a_queue_to_be(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert spool.text("add", "--db", "empty", "--", "true") == "Added job 1\n"
    assert spool.json("list", "--db", "empty")["jobs"][0]["argv"] == ["true"]


def test_an_old_wal_is_not_replayed_into_a_new_queue(place: Place, tmp_path: Path) -> None:
    """SQLite would: whoever removes queue.db alone must not find the jobs of the old one run again."""
    database = make(place)
    assert add(database, b"of the old queue") == 1
    old_id = database.queue_id
    for ending in ("-wal", "-shm"):
        shutil.copy(place.path + ending, tmp_path / ending)
    database.close()
    assert (tmp_path / "-wal").stat().st_size > 0
    os.unlink(place.path)
    for ending in ("-wal", "-shm"):
        shutil.copy(tmp_path / ending, place.path + ending)

    reader = open_queue(place, read_only=True)
    assert jobs(reader) == []
    reader.close()
    database = make(place)
    assert database.queue_id != old_id
    assert jobs(database) == []
    assert add(database) == 1
    assert value(database, "integrity_check") == "ok"
    database.close()


# Private


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("name", [".spoolctl/queue.db", "elsewhere.db"])
def test_nobody_else_can_look_into_a_queue_whatever_the_umask(tmp_path: Path, umask: int, name: str) -> None:
    place = Place(str(tmp_path / name))
    old = os.umask(umask)
    try:
        database = make(place)
        add(database)
    finally:
        os.umask(old)
    modes = {path: stat.S_IMODE(mode) for path, (mode, _) in tree(tmp_path).items()}
    database.close()
    files = {name, name + "-wal", name + "-shm"}
    assert files < set(modes)
    assert set(modes) - files == {path for path in modes if (tmp_path / path).is_dir()}
    assert {path: oct(mode) for path, mode in modes.items() if mode != (0o600 if path in files else 0o700)} == {}


# Paths

ODD = [
    b"a b",
    b"q?mode=memory",
    b"a#b",
    b"p%41q",
    b"%",
    b"a&cache=shared",
    b":memory:",
    b"file:x",
    b'it\'s "so"',
    b"-dash",
    b"new\nline",
    b"back\\slash",
    "ü 日本".encode(),
    b"\xff\xfe",
]


@pytest.mark.parametrize("name", ODD, ids=repr)
@pytest.mark.parametrize("part", ["folder", "file"])
def test_a_path_may_have_any_bytes(tmp_path: Path, name: bytes, part: str) -> None:
    """It goes to SQLite inside a URI, where several of these would mean something else."""
    odd = tmp_path / os.fsdecode(name)
    try:
        odd.mkdir()
        if part == "file":
            odd.rmdir()
    except OSError as error:
        pytest.skip(f"this file system does not take such names: {error}")
    place = Place(str(odd / "queue.db" if part == "folder" else odd))
    database = make(place)
    assert add(database) == 1
    database.close()
    for how in ({}, {"read_only": True}):
        database = open_queue(place, **how)
        assert jobs(database) == [1]
        database.close()
    expected = {"queue.db", "queue.db.d"} if part == "folder" else {odd.name, odd.name + ".d"}
    assert set(os.listdir(odd if part == "folder" else tmp_path)) == expected


def test_bytes_that_are_not_utf8_can_be_typed_as_a_queue(spool: Spool, tmp_path: Path) -> None:
    name = b"caf\xe9?.db"
    try:
        (tmp_path / os.fsdecode(name)).touch()
    except OSError as error:
        pytest.skip(f"this file system does not take such names: {error}")
    assert spool.text("add", b"--db=" + name, "--", "true") == "Added job 1\n"
    for locale in ("C", "C.UTF-8"):
        assert spool.text("status", b"--db=" + name, LC_ALL=locale).startswith("queued: 1 ")
    assert sorted(os.listdir(os.fsencode(tmp_path))) == [name, name + b".d"]


def test_two_slashes_in_front_name_no_host(tmp_path: Path) -> None:
    database = make(Place("/" + str(tmp_path / "queue.db")))
    assert add(database) == 1
    database.close()
    assert (tmp_path / "queue.db").exists()


# Transactions


class Interrupted(BaseException):
    """As a signal handler could raise it."""


@pytest.mark.parametrize(
    "error", [ValueError("x"), Fail("CONFLICT", "x"), KeyboardInterrupt(), Interrupted()], ids=repr
)
@pytest.mark.parametrize("sync", [True, False])
def test_an_exception_inside_a_transaction_undoes_all_of_it(place: Place, error: BaseException, sync: bool) -> None:
    database = make(place)

    def break_off() -> None:
        with database.write(sync=sync) as tx:
            submit(tx, NOW, Submission([b"true"]))
            raise error

    with pytest.raises(type(error)) as caught:
        break_off()
    assert caught.value is error
    assert not database.connection.in_transaction
    assert jobs(database) == []
    assert add(database) == 1, "and the next one begins as if nothing had been"
    database.close()


def test_an_error_of_sqlite_undoes_all_of_it_and_names_the_file(place: Place) -> None:
    database = make(place)

    def slip() -> None:
        with database.write() as tx:
            submit(tx, NOW, Submission([b"true"]))
            tx.execute("SELECT * FROM no_such")

    with pytest.raises(Fail, match=r"no such table") as caught:
        slip()
    assert place.path in caught.value.message
    assert jobs(database) == []
    database.close()


def test_what_was_committed_is_there_for_everybody_at_once(place: Place) -> None:
    one, other = make(place), make(place)
    for number in range(1, 4):
        add(one)
        assert jobs(other) == list(range(1, number + 1))
    one.close()
    other.close()


def test_a_reader_sees_one_moment_and_blocks_no_writer(place: Place) -> None:
    one, other = make(place), open_queue(place, read_only=True)
    add(one)
    with other.read() as tx:
        assert tx.execute("SELECT COUNT(*) FROM jobs").fetchone() == (1,)
        add(one)
        assert tx.execute("SELECT COUNT(*) FROM jobs").fetchone() == (1,)
    assert jobs(other) == [1, 2]
    one.close()
    other.close()


def test_only_what_a_power_cut_may_take_is_written_without_a_sync(place: Place) -> None:
    database = make(place)
    with database.write(sync=False):
        assert value(database, "synchronous") == 1  # NORMAL
    assert value(database, "synchronous") == 2
    with pytest.raises(ValueError, match="x"), database.write(sync=False):
        raise ValueError("x")
    assert value(database, "synchronous") == 2
    database.close()


def test_a_reader_cannot_write(place: Place) -> None:
    make(place).close()
    reader = open_queue(place, read_only=True)
    with pytest.raises(Fail) as caught:
        add(reader)
    assert caught.value.code == "READ_ONLY"
    reader.close()


def test_closing_twice_is_no_error(place: Place) -> None:
    database = make(place)
    database.close()
    database.close()


# Locked

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("let go", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(place: Place) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the write lock until it is told a line."""
    make(place).close()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, place.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def locked(database: Database, sync: bool = True) -> Fail:
    """The Fail with which a write is refused."""
    with pytest.raises(Fail) as caught, database.write(sync=sync):
        pass
    assert caught.value.code == "LOCKED"
    assert caught.value.status == 4
    return caught.value


def test_a_locked_queue_says_so_until_it_is_free_and_can_be_read_all_the_time(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    database = open_queue(place)
    database.wait_for_lock(0.05)
    for sync in (True, False):
        assert place.path in locked(database, sync).message
        assert not database.connection.in_transaction
        assert value(database, "synchronous") == 2
    assert jobs(database) == []
    assert holder.stdin
    assert holder.stdout
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "let go\n"
    assert add(database) == 1
    database.close()


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux tells who holds a lock")
def test_the_process_that_holds_the_lock_is_named(place: Place, holder: subprocess.Popen[str]) -> None:
    database = open_queue(place)
    database.wait_for_lock(0.05)
    assert f"by process {holder.pid}" in locked(database).message
    database.close()


# Where nothing is, and where nothing may be written


def test_a_reader_where_there_is_no_queue_answers_from_an_empty_one_and_creates_nothing(tmp_path: Path) -> None:
    for place in (Place(str(tmp_path / ".spoolctl" / "queue.db")), Place(str(tmp_path / "no" / "such" / "folder"))):
        database = open_queue(place, read_only=True)
        with database.read() as tx:
            assert read.counts(tx) == {}
            assert read.find(tx, 10) == []
        database.close()
        refusal("NOT_FOUND", place)
        assert list(tmp_path.iterdir()) == []


def test_reading_verbs_without_a_queue_say_where_they_looked_and_create_nothing(spool: Spool, tmp_path: Path) -> None:
    assert spool.json("status")["counts"] == dict.fromkeys(JOB_STATES, 0)
    assert spool.json("list")["jobs"] == []
    for verb in ("show", "output"):
        assert spool.json(verb, "1", code=1)["error"]["code"] == "NOT_FOUND"
    said = spool.run("status")
    assert said.stdout.startswith(b"queued: 0   running: 0   done: 0   failed: 0   dead: 0")
    assert str(tmp_path / ".spoolctl" / "queue.db").encode() in said.stderr
    for verb in ("cancel", "retry"):
        assert spool.json(verb, "1", code=1)["error"]["code"] == "NOT_FOUND"
    assert list(tmp_path.iterdir()) == []


class Reader:
    """Somebody who may read a folder and not write it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = Place(str(folder / ".spoolctl" / "queue.db"))
        self.command = [sys.executable]
        if os.geteuid() == 0:  # root may write everywhere
            setpriv = shutil.which("setpriv")
            if not setpriv or not os.path.exists(SYSTEM_PYTHON):
                pytest.skip("root needs setpriv and the system's Python to be somebody else")
            self.command = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", SYSTEM_PYTHON]
        if self.python("-c", "import spoolctl.verbs.status").returncode:
            pytest.skip("another user cannot read this source tree, or the system's Python is too old for it")

    def python(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        env = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        return subprocess.run(
            [*self.command, *words], cwd=self.folder, env=env, capture_output=True, timeout=60, check=False
        )

    def json(self, *words: str, code: int = 0) -> Any:
        """The object on stdout of the tool."""
        done = self.python("-m", "spoolctl", "--json", *words)
        assert done.returncode == code, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def open_up(self, folder_mode: int) -> None:
        """Let everybody read what is there."""
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(folder_mode if path.is_dir() else 0o644)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """In a folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="spoolctl-reader-"))
    folder.chmod(0o755)
    try:
        yield Reader(folder)
    finally:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)


def test_who_may_not_write_reads_a_queue_that_nobody_has_open(reader: Reader) -> None:
    database = make(reader.place)
    add(database)
    database.close()
    reader.open_up(0o555)
    before = tree(reader.folder)
    assert reader.json("status")["counts"]["queued"] == 1
    assert reader.json("show", "1")["job"]["argv"] == ["true"]
    assert reader.json("list")["jobs"][0]["id"] == 1
    assert tree(reader.folder) == before


def test_who_may_not_write_reads_what_a_live_worker_has_just_written(reader: Reader) -> None:
    make(reader.place).close()
    reader.open_up(0o755)
    database = open_queue(reader.place)
    add(database)  # it is in the -wal, and there it stays while this one is open
    reader.open_up(0o555)
    names = set(tree(reader.folder))
    assert reader.json("status")["counts"]["queued"] == 1
    reader.open_up(0o755)
    add(database)
    reader.open_up(0o555)
    assert reader.json("status")["counts"]["queued"] == 2
    assert set(tree(reader.folder)) == names
    reader.open_up(0o755)
    database.close()


def test_who_may_not_write_reads_what_a_killed_writer_has_left_in_the_wal(reader: Reader) -> None:
    """It holds what was acknowledged: an answer without it would be yesterday's."""
    database = make(reader.place)
    add(database)
    wal = Path(reader.place.path + "-wal").read_bytes()
    database.close()
    empty = make(reader.place)
    empty.close()
    Path(reader.place.path + "-wal").write_bytes(wal)
    reader.open_up(0o555)
    before = tree(reader.folder)
    assert reader.json("status")["counts"]["queued"] == 1
    assert tree(reader.folder) == before


def test_who_may_not_look_into_a_folder_is_not_told_that_there_is_no_queue(reader: Reader) -> None:
    """The folder is private: what another user sees there is nothing, which is not "0 jobs"."""
    database = make(reader.place)
    add(database)
    database.close()
    os.chmod(os.path.dirname(reader.place.path), 0o700 if os.geteuid() == 0 else 0o000)
    for words in (["status"], ["list"], ["show", "1"], ["cancel", "1"], ["add", "--", "true"]):
        assert reader.json(*words, code=3)["error"]["code"] == "NO_ACCESS"


def test_who_may_not_write_cannot_add(reader: Reader) -> None:
    make(reader.place).close()
    reader.open_up(0o555)
    before = tree(reader.folder)
    assert reader.json("add", "--", "true", code=3)["error"]["code"] in ("NO_ACCESS", "READ_ONLY")
    assert tree(reader.folder) == before


def test_who_may_not_make_a_folder_is_told_so(reader: Reader) -> None:
    reader.open_up(0o555)
    error = reader.json("add", "--", "true", code=3)["error"]
    assert error["code"] == "NO_ACCESS"
    assert str(reader.folder) in error["message"]
    assert reader.json("status")["counts"]["queued"] == 0
    assert tree(reader.folder) == {}
