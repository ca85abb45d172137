"""Checkpoints: the state after a run's last whole round, and cached first rounds; a checksum covers each file."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedveil.engines import Best, Federation
from fedveil.engines.sealed import sealed, unsealed
from fedveil.engines.states import pack, unpack
from fedveil.errors import damaged
from fedveil.files import make_folder, remedy, write_atomic
from fedveil.learning import ClientData, Key, Trained, Trainer

FILE = "round.safetensors"
LAST = 1  # the last round worth keeping: later ones start from models that the noise has told apart


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after a finished round.

    Attributes
    ----------
    round : int
        Number of rounds done.
    run_id, fingerprint : str
        Id of the run, and fingerprint of its configuration.
    lines : mapping of str to int
        Number of ledger lines of each party.
    tensors : dict of str to Tensor
        Models, and tensors of all states.
    values : dict
        Plain values of all states, of the server and of each client.
    data : str
        Digest of the run's examples; empty in files of versions that did not store it.
    """

    round: int
    run_id: str
    fingerprint: str
    lines: Mapping[str, int]
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    data: str = ""

    @classmethod
    def of(
        cls,
        federation: Federation,
        run_id: str,
        fingerprint: str,
        lines: Mapping[str, int],
        data: str = "",
    ) -> "Checkpoint":
        """Make a checkpoint from the present state of a federation."""
        tensors = {"models": federation.models}

        def packed(name: str, state: Any) -> Any:
            inner, plain = pack(state)
            tensors.update({f"{name}/{key}": value for key, value in inner.items()})
            return plain

        states = sorted(federation.client_states().items())
        values: dict[str, Any] = {"server": packed("server", federation.server.state)}
        values["clients"] = {
            str(partition): packed(f"client/{partition}", state) for partition, state in states
        }
        if federation.validators is not None:
            values["validation"] = packed("validation", federation.validators.best)
        return cls(federation.round, run_id, fingerprint, lines, tensors, values, data)

    def restore(self, federation: Federation) -> None:
        """Set a federation to the state of this checkpoint."""
        method, layout = federation.method, federation.layout
        server = unpack(
            method.server.init(layout.size, layout.dtype),
            self._below("server/"),
            self.values["server"],
        )
        clients: dict[int, Any] = {}
        for partition, values in self.values["clients"].items():
            below = self._below(f"client/{partition}/")
            clients[int(partition)] = unpack(method.client.init(), below, values)
        best = None
        if "validation" in self.values:
            best = unpack(Best(), self._below("validation/"), self.values["validation"])
        federation.restore(self.tensors["models"], self.round, server, clients, best, self.lines)

    def _below(self, prefix: str) -> dict[str, Tensor]:
        return {
            key.removeprefix(prefix): value
            for key, value in self.tensors.items()
            if key.startswith(prefix)
        }

    def write(self, folder: Path) -> None:
        """Write this checkpoint to a folder, in place of the earlier one."""
        plain = {name: value for name, value in vars(self).items() if name != "tensors"}
        write_atomic(folder / FILE, sealed(self.tensors, plain))

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint | None":
        """Read the checkpoint of a folder; None if no round has ended.

        Raises
        ------
        FieldError
            If the checksum shows that the file is damaged.
        """
        path = folder / FILE
        if not path.exists():
            return None
        try:
            tensors, plain = unsealed(path)
            return cls(tensors=tensors, **plain)
        except (OSError, ValueError, TypeError) as error:
            raise damaged("checkpoint", path, error, remedy(folder.parent)) from error


class Remembering:
    """Trainer that caches results on disk.

    A cached result is used only for the same start, examples, key and description. It equals new training to the bit if
    the trainer's results do not depend on the other clients.

    Parameters
    ----------
    trainer : Trainer
        Trainer for results that are not cached.
    folder : Path
        Folder of the cache, made when needed. It may be deleted at any time.
    description : str
        Everything else that determines a result: model, local training, device.
    """

    def __init__(self, trainer: Trainer, folder: Path, description: str) -> None:
        self._trainer, self._folder, self._description = trainer, folder, description

    def train(
        self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]
    ) -> list[Trained | Exception]:
        """Train each client from its own start; see `SequentialTrainer.train`."""
        if any(key[1] > LAST for key in keys):
            return self._trainer.train(starts, clients, keys)
        return self._remembered(starts, clients, keys)

    def _remembered(
        self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]
    ) -> list[Trained | Exception]:
        digests = []
        for start, client, key in zip(starts, clients, keys, strict=True):
            digests.append(self._digest(start, client, key))
        known: list[Trained | Exception | None] = [self._read(digest) for digest in digests]
        missing = [i for i, outcome in enumerate(known) if outcome is None]
        if missing:
            their_clients, their_keys = [clients[i] for i in missing], [keys[i] for i in missing]
            trained = self._trainer.train(starts[missing], their_clients, their_keys)
            for i, outcome in zip(missing, trained, strict=True):
                known[i] = outcome
                if isinstance(outcome, Trained):
                    self._write(digests[i], outcome)
        return [outcome for outcome in known if outcome is not None]

    def _digest(self, start: Tensor, client: ClientData, key: Key) -> str:
        digest = hashlib.sha256(f"{self._description}|{key}|{torch.__version__}".encode())
        for tensor in (start, client.x, client.y):
            digest.update(f"|{tuple(tensor.shape)}{tensor.dtype}|".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _read(self, digest: str) -> Trained | None:
        try:
            tensors, plain = unsealed(self._folder / f"{digest}.safetensors")
            return Trained(tensors["model"], int(plain["examples"]), float(plain["loss"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent or damaged: train again

    def _write(self, digest: str, trained: Trained) -> None:
        make_folder(self._folder)
        content = sealed(
            {"model": trained.model}, {"examples": trained.examples, "loss": trained.loss}
        )
        # several processes may share it
        write_atomic(self._folder / f"{digest}.safetensors", content, f".{os.getpid()}")
