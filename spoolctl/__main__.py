"""`python3 -m spoolctl`: the same as the installed command."""

from spoolctl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
