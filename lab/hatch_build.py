"""What the build needs to know beyond pyproject.toml."""

from hatchling.metadata.plugin.interface import MetadataHookInterface

NEEDED = [
    "pydantic>=2.6",
    "typer>=0.19",
    "rich>=13",
    "tomli-w>=1.0",
    "matplotlib>=3.8",
    "jinja2>=3.1",
    "threadpoolctl>=3.1",
]


class Pinned(MetadataHookInterface):
    """The laboratory of a version is for FedVeil of that version."""

    def update(self, metadata: dict) -> None:
        """Name the dependencies, which are dynamic."""
        metadata["dependencies"] = [f"fedveil=={metadata['version']}", *NEEDED]
