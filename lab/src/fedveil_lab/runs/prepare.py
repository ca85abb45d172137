"""Build a federation from a configuration: data, parties, model, budgets, engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import (
    Filter,
    LeakageFilter,
    ParticipationFilter,
    Spend,
    SpendFilter,
    delta_warning,
)
from fedveil.engines import (
    Behaviour,
    Budgets,
    EarlyStopping,
    Evaluation,
    Execution,
    Federation,
    PerClient,
    Probe,
    Shared,
)
from fedveil.errors import FieldError
from fedveil.evidence import OF_TWO
from fedveil.files import Ledgers
from fedveil.learning import DEFAULT, ClientData, Learner, weights_in
from fedveil.methods import ClientSide, Method
from fedveil.registry import optional
from fedveil_lab.config.experiment import Config
from fedveil_lab.runs.deal import Dealt, deal_out, split_clients
from fedveil_lab.runs.marks import protects_regions, with_marks
from fedveil_lab.runs.models import first_models, learner_of, with_features
from fedveil_lab.runs.poisoning import Poisoning, poisoning_of
from fedveil_lab.runs.settings import About, unusual


@dataclass(frozen=True)
class Setup:
    """Parts of a run's federation, checked before anything is written.

    Attributes
    ----------
    config : Config
        The run's configuration.
    dealt : Dealt
        Examples, divided among clients and the server.
    method : Method
        Both sides of the method.
    sides : mapping of int to ClientSide
        Client sides of clients with parameters of their own, by partition.
    learner : Learner
        Learner that trains the clients.
    clients : list of ClientData
        Clients that train.
    cohort : int
        Number of clients in a round.
    starts : Tensor
        First hypotheses [k, d].
    evaluation : Evaluation
        What is measured, and when early stopping ends the run.
    behaviours : mapping of int to Behaviour
        Behaviours of malicious clients, by partition.
    poisoning : Poisoning or None
        Malicious clients, and how success is measured.
    warnings : tuple of str
        Warnings about the clients' data, one line each.
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
    poisoning: Poisoning | None = None
    warnings: tuple[str, ...] = ()

    @property
    def everybody(self) -> Sequence[ClientData]:
        """All clients that train or validate."""
        return self.dealt.clients

    def federation(
        self,
        ledgers: Ledgers,
        probes: Sequence[Probe] = (),
        tell: Callable[[str], None] = lambda text: None,
    ) -> Federation:
        """Make the run's federation on the configured engine; `tell` receives warnings during rounds."""
        config, central = self.config, self.method.client.trust == "central"
        engine: Callable[..., Federation] = Federation
        if config.engine != "local":
            in_process = optional(
                "fedveil.engines.flower.in_process",
                "the Flower engine needs Flower",
                '"fedveil[flower]"',
            )
            engine = in_process.FlowerFederation
        return self.made(
            engine,
            evaluation=replace(self.evaluation, publishing=config.publish, probes=probes),
            execution=Execution(
                learner=self.learner, run_id=ledgers.run_id, ledgers=ledgers.open, tell=tell
            ),
            source=config.source.build(config.seed),
            budgets=Budgets(server=self._total() if central else None, clients=self._client_filter),
        )

    def made(self, engine: Callable[..., Federation] = Federation, **given: Any) -> Federation:
        """Make a federation of these parties; `given` adds or replaces arguments of `Federation`."""
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
        """Make a new budget filter for the party that adds the noise."""
        budget = self.config.privacy.budget
        if budget.epsilon is None:
            return None
        return Filter(budget.epsilon, budget.delta)

    def _client_filter(self, partition: int) -> SpendFilter | None:
        """Make a new budget filter for one client; validation clients are numbered last and have the total only."""
        budget, side = self.config.privacy.budget, self.method.client
        filters: list[SpendFilter] = []
        if partition < len(self.clients):
            filters = self.sides.get(partition, side).budgets(budget.epsilon, budget.delta)
        elif side.trust != "central":
            total = self._total()
            if total is None:
                filters = []
            else:
                filters = [total]
        if budget.leakage_cap is not None:
            filters.append(LeakageFilter(budget.leakage_cap))
        if budget.participations is not None:
            filters.append(ParticipationFilter(budget.participations))
        if not filters:
            return None
        if len(filters) == 1:
            return filters[0]
        return _All(filters)


@dataclass(frozen=True, eq=False)
class Common:
    """Parts that runs share if they differ only in seed and participating clients.

    Attributes
    ----------
    dealt : Dealt
        Examples, divided among clients and the server.
    method : Method
        Both sides of the method.
    learner : Learner
        Learner that trains the clients.
    starts : Tensor
        First hypotheses [k, d].
    """

    dealt: Dealt
    method: Method
    learner: Learner
    starts: Tensor


def prepare(config: Config, memo: Path | None = None) -> Setup:
    """Load and divide the data, build the model, and return the setup of a run.

    Parameters
    ----------
    config : Config
        Configuration of one run.
    memo : Path, optional
        Folder that caches first rounds for runs that begin alike; see `Remembering`.

    Raises
    ------
    FieldError
        If a key does not fit; the message names it.
    """
    method = config.privacy.build(config.aggregator)
    dealt = with_marks(
        config, with_features(config, deal_out(config.data, config.data_seed)), method
    )
    learner = learner_of(config, dealt, method, memo)
    starts = first_models(config, dealt, method, learner, config.data_seed, memo)
    setup = assemble(config, Common(dealt, method, learner, starts))
    warnings: list[str] = []
    for warn in WARNINGS:
        warnings += warn(setup)
    return replace(setup, warnings=tuple(warnings))


