"""The command line as ``python -m fedveil``."""

from fedveil.cli import main

main()
