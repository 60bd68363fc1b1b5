"""The single file: it behaves like the package, whatever it is called and whatever lies beside it.

A small package is carried over here, so that each promise of tools/single.py is seen alone. That the real
single file does what the tool does is shown by the command-line tests, which run on it too.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SINGLE = ROOT / "tools" / "single.py"

CLI = '''"""The command line of a package that is only there to be carried over."""

import os
import pkgutil
import sys


def main():
    return globals()[sys.argv[1]]()


def where():
    import parcel.verbs.add
    print(__file__)
    print(parcel.verbs.add.__file__)
    print(*parcel.verbs.__path__)
    print(sys.argv[0])
    print(sys.modules["__main__"].__file__)


def verbs():
    import parcel.verbs
    for found in pkgutil.iter_modules(parcel.verbs.__path__, "parcel.verbs."):
        print(found.name, found.ispkg)


def add():
    import json
    import parcel.verbs.add
    print(json.dumps(parcel.verbs.add.run()))
    return 7


def crash():
    raise RuntimeError("on purpose")  # the line to be shown


def caught():
    import traceback
    try:
        crash()
    except RuntimeError:
        traceback.print_exc()


def missing():
    try:
        import parcel.verbs.nothing
    except ModuleNotFoundError as error:
        print(error.name)


def late():
    os.remove(sys.argv[2])
    return add()


def loaded():
    print(*sys.modules)
'''

ADD = r"""# Quotes, backslashes and … arrive as they are; so do annotations: there is no __future__ here.
TEXT = "a \" and ' and \\ and …"


def run() -> 1 + 1:
    return "own"


