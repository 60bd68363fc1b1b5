"""`python3 -m spoolctl`: the same as the installed command."""

if __name__ == "__main__":
    try:
        from spoolctl.cli import main

        raise SystemExit(main())
    except KeyboardInterrupt:  # as early as while it is loaded
        raise SystemExit(130) from None
