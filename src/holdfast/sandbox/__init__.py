"""Running one command so that it can neither harm the machine nor outlive its call: sandboxed tools and scorers that
run code use it.

In the runner: `confining` starts a command and reads its output, `visibility` lists what it may see, `system_calls`
builds the filter. In a small program of its own for each command: `launcher`, with `filesystem` (the root it sees),
`usage` (what it uses), `cgroups` and `kernel`; these import nothing else of Holdfast.
"""
