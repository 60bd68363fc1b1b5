"""test_all.py: run the suite on every Python from 3.9 on that this machine has (`make test-all`).

Each interpreter gets a virtual environment of its own, .venv-3.X. One that is missing is said, not failed:
nobody has them all. Finding none at all is a failure, because nothing was tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def main() -> int:
    results = {version: run_suite(version, find(version)) for version in VERSIONS}
    print()
    for version, result in results.items():
        print(f"{version:5} {result}")
    outcomes = set(results.values())
    return 0 if "passed" in outcomes and "FAILED" not in outcomes else 1


def run_suite(version: str, python: str | None) -> str:
    if python is None:
        return "not found"
    print(f"\n== Python {version}: {python}", flush=True)
    make = [os.environ.get("MAKE", "make"), "unit", f"PYTHON={python}", f"VENV=.venv-{version}"]
    return "FAILED" if subprocess.run(make, cwd=ROOT, check=False).returncode else "passed"


def find(version: str) -> str | None:
    return next((python for python in candidates(version) if is_version(python, version)), None)


def candidates(version: str) -> Iterator[str]:
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for python in sorted(pyenv.glob(f"versions/{version}*/bin/python"), key=release, reverse=True):
        yield str(python)


def release(python: Path) -> list[int]:
    """3.9.18 is newer than 3.9.5."""
    return [int(number) for number in re.findall(r"\d+", python.parts[-3])]


def is_version(python: str, version: str) -> bool:
    """Asked, not believed: pyenv puts a python3.X on the PATH for versions that it will not run."""
    ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main())
