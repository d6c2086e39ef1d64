"""Runs and their mirrors: claiming a mirrored run, and reading it from another machine."""
