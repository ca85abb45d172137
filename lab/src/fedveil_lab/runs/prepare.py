"""From a configuration to a federation: data, who does what, model, budgets, engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Filter, LeakageFilter, ParticipationFilter, Spend, SpendFilter, delta_warning
from fedveil.engines import Behaviour, Budgets, Evaluation, Execution, Federation, PerClient, Probe, Shared, Turn
from fedveil.errors import FieldError
from fedveil.evidence import OF_TWO
from fedveil.files import Ledgers
from fedveil.learning import DEFAULT, ClientData, Learner, weights_in
from fedveil.methods import ClientSide, Method
from fedveil.registry import optional
from fedveil_lab.attacks import craft
from fedveil_lab.config.experiment import Config
from fedveil_lab.runs.deal import Dealt, deal_out, split_clients
from fedveil_lab.runs.models import first_models, learner_of, with_features
from fedveil_lab.runs.poisoning import Poisoning, poisoning_of
from fedveil_lab.runs.settings import About, unusual
from fedveil_lab.runs.world import Shares, share_out


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
    sides : mapping of int to ClientSide
        Of the clients with parameters of their own, by partition.
    learner : Learner
        Trains the clients.
    clients : list of ClientData
        Those that train.
    cohort : int
        Clients of a round.
    starts : Tensor
        [k, d], the first hypotheses.
    evaluation : Evaluation
        What is measured, and when that ends the run.
    behaviours : mapping of int to Behaviour
        Of malicious clients, by partition.
    shares : Shares or None
        Who holds what in a run of a world, the adversary included.
    poisoning : Poisoning or None
        Who is malicious.
    warnings : tuple of str
        What is unusual about the clients' data, a line each.
    """

    config: Config
    dealt: Dealt
    method: Method
    sides: Mapping[int, ClientSide]
    learner: Learner
    clients: list[ClientData]
    cohort: int
    starts: Tensor
    evaluation: Evaluation
    behaviours: Mapping[int, Behaviour]
    shares: Shares | None = None
    poisoning: Poisoning | None = None
    warnings: tuple[str, ...] = ()

    def federation(
        self, ledgers: Ledgers, probes: Sequence[Probe] = (), tell: Callable[[str], None] = lambda text: None
    ) -> Federation:
        """The run's federation, on the configured engine; `tell` takes what its rounds show to be odd."""
        config, central = self.config, self.method.client.trust == "central"
        engine: Callable[..., Federation] = Federation
        if config.engine != "local":
            app = optional("fedveil.engines.flower.app", "the Flower engine needs Flower", '"fedveil[flower]"')
            engine = app.FlowerFederation
        return self.made(
            engine,
            evaluation=replace(self.evaluation, publishing=config.publish, probes=probes),
            execution=Execution(learner=self.learner, run_id=ledgers.run_id, ledgers=ledgers.open, tell=tell),
            source=config.source.build(config.seed),
            budgets=Budgets(server=self._total() if central else None, clients=self._client_filter),
        )

    def made(self, engine: Callable[..., Federation] = Federation, **given: Any) -> Federation:
        """A federation of these parties; `given` are other arguments of `Federation`, or replace these."""
        own: dict[str, Any] = {
            "model": self.learner.model,
            "clients": self.clients,
            "method": PerClient(self.method, self.sides),
            "seed": self.config.seed,
            "clients_per_round": self.cohort,
            "shared": Shared(initial=self.starts, public_data=self.dealt.public),
            "evaluation": self.evaluation,
            "behaviours": self.behaviours,
            "execution": Execution(learner=self.learner),
        }
        return engine(**{**own, **given})

    def _total(self) -> SpendFilter | None:
        """A fresh filter on the total of whoever adds the noise."""
        budget = self.config.privacy.budget
        return None if budget.epsilon is None else Filter(budget.epsilon, budget.delta)

    def _client_filter(self, partition: int) -> SpendFilter | None:
        """A fresh filter for one client; validation clients, behind those that train, are held to the total alone."""
        budget, side, own = self.config.privacy.budget, self.method.client, list[SpendFilter]()
        if partition < len(self.clients):
            own = self.sides.get(partition, side).budgets(budget.epsilon, budget.delta)
        elif side.trust != "central" and (total := self._total()) is not None:
            own.append(total)
        if budget.leakage_cap is not None:
            own.append(LeakageFilter(budget.leakage_cap))
        if budget.participations is not None:
            own.append(ParticipationFilter(budget.participations))
        return _All(own) if len(own) > 1 else next(iter(own), None)


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
    base, world = _base(config), config.world
    alike = like if like is not None and base == _base(like.config) else None
    method = config.privacy.build(config.aggregator)
    dealt = alike.dealt if alike else with_features(config, deal_out(config.data, base))
    learner = like.learner if like else learner_of(config, dealt, method, memo)
    if alike and (config.pretraining is not None or config.model.start == "public"):
        starts = alike.starts
    else:
        starts = first_models(config, dealt, method, learner, base, memo)
    shares = share_out(config.data, dealt, world, config.seed) if world else None
    clients, stopping = shares.clients if shares else dealt.clients, None
    if config.stopping is not None:
        clients, validating = split_clients(clients, config.stopping.clients, base)
        stopping = replace(config.stopping.build(), clients=validating)
    cohort = config.clients_per_round or len(clients)
    behaviours: dict[int, Behaviour] = {}
    if shares and world and world.crafted and len(starts) == 1:
        behaviours = {shares.adversaries[0]: PullBackTo(starts[0])}
    poisoning = None
    if config.malicious is not None:
        if world is not None:
            raise FieldError("malicious", "a table", "does not go together with an audit's world")
        poisoning = poisoning_of(config.malicious, config, dealt, clients)
        behaviours = poisoning.behaviours
    usual = tuple(dict.fromkeys((*DEFAULT["classes"], *OF_TWO))) if dealt.dataset.classes == 2 else None
    setup = Setup(
        config,
        dealt,
        method,
        config.privacy.client_sides(method.client),
        learner,
        clients,
        min(cohort, len(clients)) if shares else cohort,
        starts,
        Evaluation(metrics=config.metrics or usual, stopping=stopping),
        behaviours,
        shares,
        poisoning,
    )
    return setup if like else replace(setup, warnings=tuple(text for warn in WARNINGS for text in warn(setup)))


