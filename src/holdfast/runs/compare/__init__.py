"""Comparisons of opened runs: `compare`, `gate` and `leaderboard`, for the command line and the Python API.

`comparability` says whether runs can be compared at all. Everything here reads, and prints nothing.
"""
