"""Checkpoints: everything a run needs to go on after its last whole round, in one file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedveil.config.folders import remedy
from fedveil.engines import Federation
from fedveil.engines.history import Best
from fedveil.engines.states import pack, unpack
from fedveil.errors import damaged
from fedveil.runs.disk import sealed, unsealed, write_atomic

FILE = "round.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A finished round.

    Attributes
    ----------
    round : int
        Rounds done.
    run_id, fingerprint : str
        Of the run, and of its configuration.
    lines : mapping of str to int
        Ledger lines of each party at that time.
    tensors : dict of str to Tensor
        The models, and the tensors of all states.
    values : dict
        The plain values of all states: the server's, and each client's.
    """

    round: int
    run_id: str
    fingerprint: str
    lines: Mapping[str, int]
    tensors: dict[str, Tensor]
    values: dict[str, Any]

    @classmethod
    def of(cls, federation: Federation, run_id: str, fingerprint: str, lines: Mapping[str, int]) -> "Checkpoint":
        """The present state of a federation."""
        tensors = {"models": federation.models}

        def packed(name: str, state: Any) -> Any:
            inner, plain = pack(state)
            tensors.update({f"{name}/{key}": value for key, value in inner.items()})
            return plain

        states = sorted(federation.client_states().items())
        values: dict[str, Any] = {"server": packed("server", federation.server.state)}
        values["clients"] = {str(partition): packed(f"client/{partition}", state) for partition, state in states}
        if federation.validators is not None:
            values["validation"] = packed("validation", federation.validators.best)
        return cls(federation.round, run_id, fingerprint, lines, tensors, values)

    def restore(self, federation: Federation) -> None:
        """Put a federation back to where it was."""
        method, layout = federation.method, federation.layout
        server = unpack(method.server.init(layout.size, layout.dtype), self._below("server/"), self.values["server"])
        clients = {
            int(partition): unpack(method.client.init(), self._below(f"client/{partition}/"), values)
            for partition, values in self.values["clients"].items()
        }
        best = None
        if "validation" in self.values:
            best = unpack(Best(), self._below("validation/"), self.values["validation"])
        federation.restore(self.tensors["models"], self.round, server, clients, best)

    def _below(self, prefix: str) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}

    def write(self, folder: Path) -> None:
        """Replace the folder's checkpoint."""
        plain = {name: value for name, value in vars(self).items() if name != "tensors"}
        write_atomic(folder / FILE, sealed(self.tensors, plain))

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint | None":
        """The folder's checkpoint, or None before the end of the first round.

        Raises
        ------
        FieldError
            If the file is damaged: a checksum covers its tensors and values.
        """
        path = folder / FILE
        if not path.exists():
            return None
        try:
            tensors, plain = unsealed(path)
            return cls(tensors=tensors, **plain)
        except (OSError, ValueError, TypeError) as error:
            raise damaged("checkpoint", path, error, remedy(folder.parent)) from error
