"""Runs and their mirrors: claiming a mirrored run, reading it from another machine, recovering it."""
