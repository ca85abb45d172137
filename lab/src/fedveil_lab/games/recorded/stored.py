"""Read a finished run's folder, and the data that the run trained on, for an attack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor

from fedveil.accounting import Guarantee
from fedveil.errors import FieldError
from fedveil.evidence import KeptRound, kept_rounds
from fedveil.files import CONFIG
from fedveil.home import weights_of
from fedveil.layout import Layout
from fedveil_lab.attacks import Received
from fedveil_lab.config import Config
from fedveil_lab.config.loading import load
from fedveil_lab.runs import Summary
from fedveil_lab.runs.deal import data_digest
from fedveil_lab.runs.prepare import Setup, prepare

HYPOTHESIS = "hypothesis."
# summaries hold more beside: text, epsilon, what it means
BOUNDS = {"mu", "mu_per_distance", "rho", "epsilon_per_distance"}
OF_A_GUARANTEE = {one.name for one in fields(Guarantee)} | BOUNDS | {"status", "reason"}


@dataclass(frozen=True, eq=False)
class Stored:
    """Finished run, read from its folder.

    Attributes
    ----------
    folder : Path
        Path of the folder.
    setup : Setup
        Clients, model and training from the configuration.
    summary : mapping
        Content of summary.json.
    last : Tensor
        Last released model [d].
    rounds : sequence of KeptRound
        Rounds that the server kept; empty if it kept none.
    """

    folder: Path
    setup: Setup
    summary: Mapping[str, Any]
    last: Tensor
    rounds: Sequence[KeptRound]

    @property
    def models(self) -> Tensor:
        """Models after each kept round [R, d], or only the last one [1, d]."""
        if not self.rounds:
            return self.last[None]
        return torch.stack([one.models[0] for one in self.rounds])

    @cached_property
    def received(self) -> list[Received]:
        """Models that arrived from clients, sorted by round and partition; empty if updates were not kept."""
        found = []
        for one in self.rounds:
            for partition in sorted(one.received):
                model = one.received[partition]
                if bool(model.isfinite().all()):
                    found.append(Received(one.number, partition, one.starts, model))
        return found

    @cached_property
    def promise(self) -> Guarantee | None:
        """Weakest promise among the run's parties; None if one of them has no proven promise."""
        found = []
        for values in self.summary.get("guarantees", {}).values():
            bare = {}
            for name, value in values.items():
                if name in OF_A_GUARANTEE or name.startswith("events"):
                    bare[name] = value
            found.append(Guarantee.from_dict(bare))
        proven = [one for one in found if one.proven and not one.by_distance]
        if not proven or len(proven) < len(found):
            return None
        return max(proven, key=lambda one: one.epsilon(self.delta))

    @property
    def delta(self) -> float:
        """Delta of the run's promise."""
        for values in self.summary.get("guarantees", {}).values():
            if "delta" in values:
                return float(values["delta"])
        return self.setup.config.privacy.budget.delta

    def contents(self) -> str:
        """Say in one sentence what is stored."""
        if not self.rounds:
            kept = "no models of rounds"
        else:
            kept = f"models of {len(self.rounds)} rounds"
        answers = "no site's answer"
        if self.received:
            answers = f"{len(self.received)} answers of sites"
        return (
            f"stored: the last model, {kept}, {answers}, figures of {self.summary['rounds']} rounds"
        )


def stored_run(folder: str | Path, config: str | Path | Config | None = None) -> Stored:
    """Read a finished run, and the data on which it trained.

    Parameters
    ----------
    folder : path
        Folder of a run, or of a deployed server.
    config : path or Config, optional
        Configuration whose ``[data]`` and ``[model]`` say which client held which examples. A server's folder needs it.
        Partition i of the run is client i of the configuration.

    Raises
    ------
    FieldError
        If the folder lacks something, or configuration and run do not fit.
    """
    path = Path(folder)
    weights = weights_of(path)
    if config is None and not (path / CONFIG).is_file():
        accepted = "is a server's folder, which does not know the sites' data: give --config FILE, whose [data] and "
        accepted += "[model] say who held which examples"
        raise FieldError("RUN", str(path), accepted)
    spec = config
    if spec is None:
        spec = path
    if not isinstance(spec, Config):
        spec = load(str(spec))
    summary = Summary.read(path).values
    known = summary.get("data", {}).get("digest")
    if known and known != data_digest(spec.data):
        accepted = "are not those that the run was trained on, by their checksum: nothing would be a member"
        raise FieldError("data", spec.data.name, accepted)
    setup = prepare(spec)
    if setup.dealt.dataset.task != "classification":
        accepted = f"is a {setup.dealt.dataset.task}; the attacks on recorded runs are of classified examples"
        raise FieldError("data.name", spec.data.name, accepted)
    layout = setup.learner.layout
    last = _model(weights, layout, setup)
    rounds = kept_rounds(path)
    for one in rounds:
        layout.check(one.models, f"rounds/{one.number}")
        absent = [p for p in one.replied if p >= len(setup.clients)]
        if absent:
            accepted = f"are clients of the run, and the configuration deals out {len(setup.clients)}: give the run's own"
            raise FieldError("data.clients", absent, accepted)
    return Stored(path, setup, summary, last, rounds)


def _model(weights: bytes, layout: Layout, setup: Setup) -> Tensor:
    """Return the last model [d].

    Raises
    ------
    FieldError
        If the file holds the arrays of another model, or several models.
    """
    module = setup.learner.model
    try:
        arrays = tensors_of(weights)
    except SafetensorError as error:
        raise FieldError("RUN", "model.safetensors", f"cannot be read: {error}") from error
    if any(name.startswith(HYPOTHESIS) for name in arrays):
        accepted = "holds several models, of which each site used one: attacks on recorded runs are of one model"
        raise FieldError("RUN", "model.safetensors", accepted)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        module.load_state_dict(arrays, strict=False)
        missing = [block.name for block in layout.blocks if block.name not in arrays]
        if missing:
            raise RuntimeError(f"it lacks {', '.join(missing)}")
        return layout.read(module).clone()
    except RuntimeError as error:
        accepted = f"does not fit the model of the configuration: {error}"
        raise FieldError("model.name", setup.config.model.name, accepted) from error
    finally:
        module.load_state_dict(before)
