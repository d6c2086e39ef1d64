"""The command line: a contract that scripts rely on (names, options, JSON fields, exit codes)."""
