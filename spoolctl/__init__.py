"""spoolctl: a local job queue for shell commands, built for operators that die."""

import sys

__version__ = "0.1.0a1"

if sys.version_info < (3, 9):  # noqa: UP036 (said to those who have an older one)
    sys.exit("spoolctl needs Python 3.9 or newer; this is " + sys.version.split()[0])