@singledispatch
def assemble(config: Config, common: Common) -> Setup:
    """Make the setup of a run from common parts: clients, cohort size, malicious clients.

    Configuration classes with other clients than those of ``[data]`` register their own function.

    Raises
    ------
    FieldError
        If a key does not fit; the message names it.
    """
    dealt, clients, stopping = common.dealt, common.dealt.clients, None
    if config.stopping is not None:
        clients, validating = split_clients(clients, config.stopping.clients, config.data_seed)
        stopping = replace(config.stopping.build(), clients=validating)
    poisoning = None
    if config.malicious is not None:
        poisoning = poisoning_of(config.malicious, config, dealt, clients)
    return Setup(
        config,
        dealt,
        common.method,
        config.privacy.client_sides(common.method.client),
        common.learner,
        clients,
        config.clients_per_round or len(clients),
        common.starts,
        evaluation_of(config, dealt, stopping),
        {} if poisoning is None else poisoning.behaviours,
        poisoning,
    )


def evaluation_of(
    config: Config, dealt: Dealt, stopping: EarlyStopping | None = None
) -> Evaluation:
    """Decide what a run measures: the configured metrics, or default ones, with more for two classes."""
    metrics: tuple[str, ...] | None = config.metrics or None
    if metrics is None and dealt.dataset.classes == 2:
        metrics = tuple(dict.fromkeys((*DEFAULT["classes"], *OF_TWO)))
    return Evaluation(metrics=metrics, stopping=stopping)


def _uneven_data(setup: Setup) -> list[str]:
    return setup.dealt.warnings(setup.method, setup.config.scoring)


def _too_many_malicious(setup: Setup) -> list[str]:
    if setup.poisoning is None:
        return []
    return setup.poisoning.outnumbering(setup.config, len(setup.clients))


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
    """Return a warning if delta is large for the number of protected units."""
    privacy = setup.config.privacy
    if privacy.method == "vanilla":
        return ()
    delta = max(privacy.budget.delta, privacy.options.get("delta") or 0.0)
    if setup.method.noisy is None:
        return delta_warning(delta, len(setup.dealt.clients), "client")
    persons = bool(setup.method.noisy.noisy_steps.images)
    protected = 0
    for client in setup.everybody:
        if persons and client.person is not None:
            protected += len(set(client.person.tolist()))
        else:
            protected += client.examples
    return delta_warning(delta, protected or 1, "person" if persons else "record")


def _beside_regions(setup: Setup) -> Iterator[str]:
    """Say what is marked, and what has no protection."""
    data = setup.config.data
    if data.blanked is not None:
        yield (
            "data.blanked: nothing of what is marked is read. By this nothing else is protected: no label, no other "
            "coordinate, nobody's presence"
        )
    if protects_regions(setup.method):
        filled = [one.masks for one in setup.everybody if one.masks is not None and one.examples]
        share = float(torch.cat([masks.flatten() for masks in filled]).double().mean())
        yield (
            f"marked are {share:.0%} of the inputs. Everything else has no protection: labels, the other inputs, which "
            "inputs are marked, who is there; a reader of the models may reconstruct them"
        )


def _unusual_settings(setup: Setup) -> Iterable[str]:
    return unusual(About(setup.config, setup.method, setup.clients, setup.dealt.dataset))


# What is said of a run before it begins, where it is so.
WARNINGS: tuple[Callable[[Setup], Iterable[str]], ...] = (
    _uneven_data,
    _too_many_malicious,
    _unprotected,
    _planned_for_more,
    _public_weights,
    _large_delta,
    _beside_regions,
    _unusual_settings,
)


def check(config: Config) -> None:
    """Refuse a configuration that cannot be run, without training.

    Raises
    ------
    FieldError
        As `prepare` and the federation would.
    """
    own = config.model.model_copy(update={"start": "own"})
    untrained = here(config).model_copy(update={"model": own, "pretraining": None})
    prepare(untrained).federation(Ledgers("memory"))


class _All:
    """Several budget filters as one; if one refuses, those before it stay charged, which is the safe side."""

    def __init__(self, filters: list[SpendFilter]) -> None:
        self._filters = filters
        self.terms = next((f.terms for f in filters if f.terms), None)

    def admit_spend(self, spend: Spend) -> bool:
        """Charge every filter."""
        return all(f.admit_spend(spend) for f in self._filters)


def here(config: Config) -> Config:
    """Return the configuration with the device resolved for this machine."""
    return config.model_copy(update={"device": resolve_device(config.device)})


def resolve_device(device: str) -> str:
    """Return the device; ``"auto"`` means a GPU if there is one.

    Raises
    ------
    FieldError
        If a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if device == "auto":
        if available:
            return "cuda"
        return "cpu"
    if device == "cuda" and not available:
        raise FieldError(
            "device", device, "there is no GPU that PyTorch can use; accepted here: auto, cpu"
        )
    return device
