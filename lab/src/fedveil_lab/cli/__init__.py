"""The laboratory's commands; each joins `fedveil` by an entry point of lab/pyproject.toml."""
