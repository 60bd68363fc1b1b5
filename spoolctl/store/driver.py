"""SQLite's driver, without what only its public front adds.

`import sqlite3` also loads datetime and collections, for adapters that nothing here uses: about a
third of the start-up of `add`. The C module behind it has the same names (PEP 249) in every CPython
from 3.9 on; where it is not to be had, the public module serves.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
else:
    try:
        import _sqlite3 as sqlite3
    except ImportError:
        import sqlite3

__all__ = ["sqlite3"]
