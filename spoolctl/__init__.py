"""spoolctl: a local job queue for shell commands, built for operators that die."""

__version__ = "0.1.0a1"
