"""Runs commands so that they can neither harm the machine nor outlive their call, for sandboxed tools and for scorers
that run code.

In the runner: `box` is the sandbox of one attempt, `snapshots` records its files, `confinement` starts a command and
reads its output, `policy` lists what it may see and builds the filter of system calls, `threads` runs it all outside
the event loop, `orphans` cleans up after a crash. In a small program of its own for each command: `launcher`, with
`filesystem` (the root that the command sees), `usage` (what it uses), `cgroups` and `kernel`; these import nothing else
of Holdfast, so that the program starts in milliseconds.
"""
