"""From a configuration to a federation: data, model, budgets, engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedveil.accounting import Filter, LeakageFilter, ParticipationFilter, Spend, SpendFilter, delta_warning
from fedveil.data import DataSet
from fedveil.engines import Federation
from fedveil.engines.assembly import with_proximal_term
from fedveil.errors import FedVeilError, FieldError
from fedveil.experiments.config import Config
from fedveil.experiments.dealing import Dealt, check_fit, deal_out
from fedveil.experiments.ledgers import Ledgers
from fedveil.experiments.memo import Remembering
from fedveil.experiments.options import fields_of
from fedveil.experiments.pretraining import first_model, pretraining_of
from fedveil.experiments.sections import Budget
from fedveil.layout import Layout
from fedveil.learning import (
    LocalTraining,
    SequentialTrainer,
    build_model,
    initial_models,
    make_trainer,
)
from fedveil.learning.learner import Learner, Trainer
from fedveil.methods import Method


@dataclass(frozen=True)
class Setup:
    """Everything a federation is made of, checked, before anything is written.

    Attributes
    ----------
    dealt : Dealt
        The examples, and who holds which.
    method : Method
        Both sides.
    arguments : dict
        For `Federation` or the Flower engine.
    warnings : tuple of str
        What is unusual about the clients' data, a line each.
    """

    dealt: Dealt
    method: Method
    arguments: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def dataset(self) -> DataSet:
        """The examples that were dealt out."""
        return self.dealt.dataset

    def federation(self, config: Config, ledgers: Ledgers) -> Federation:
        """The federation, on the configured engine."""
        engine = Federation if config.engine == "local" else flower_engine()
        budget, central = config.privacy.budget, self.method.client.trust == "central"
        return engine(
            **self.arguments,
            source=config.source.build(config.seed),
            client_budgets=lambda partition: client_budget(budget, central),
            server_budget=epsilon_filter(budget) if central else None,
            run_id=ledgers.run_id,
            ledgers=ledgers.open,
            publishing=config.publish,
        )


def prepare(config: Config, memo: Path | None = None, dealt: Dealt | None = None) -> Setup:
    """Load the data, deal it out, build the model.

    Parameters
    ----------
    config : Config
        Of one run.
    memo : Path, optional
        A folder where first rounds are kept, for runs that begin alike; see `Remembering`.
    dealt : Dealt, optional
        The data, where they were dealt out for the same ``[data]`` and seed already.

    Raises
    ------
    FieldError
        Naming the key that does not fit.
    """
    spec = config.data
    dealt = deal_out(spec, config.seed) if dealt is None else dealt
    dataset, validation = dealt.dataset, dealt.validation
    method = config.privacy.build(config.aggregator)
    shape: dict[str, Any] = {"input_shape": dataset.input_shape, "outputs": dataset.outputs, **config.model.options}
    with fields_of("model"):
        module = build_model(config.model.name, seed=config.seed, **shape)
        starts = initial_models(config.model.name, k=method.server.hypotheses, seed=config.seed, **shape)
        layout = Layout.from_module(module)
    check_fit(dealt, method, config.local.loss, config.model.name, module)
    with fields_of("local"):
        local = with_proximal_term(config.local, method)
    trainer = make_trainer(
        module,
        layout,
        local,
        config.trainer,
        device=config.device,
        workers=config.workers,
        precision=config.precision,
    )
    learner = Learner(module, layout, local, region=spec.region, trainer=trainer, device=config.device)
    if memo is not None:
        learner.trainer = _remembered(learner.trainer, config, local, memo)
    if config.pretraining is not None and validation is not None:
        alone = pretraining_of(config.local, config.pretraining.epochs)
        central: Trainer = SequentialTrainer(module, layout, alone, device=config.device)
        if memo is not None:
            central = _remembered(central, config, alone, memo)
        starts = first_model(starts, validation, central, config.seed)
    arguments = {
        "model": module,
        "initial": starts,
        "clients": dealt.clients,
        "privacy": method,
        "learner": learner,
        "seed": config.seed,
        "clients_per_round": config.clients_per_round,
        "public_data": dealt.public,
    }
    warnings = dealt.warnings()
    if config.privacy.method != "vanilla":
        warnings += delta_warning(config.privacy.budget.delta, len(dealt.clients))
    return Setup(dealt, method, arguments, tuple(warnings))


def _remembered(trainer: Trainer, config: Config, local: LocalTraining, memo: Path) -> Trainer:
    kind = (type(trainer).__name__, config.precision, config.device)
    parts = (*kind, config.model.name, config.model.options, asdict(local))
    return Remembering(trainer, memo, repr(parts))


class _All:
    """Several filters at once; if one refuses, those before it stay charged: too much, never too little."""

    def __init__(self, filters: list[SpendFilter]) -> None:
        self._filters = filters

    def admit_spend(self, spend: Spend) -> bool:
        """Charge all."""
        return all(f.admit_spend(spend) for f in self._filters)


def epsilon_filter(budget: Budget) -> SpendFilter | None:
    """A fresh filter for whoever adds the noise."""
    return None if budget.epsilon is None else Filter(budget.epsilon, budget.delta)


def client_budget(budget: Budget, central: bool) -> SpendFilter | None:
    """A fresh filter for one client."""
    filters: list[SpendFilter] = []
    own = None if central else epsilon_filter(budget)
    if own is not None:
        filters.append(own)
    if budget.leakage_cap is not None:
        filters.append(LeakageFilter(budget.leakage_cap))
    if budget.participations is not None:
        filters.append(ParticipationFilter(budget.participations))
    return _All(filters) if len(filters) > 1 else next(iter(filters), None)


def flower_engine() -> type[Federation]:
    """The same federation behind Flower's messages.

    Raises
    ------
    FedVeilError
        If Flower is not installed.
    """
    try:
        from fedveil.engines.flower import FlowerFederation
    except ImportError as error:
        raise FedVeilError(f'the Flower engine needs Flower ({error}): pip install "fedveil[flower]"') from error
    return FlowerFederation


def resolve_device(device: str) -> str:
    """``"auto"`` is a GPU where there is one.

    Raises
    ------
    FieldError
        If a GPU is asked for and there is none.
    """
    found = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if found else "cpu"
    if device == "cuda" and not found:
        raise FieldError("device", device, "there is no GPU that PyTorch can use; accepted here: auto, cpu")
    return device
