"""Everything that is SQL. One concern a file, its statements as constants on top."""
