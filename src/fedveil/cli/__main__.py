"""The command line of the library as ``python -m fedveil.cli``."""

from fedveil.cli import main

main()