assert TEXT == "a " + chr(34) + " and " + chr(39) + " and " + chr(92) + " and " + chr(8230)
assert run.__annotations__ == {"return": 2}
"""

PARCEL = {
    "__init__.py": '"""parcel: a small package."""\n\n__version__ = "1.2"\n',
    "__main__.py": "from parcel.cli import main\n\nraise SystemExit(main())\n",
    "cli.py": CLI,
    "verbs/__init__.py": "",
    "verbs/add.py": ADD,
    "verbs/zap.py": "raise AssertionError('only what is asked for is compiled')\n",
    "verbs/more/__init__.py": '"""A package in a package."""\n',
    "verbs/more/deep.py": "DEEP = True\n",
}

ELSEWHERE = "raise AssertionError('this module is not the one')\n"


@pytest.fixture
def parcel(tmp_path):
    return plant(tmp_path / "source" / "parcel", PARCEL)


@pytest.fixture
def single(tmp_path, parcel):
    """The parcel as one file, alone in a folder of its own."""
    output = tmp_path / "out" / "parcel.py"
    assert build(parcel, output).returncode == 0
    return output


@pytest.fixture(params=["this one", "the oldest"])
def python(request):
    if request.param == "this one":
        return sys.executable
    found = runpy.run_path(str(ROOT / "tools" / "test_all.py"))["find"]("3.9")
    return found or pytest.skip("no Python 3.9 here")


def plant(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def build(package, output, python=sys.executable):
    return run([python, SINGLE, "--package", package, "--output", output])


def run(words, **options):
    words = [str(word) for word in words]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    options.setdefault("env", kept)
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


# What it does


def test_it_runs_and_exits_as_main_says(single, python, tmp_path):
    done = run([python, single, "add"], cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ('"own"\n', "", 7)


def test_it_can_be_executed_as_it_is(single):
    assert single.stat().st_mode & 0o777 == 0o755
    assert run([single, "add"]).stdout == '"own"\n'


def test_modules_say_where_they_stand(single, python):
    done = run([python, single.name, "where"], cwd=single.parent)
    assert done.stdout.splitlines() == [
        f"{single}/parcel/cli.py",
        f"{single}/parcel/verbs/add.py",
        f"{single}/parcel/verbs",
        "parcel.py",
        str(single),
    ]


def test_verbs_are_found_by_name_as_in_the_package(single, parcel, python):
    listed = run([python, single, "verbs"]).stdout
    assert listed == "parcel.verbs.add False\nparcel.verbs.more True\nparcel.verbs.zap False\n"
    assert listed == run([python, "-m", "parcel", "verbs"], cwd=parcel.parent).stdout


def test_a_module_that_is_not_there_is_not_found(single, python):
    assert run([python, single, "missing"]).stdout == "parcel.verbs.nothing\n"


def compiled(single, python, **variables):
    """The files of the package that one start has compiled."""
    watch = (
        "import runpy, sys; seen = []; "
        "sys.addaudithook(lambda event, args: event == 'compile' and args[1] and seen.append(str(args[1])));"
        f"sys.argv = [{str(single)!r}, 'add']\n"
        f"try: runpy.run_path({str(single)!r}, run_name='__main__')\n"
        f"finally: print(*[name.rpartition('.py/')[2] for name in seen if '.py/parcel/' in name])"
    )
    done = run([python, "-c", watch], env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables})
    return done.stdout.splitlines()[-1].split()


def beside(single):
    return sorted(path.name for path in single.parent.iterdir() if path != single)


NEEDED = ["parcel/__init__.py", "parcel/cli.py", "parcel/verbs/__init__.py", "parcel/verbs/add.py"]


# What it keeps


def test_it_is_compiled_once(single, python):
    first = compiled(single, python)
    assert set(NEEDED) < set(first)
    assert len(first) == len(set(first)) == len(PARCEL)
    assert beside(single) == ["__pycache__"]
    [kept] = (single.parent / "__pycache__").iterdir()
    assert (kept.stat().st_mode & 0o777, kept.suffixes[-1]) == (0o644, ".all")
    assert compiled(single, python) == []
    assert run([python, single, "add"]).stdout == '"own"\n'


def test_where_python_may_keep_nothing_only_what_is_imported_is_compiled(single, python):
    for _ in range(2):
        assert compiled(single, python, PYTHONDONTWRITEBYTECODE="1") == NEEDED
    assert beside(single) == []


def test_it_is_kept_where_python_is_told_to_keep_it(single, python, tmp_path):
    prefix = tmp_path / "prefix"
    assert compiled(single, python, PYTHONPYCACHEPREFIX=str(prefix)) != []
    assert compiled(single, python, PYTHONPYCACHEPREFIX=str(prefix)) == []
    assert beside(single) == []


def test_a_file_that_was_changed_is_compiled_anew(single, python):
    """Also by hand, when it says the same of itself as before."""
    assert run([python, single, "add"]).stdout == '"own"\n'
    single.write_text(single.read_text().replace('"own"', '"new"'))
    assert run([python, single, "add"]).stdout == '"new"\n'


def test_a_copy_elsewhere_does_not_take_what_came_along(single, python, tmp_path):
    run([python, single, "add"])
    shutil.copytree(single.parent, tmp_path / "copy")
    done = run([python, tmp_path / "copy" / "parcel.py", "crash"])
    assert f'File "{tmp_path}/copy/parcel.py/parcel/cli.py", line ' in done.stderr


@pytest.mark.parametrize("damage", ["empty", "short", "zeros", "one bit", "not ours"])
def test_what_is_damaged_is_not_used_and_is_made_anew(single, damage):
    run([sys.executable, single, "add"])
    [kept] = (single.parent / "__pycache__").iterdir()
    whole = kept.read_bytes()
    middle = len(whole) // 2
    kept.write_bytes(
        {
            "empty": b"",
            "short": whole[:middle],
            "zeros": bytes(len(whole)),
            "one bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "not ours": b"#!/bin/sh\n" * 100,
        }[damage]
    )
    done = run([sys.executable, single, "add"])
    assert (done.stdout, done.stderr, done.returncode) == ('"own"\n', "", 7)
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("who", ["everybody", "its group", "another user", "behind a link"])
def test_what_somebody_else_could_have_written_is_not_used(single, who, tmp_path):
    """Protects the look at owner and mode: code in such a file would be run by whoever starts the tool."""
    run([sys.executable, single, "add"])
    [kept] = (single.parent / "__pycache__").iterdir()
    if who == "another user":
        if os.geteuid():
            pytest.skip("gives a file away, which only the superuser may")
        os.chown(kept, 12345, 12345)
    elif who == "behind a link":
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    else:
        kept.chmod(0o666 if who == "everybody" else 0o664)
    assert compiled(single, sys.executable) != []
    assert compiled(single, sys.executable) == [], "it was made anew"


def test_nothing_is_left_in_somebody_elses_folder(single, python):
    if os.geteuid():
        pytest.skip("gives a folder away, which only the superuser may")
    os.chown(single.parent, 12345, 12345)
    assert compiled(single, python) == NEEDED
    assert beside(single) == []


def test_starting_loads_nothing_but_the_package_and_what_it_asks_for(single, python):
    plain = run([python, "-c", "import __future__, os, pkgutil, sys; print(*sys.modules)"]).stdout.split()
    extra = set(run([python, single, "loaded"]).stdout.split()) - set(plain)
    assert extra == {"parcel", "parcel.cli"}


@pytest.mark.parametrize("what", ["crash", "caught"])
def test_a_traceback_shows_the_line(single, python, what):
    done = run([python, single, what])
    assert f'File "{single}/parcel/cli.py", line ' in done.stderr
    assert 'raise RuntimeError("on purpose")  # the line to be shown' in done.stderr
    assert done.returncode == (1 if what == "crash" else 0)


def test_a_running_process_survives_that_its_file_is_removed(single, python):
    assert run([python, single, "late", single]).stdout == '"own"\n'
    assert not single.exists()


# Whatever it is called, wherever it lies


@pytest.mark.parametrize("name", ["parcel.py", "parcel", "x.txt", "json.py", "a b", "ü.py", "link"])
def test_its_name_does_not_matter(single, python, tmp_path, name):
    place = tmp_path / "any where" / name
    place.parent.mkdir()
    if name == "link":
        place.symlink_to(single)
    else:
        shutil.move(single, place)
    for cwd, word in (("/", place), (place.parent, f"./{name}")):
        done = run([python, word, "add"], cwd=cwd)
        assert (done.stdout, done.returncode) == ('"own"\n', 7), done.stderr


@pytest.mark.parametrize("beside", ["parcel/__init__.py", "cli.py", "json.py", "pkgutil/__init__.py"])
def test_nothing_beside_it_takes_the_place_of_a_module(single, python, beside, tmp_path):
    plant(single.parent, {beside: ELSEWHERE})
    link = tmp_path / "bin" / "parcel"
    link.parent.mkdir()
    link.symlink_to(single)
    for file in (single, link):
        for cwd in ("/", single.parent):
            done = run([python, file, "add"], cwd=cwd)
            assert (done.stdout, done.returncode) == ('"own"\n', 7), done.stderr
    with single.open() as text:
        done = run([python, "-", "add"], cwd=single.parent, stdin=text)
    assert (done.stdout, done.returncode) == ('"own"\n', 7), done.stderr


def test_its_modules_win_over_an_installed_package(single, python, tmp_path):
    plant(tmp_path / "site" / "parcel", {"__init__.py": ELSEWHERE, "cli.py": ELSEWHERE})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = run([python, single, "add"], env=environment)
    assert (done.stdout, done.returncode) == ('"own"\n', 7), done.stderr


def test_its_modules_win_over_a_finder_of_an_editable_install(single, python, tmp_path):
    finder = (
        "import sys\n"
        "class Editable:\n"
        "    @staticmethod\n"
        "    def find_spec(name, *_):\n"
        "        assert not name.startswith('parcel'), 'asked elsewhere'\n"
        "sys.meta_path.insert(0, Editable)\n"
    )
    plant(tmp_path / "site", {"sitecustomize.py": finder})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = run([python, single, "add"], env=environment)
    assert (done.stdout, done.returncode) == ('"own"\n', 7), done.stderr


@pytest.mark.parametrize("how", ["-m parcel", "-I parcel.py", "-OO parcel.py", "-S parcel.py", "-"])
def test_it_runs_however_python_is_told_to(single, python, how):
    with single.open() as text:
        done = run([python, *how.split(), "add"], cwd=single.parent, stdin=text)
    assert (done.stdout, done.returncode) == ('"own"\n', 7), done.stderr


# What the file holds


def test_the_same_sources_give_the_same_bytes(single, tmp_path, python):
    backwards = dict(reversed(list(PARCEL.items())))
    again = plant(tmp_path / "elsewhere" / "parcel", backwards)
    run([python, "-m", "compileall", "-q", again])
    assert build(again, tmp_path / "again.py", python).returncode == 0
    assert (tmp_path / "again.py").read_bytes() == single.read_bytes()


def test_its_modules_stand_in_order(single):
    names = re.findall(r'^    "(parcel/.*?)": r', single.read_text(encoding="utf-8"), re.MULTILINE)
    assert names == sorted(f"parcel/{name}" for name in PARCEL)


def test_every_module_can_be_read_in_it(single):
    text = single.read_text(encoding="utf-8")
    assert all(source in text for source in PARCEL.values())
    assert '"""parcel 1.2: ' in text


