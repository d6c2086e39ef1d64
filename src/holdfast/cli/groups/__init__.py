"""The arguments and options of every command, one module per group of `holdfast --help`.

Invariant: these modules import nothing of Holdfast but `holdfast.cli.app`. A command imports its body when it runs, so
that `--help` and shell completion stay fast.
"""
