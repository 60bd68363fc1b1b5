"""One verb a file: its description, what it does, how that reads. Found by file name."""
