"""What the build needs to know beyond pyproject.toml."""

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Pinned(MetadataHookInterface):
    """The studies of a version are for FedVeil of that version."""

    def update(self, metadata: dict) -> None:
        """Name the dependencies, which are dynamic."""
        metadata["dependencies"] = [
            f"{name}=={metadata['version']}" for name in ("fedveil", "fedveil-lab")
        ]