def _base(config: Config) -> int:
    """The seed of what all runs of a world share, or of all of a run."""
    return config.world.base if config.world else config.seed


def _unprotected(setup: Setup) -> Iterator[str]:
    if "privacy" not in setup.config.model_fields_set:
        yield "no [privacy] table: nothing protects the clients (fedveil advise says what is possible)"


def _planned_for_more(setup: Setup) -> Iterator[str]:
    options, rounds = setup.config.privacy.options, setup.config.rounds
    if options.get("epsilon") and (options.get("rounds") or 0) > rounds:
        fewer = f"the noise is planned for privacy.rounds = {options['rounds']}, and rounds = {rounds} would need less"
        yield f"{fewer}: plan for as many as are run"


def _public_weights(setup: Setup) -> Iterator[str]:
    known = weights_in(setup.learner.model)
    if known is not None:
        yield f"the weights in {known.file} are taken as public: no guarantee covers records they were trained on"


def _large_delta(setup: Setup) -> tuple[str, ...]:
    if setup.config.privacy.method == "vanilla":
        return ()
    everybody = setup.shares.clients if setup.shares else setup.dealt.clients
    deltas = (setup.config.privacy.budget.delta, setup.config.privacy.options.get("delta") or 0.0)
    noisy = setup.method.noisy.noisy_steps if setup.method.noisy else None
    if noisy is None:
        return delta_warning(max(deltas), len(setup.dealt.clients), "client")
    if noisy.images:
        persons = (c.examples if c.person is None else len(set(c.person.tolist())) for c in everybody)
        return delta_warning(max(deltas), sum(persons) or 1, "person")
    return delta_warning(max(deltas), sum(c.examples for c in everybody) or 1, "record")


# What is said of a run before it begins, where it is so.
WARNINGS: tuple[Callable[[Setup], Iterable[str]], ...] = (
    lambda setup: setup.dealt.warnings(setup.method, setup.config.scoring),
    lambda setup: setup.poisoning.outnumbering(setup.config, len(setup.clients)) if setup.poisoning else (),
    _unprotected,
    _planned_for_more,
    _public_weights,
    _large_delta,
    lambda setup: unusual(About(setup.config, setup.method, setup.clients, setup.dealt.dataset)),
)


def check(config: Config) -> None:
    """Refuse what cannot be run, without training anything.

    Raises
    ------
    FieldError
        As `prepare` and the federation would.
    """
    own = config.model.model_copy(update={"start": "own"})
    untrained = here(config).model_copy(update={"model": own, "pretraining": None})
    prepare(untrained).federation(Ledgers("memory"))


@dataclass(frozen=True)
class PullBackTo(Behaviour):
    """The malicious client of an audit: it pulls the model back to the first one, which `first` [d] is."""

    first: Tensor

    def model(self, turn: Turn) -> Tensor:
        return craft(turn.broadcast.models[0], self.first)


class _All:
    """Several filters at once; if one refuses, those before it stay charged: too much, never too little."""

    def __init__(self, filters: list[SpendFilter]) -> None:
        self._filters = filters
        self.terms = next((f.terms for f in filters if f.terms), None)

    def admit_spend(self, spend: Spend) -> bool:
        """Charge all."""
        return all(f.admit_spend(spend) for f in self._filters)


def here(config: Config) -> Config:
    """The configuration with the device that it has on this machine."""
    return config.model_copy(update={"device": resolve_device(config.device)})


def resolve_device(device: str) -> str:
    """``"auto"`` is a GPU where there is one.

    Raises
    ------
    FieldError
        If a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if available else "cpu"
    if device == "cuda" and not available:
        raise FieldError("device", device, "there is no GPU that PyTorch can use; accepted here: auto, cpu")
    return device
