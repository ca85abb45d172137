"""From a configuration to a federation: data, model, budgets, engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Filter, LeakageFilter, ParticipationFilter, Spend, SpendFilter, Trust, delta_warning
from fedveil.attacks.participation import craft
from fedveil.config.experiment import Config
from fedveil.config.options import fields_of
from fedveil.config.privacy import Budget
from fedveil.data import DataSet
from fedveil.engines import Execution, Federation
from fedveil.engines.assembly import require_fit, with_proximal_term
from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.engines.probe import Probe
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, PrivateTrainer, SequentialTrainer, build_model, initial_models, make_trainer
from fedveil.learning.learner import Learner, Trainer
from fedveil.learning.metrics import DEFAULT
from fedveil.learning.scores import region_mask
from fedveil.mechanisms import keyed_seed
from fedveil.methods import ClientSide, Method
from fedveil.runs.deal import Dealt, check_fit, deal_out, split_clients
from fedveil.runs.ledgers import Ledgers
from fedveil.runs.memo import Remembering
from fedveil.runs.poisoning import Poisoning, poisoning_of
from fedveil.runs.pretraining import first_model, pretraining_of, public_model
from fedveil.runs.world import Shares, share_out

# What accuracy hides where one of two classes is rare is measured unless metrics are named.
TWO_CLASSES = (*DEFAULT["classes"], "macro_auc", "balanced_accuracy", "sensitivity", "specificity")


@dataclass(frozen=True)
class Setup:
    """Everything a federation is made of, checked, before anything is written.

    Attributes
    ----------
    config : Config
        Of the run.
    dealt : Dealt
        The examples, and who holds which.
    method : Method
        Both sides.
    arguments : dict
        For `Federation` or the Flower engine, and the learner of its `Execution`.
    warnings : tuple of str
        What is unusual about the clients' data, a line each.
    shares : Shares or None
        Who holds what in a run of a world, the adversary included.
    poisoning : Poisoning or None
        Who is malicious.
    """

    config: Config
    dealt: Dealt
    method: Method
    arguments: dict[str, Any]
    warnings: tuple[str, ...] = ()
    shares: Shares | None = None
    poisoning: Poisoning | None = None

    @property
    def dataset(self) -> DataSet:
        """The examples that were dealt out."""
        return self.dealt.dataset

    @property
    def learner(self) -> Learner:
        """Trains the clients."""
        return self.arguments["learner"]  # type: ignore[no-any-return]

    def federation(
        self, ledgers: Ledgers, probes: Sequence[Probe] = (), tell: Callable[[str], None] = lambda text: None
    ) -> Federation:
        """The federation, on the configured engine; `tell` takes what its rounds show to be odd."""
        config = self.config
        engine = Federation if config.engine == "local" else flower_engine()
        budget, central = config.privacy.budget, self.method.client.trust == "central"
        sides: Mapping[int, ClientSide] = self.arguments["client_sides"]
        return engine(
            **{name: value for name, value in self.arguments.items() if name != "learner"},
            execution=Execution(learner=self.learner, run_id=ledgers.run_id, ledgers=ledgers.open, tell=tell),
            source=config.source.build(config.seed),
            client_budgets=lambda partition: (
                client_budget(budget, sides.get(partition, self.method.client))
                if partition < len(self.arguments["clients"])
                else validation_budget(budget, self.method.client.trust)
            ),
            server_budget=epsilon_filter(budget) if central else None,
            publishing=config.publish,
            probes=probes,
        )


def prepare(config: Config, memo: Path | None = None, like: Setup | None = None) -> Setup:
    """Load the data, deal it out, build the model.

    Parameters
    ----------
    config : Config
        Of one run.
    memo : Path, optional
        A folder where first rounds are kept, for runs that begin alike; see `Remembering`.
    like : Setup, optional
        Another run of the same configuration, but for seeds and for who takes part: its learner is taken, and what
        follows from the same seed.

    Raises
    ------
    FieldError
        Naming the key that does not fit.
    """
    world, base = config.world, config.world.base if config.world else config.seed
    alike = like is not None and base == (like.config.world.base if like.config.world else like.config.seed)
    dealt = like.dealt if like is not None and alike else deal_out(config.data, base)
    method = config.privacy.build(config.aggregator)
    learner = like.learner if like is not None else _learner(config, dealt, method, memo)
    if like is not None and alike and (config.pretraining is not None or config.model.start == "public"):
        starts = like.arguments["initial"]
    else:
        starts = _first_models(config, dealt, method, learner, base, memo)
    shares = None if world is None else share_out(config.data, dealt, world, config.seed)
    clients, size = shares.clients if shares else dealt.clients, config.clients_per_round
    arguments = {
        "model": learner.model,
        "initial": starts,
        "clients": clients,
        "method": method,
        "client_sides": config.privacy.client_sides(method.client),
        "learner": learner,
        "seed": config.seed,
        "clients_per_round": size if size is None or shares is None else min(size, len(clients)),
        "public_data": dealt.public,
        "metrics": config.metrics or (TWO_CLASSES if dealt.dataset.classes == 2 else None),
    }
    if config.stopping is not None:
        training, validating = split_clients(clients, config.stopping.clients, base)
        stopping = config.stopping.build()
        arguments |= {"clients": training, "validation_clients": validating, "stopping": stopping}
    if shares is not None and world is not None and world.crafted and len(starts) == 1:
        arguments["behaviours"] = {shares.adversaries[0]: PullBackTo(starts[0])}
    if shares is not None and config.malicious is not None:
        raise FieldError("malicious", "a table", "does not go together with an audit's world")
    poisoning = poisoning_of(config, dealt, arguments["clients"])
    if poisoning is not None and poisoning.acting:
        arguments["behaviours"] = poisoning.behaviours
    warnings = [] if like is not None else dealt.warnings()
    if like is None and poisoning is not None:
        warnings += poisoning.outnumbering(config, len(arguments["clients"]))
    if like is None and (lacking := dealt.unscored(method)):
        warnings.append(f"no public example shows classes {lacking}: layers are scored without them")
    elif like is None and (lacking := dealt.unscored(method, config.scoring)):
        few = f"no public example that is scored shows classes {lacking}"
        warnings.append(f"{few}: raise scoring.images = {config.scoring.images}, or data.public_examples")
    if "privacy" not in config.model_fields_set and like is None:
        warnings.append("no [privacy] table: nothing protects the clients (fedveil advise says what is possible)")
    planned = config.privacy.options.get("rounds")
    if planned and config.privacy.options.get("epsilon") and planned > config.rounds and like is None:
        fewer = f"the noise is planned for privacy.rounds = {planned}, and rounds = {config.rounds} would need less"
        warnings.append(f"{fewer}: plan for as many as are run")
    if config.privacy.method != "vanilla" and like is None:
        of = (sum(c.examples for c in clients) or 1, "record") if method.noisy else (len(dealt.clients), "client")
        warnings += delta_warning(config.privacy.budget.delta, *of)
    return Setup(config, dealt, method, arguments, tuple(warnings), shares, poisoning)


def check(config: Config) -> None:
    """Refuse what cannot be run, without training anything.

    Raises
    ------
    FieldError
        As `prepare` and the federation would.
    """
    own = config.model.model_copy(update={"start": "own"})
    untrained = {"model": own, "pretraining": None, "device": resolve_device(config.device)}
    prepare(config.model_copy(update=untrained)).federation(Ledgers("memory"))


def _learner(config: Config, dealt: Dealt, method: Method, memo: Path | None) -> Learner:
    """Model, layout and trainer, checked against the data."""
    with fields_of("model"):
        module = build_model(config.model.name, seed=config.seed, **_shape(config, dealt))
        layout = Layout.from_module(module)
    check_fit(dealt, method, config.local.loss, config.model.name, module)
    require_fit(module, dealt.clients, config.local.loss)
    with fields_of("local"):
        local = with_proximal_term(config.local, method)
    how: dict[str, Any] = {"device": config.device, "workers": config.workers, "precision": config.precision}
    how["noisy"] = method.noisy.noisy_steps if method.noisy else None
    trainer: Trainer = make_trainer(module, layout, local, config.trainer, **how)
    if isinstance(trainer, PrivateTrainer):
        if dealt.dataset.local_columns:
            accepted = "each silo scales columns by its own rows, which no noise covers: scale by public constants"
            raise FieldError("data.scale", "client", accepted)
        with fields_of("privacy"):
            trainer.check_sizes(dealt.clients)
    elif memo is not None:
        trainer = _remembered(trainer, config, local, memo)
    given, region = config.data.region, None
    if given is not None:
        with fields_of("data"):
            region = region_mask(given, *(1, 1, *dealt.dataset.input_shape)[-2:])
    return Learner(
        module,
        layout,
        local,
        region=region,
        scoring=config.scoring,
        unmarked=config.privacy.unmarked,
        trainer=trainer,
        device=config.device,
    )


def _first_models(
    config: Config, dealt: Dealt, method: Method, learner: Learner, base: int, memo: Path | None
) -> Tensor:
    """The first hypotheses [k, d]; one that the server trains is the same under every seed of a base."""
    trained = config.model.start == "public" or (config.pretraining is not None and dealt.validation is not None)
    seed, k = base if trained else config.seed, method.server.hypotheses
    with fields_of("model"):
        starts = initial_models(config.model.name, k=k, seed=seed, **_shape(config, dealt))
    if config.model.start == "normal":
        generator = torch.Generator().manual_seed(keyed_seed("normal start", seed))
        starts = torch.randn(starts.shape, generator=generator, dtype=starts.dtype)
    if config.model.start == "public":
        if dealt.public is None or dealt.dataset.task != "classification":
            accepted = "trains on public examples and their classes: set data.public_examples"
            raise FieldError("model.start", "public", accepted)
        return public_model(learner.model, learner.layout, starts[0], dealt.public, seed).expand(k, -1).clone()
    if config.pretraining is None or dealt.validation is None:
        return starts
    alone = pretraining_of(config.local, config.pretraining.epochs)
    central: Trainer = SequentialTrainer(learner.model, learner.layout, alone, device=config.device)
    if memo is not None:
        central = _remembered(central, config, alone, memo)
    return first_model(starts, dealt.validation, central, seed)


def _shape(config: Config, dealt: Dealt) -> dict[str, Any]:
    dataset = dealt.dataset
    return {"input_shape": dataset.input_shape, "outputs": dataset.outputs, **config.model.options}


@dataclass(frozen=True)
class PullBackTo(Behaviour):
    """The malicious client of an audit: it pulls the model back to the first one, which `first` [d] is."""

    first: Tensor

    def model(self, turn: Turn) -> Tensor:
        return craft(turn.broadcast.models[0], self.first)


def _remembered(trainer: Trainer, config: Config, local: LocalTraining, memo: Path) -> Trainer:
    kind = (type(trainer).__name__, config.precision, config.device)
    parts = (*kind, config.model.name, config.model.options, asdict(local))
    return Remembering(trainer, memo, repr(parts))


class _All:
    """Several filters at once; if one refuses, those before it stay charged: too much, never too little."""

    def __init__(self, filters: list[SpendFilter]) -> None:
        self._filters = filters
        self.terms = next((f.terms for f in filters if f.terms), None)

    def admit_spend(self, spend: Spend) -> bool:
        """Charge all."""
        return all(f.admit_spend(spend) for f in self._filters)


def epsilon_filter(budget: Budget) -> SpendFilter | None:
    """A fresh filter for whoever adds the noise."""
    return None if budget.epsilon is None else Filter(budget.epsilon, budget.delta)


def client_budget(budget: Budget, side: ClientSide) -> SpendFilter | None:
    """A fresh filter for one client."""
    return _capped(side.budgets(budget.epsilon, budget.delta), budget)


def validation_budget(budget: Budget, trust: Trust) -> SpendFilter | None:
    """A fresh filter for one validation client, whose own noise (none under central trust) is held to the total."""
    total = None if trust == "central" else epsilon_filter(budget)
    return _capped([] if total is None else [total], budget)


def _capped(filters: list[SpendFilter], budget: Budget) -> SpendFilter | None:
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
        from fedveil.engines.flower.app import FlowerFederation
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
