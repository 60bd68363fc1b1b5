"""Everything that is a process or a signal."""