def test_it_replaces_an_older_one(single, parcel):
    single.write_text("old")
    assert build(parcel, single).returncode == 0
    assert list(single.parent.iterdir()) == [single]
    assert single.read_text(encoding="utf-8") != "old"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("verbs/odd.py", b"X = '''text'''\n", "holds '''"),
        ("verbs/odd.py", b"X = 1\r\nY = 2\r\n", "does not survive"),
        ("verbs/odd.py", b"X = 'end'", "does not survive"),
        ("verbs/odd.py", b"# end \\", "does not survive"),
        ("verbs/odd.py", b"X = '\xff'\n", "cannot be read as Python in plain UTF-8"),
        ("verbs/odd.py", b"\xef\xbb\xbfX = 1\n", "cannot be read as Python in plain UTF-8"),
        ("verbs/odd.py", b"X = '\x00'\n", "cannot be read as Python in plain UTF-8"),
        ("verbs/odd.py", b"def\n", "cannot be read as Python in plain UTF-8"),
        ("verbs/odd.html", b"<p>", "only modules fit"),
        ("bare/odd.py", b"X = 1\n", "no __init__.py"),
        ("__init__.py", b"", "no line __version__"),
    ],
)
def test_what_it_cannot_carry_over_exactly_is_refused(single, parcel, name, content, says):
    before = single.read_bytes()
    odd = parcel / name
    odd.parent.mkdir(exist_ok=True)
    odd.write_bytes(content)
    done = build(parcel, single)
    assert done.returncode == 1
    assert done.stderr.startswith(f"single.py: parcel/{name}: ")
    assert says in done.stderr
    assert single.read_bytes() == before


def test_a_folder_that_is_no_package_is_refused(tmp_path):
    done = build(tmp_path, tmp_path / "x.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"single.py: {tmp_path}: no package with a cli.py\n"


def test_a_pipe_in_the_place_of_what_was_kept_hangs_nobody(single):
    run([sys.executable, single, "add"])
    [kept] = (single.parent / "__pycache__").iterdir()
    kept.unlink()
    os.mkfifo(kept)
    assert run([sys.executable, single, "add"], timeout=60).stdout == '"own"\n'
