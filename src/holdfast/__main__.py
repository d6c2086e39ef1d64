"""`python -m holdfast`: the same as the command `holdfast`."""

from holdfast.cli.main import main

main()
