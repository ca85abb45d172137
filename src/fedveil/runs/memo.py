"""Train once what several runs train alike: their first round, and the server's first model."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedveil.learning import ClientData
from fedveil.learning.learner import Trainer
from fedveil.learning.local import Trained
from fedveil.learning.streams import Key
from fedveil.runs.disk import make_folder, sealed, unsealed, write_atomic

LAST = 1  # the last round worth keeping: later ones start from models that the noise has told apart


class Remembering:
    """A trainer that keeps results on disk and looks there first.

    A result is found again only for the same start, examples, key and description: it is what training would give, to
    the bit where the trainer's results do not depend on who else is trained.

    Parameters
    ----------
    trainer : Trainer
        Trains what is not there yet.
    folder : Path
        Made when needed. It may be deleted at any time.
    description : str
        Everything else that decides a result: model, local training, device.
    """

    def __init__(self, trainer: Trainer, folder: Path, description: str) -> None:
        self._trainer, self._folder, self._description = trainer, folder, description

    def train(self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> list[Trained | Exception]:
        """Train each client from its own start; see `SequentialTrainer.train`."""
        late = any(key[1] > LAST for key in keys)
        return (self._trainer.train if late else self._remembered)(starts, clients, keys)

    def _remembered(
        self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]
    ) -> list[Trained | Exception]:
        digests = [self._digest(s, c, k) for s, c, k in zip(starts, clients, keys, strict=True)]
        known: list[Trained | Exception | None] = [self._read(digest) for digest in digests]
        missing = [i for i, outcome in enumerate(known) if outcome is None]
        if missing:
            some = [clients[i] for i in missing]
            trained = self._trainer.train(starts[missing], some, [keys[i] for i in missing])
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
        content = sealed({"model": trained.model}, {"examples": trained.examples, "loss": trained.loss})
        # several processes may share it
        write_atomic(self._folder / f"{digest}.safetensors", content, f".{os.getpid()}")
