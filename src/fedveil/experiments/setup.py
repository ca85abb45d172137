"""From a configuration to a federation: data, model, budgets, engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedveil.accounting import Filter, LeakageFilter, ParticipationFilter, Spend, SpendFilter
from fedveil.data import DataSet, federate, load
from fedveil.engines import Federation
from fedveil.engines.assembly import with_proximal_term
from fedveil.errors import FedVeilError, FieldError
from fedveil.experiments.config import Config
from fedveil.experiments.ledgers import Ledgers
from fedveil.experiments.options import fields_of
from fedveil.experiments.sections import Budget
from fedveil.layout import Layout
from fedveil.learning import ClientData, WorkerTrainer, build_model, initial_models
from fedveil.learning.learner import Learner
from fedveil.mechanisms import keyed_seed
from fedveil.methods import Method


@dataclass(frozen=True)
class Setup:
    """Everything a federation is made of, checked, before anything is written.

    Attributes
    ----------
    dataset : DataSet
        The examples that were dealt out.
    method : Method
        Both sides.
    arguments : dict
        For `Federation` or the Flower engine.
    """

    dataset: DataSet
    method: Method
    arguments: dict[str, Any]

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
        )


def prepare(config: Config) -> Setup:
    """Load the data, deal it out, build the model.

    Raises
    ------
    FieldError
        Naming the key that does not fit.
    """
    spec = config.data
    with fields_of("data"):
        dataset, public = set_aside(load(spec.name, **spec.options), spec.public_examples, config.seed)
        extra = {k: v for k, v in (("alpha", spec.alpha), ("counts", spec.counts)) if v is not None}
        if spec.partition == "dirichlet":
            extra["min_size"] = spec.min_size
    with fields_of("data", scheme="data.partition"):
        clients = federate(
            dataset, clients=spec.clients, scheme=spec.partition, holdout=spec.holdout, seed=config.seed, **extra
        )
    method = config.privacy.build(config.aggregator)
    shape: dict[str, Any] = {"input_shape": dataset.input_shape, "outputs": dataset.outputs, **config.model.options}
    with fields_of("model"):
        module = build_model(config.model.name, seed=config.seed, **shape)
        starts = initial_models(config.model.name, k=method.server.hypotheses, seed=config.seed, **shape)
        layout = Layout.from_module(module)
    with fields_of("local"):
        local = with_proximal_term(config.local, method)
    trainer = WorkerTrainer(module, layout, local, device=config.device, workers=config.workers)
    learner = Learner(module, layout, local, region=spec.region, trainer=trainer, device=config.device)
    arguments = {
        "model": module,
        "initial": starts,
        "clients": clients,
        "privacy": method,
        "learner": learner,
        "seed": config.seed,
        "clients_per_round": config.clients_per_round,
        "public_data": public,
    }
    return Setup(dataset, method, arguments)


def set_aside(dataset: DataSet, count: int, seed: int) -> tuple[DataSet, ClientData | None]:
    """Take public examples for the server: from the set's test half, or else from the examples to be dealt out.

    Raises
    ------
    FieldError
        If there are not enough.
    """
    if not count:
        return dataset, None
    from_test = dataset.test_x is not None and dataset.test_y is not None
    x, y = (dataset.test_x, dataset.test_y) if from_test else (dataset.x, dataset.y)
    assert x is not None
    assert y is not None
    if count >= len(x):
        raise FieldError("data.public_examples", count, f"must be less than {len(x)}, all there are")
    generator = torch.Generator().manual_seed(keyed_seed("public", seed))
    order = torch.randperm(len(x), generator=generator)
    public, rest = order[:count], order[count:].sort().values
    kept = ClientData(x[public], y[public], name="public")
    if from_test:
        return replace(dataset, test_x=x[rest], test_y=y[rest]), kept
    return replace(dataset, x=x[rest], y=y[rest]), kept


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
