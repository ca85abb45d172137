"""Command-line commands of the laboratory; each is added to `fedveil` by an entry point in lab/pyproject.toml."""
