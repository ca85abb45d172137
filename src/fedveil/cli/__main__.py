"""``python -m fedveil.cli``."""

from fedveil.cli import main

main()
