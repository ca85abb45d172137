"""One client of a deployed run: what its node settled, and its party with the ledger, opened for one message."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fedveil.accounting import LeakageFilter, Ledger, ParticipationFilter, Policy, SpendFilter
from fedveil.engines.client import ClientParty
from fedveil.engines.lifetime import LifetimeLedger
from fedveil.engines.party import LineStore
from fedveil.errors import FieldError, require_rounds
from fedveil.layout import Layout
from fedveil.learning import PrivateTrainer
from fedveil.mechanisms import Source
from fedveil.methods import Method, PublicFacts, Refusal, Releases
from fedveil.secure import Site

RUN = "run"  # a ledger of the run alone
CAPS: dict[str, Callable[[Any], SpendFilter]] = {"participations": ParticipationFilter, "leakage_cap": LeakageFilter}


@dataclass(frozen=True)
class Settings:
    """What protects one client.

    Attributes
    ----------
    budget : SpendFilter, optional
        Fresh; it is charged with the ledger.
    ledger : str
        Folder of the lifetime ledger, or `RUN`.
    head : str, optional
        Folder of the ledger's head and its key.
    dataset : str
        Names that ledger.
    rounds : int, optional
        Rounds the client agreed to.
    site : Site, optional
        Of secure sums.
    """

    partition: int
    method: Method
    source: Source
    budget: SpendFilter | None
    policy: Policy | None
    ledger: str
    head: str | None
    dataset: str
    rounds: int | None
    site: Site | None = None


def settle(
    partition: int,
    method: Method,
    source: Source,
    *,
    budget: SpendFilter | None = None,
    caps: Mapping[str, Any],
    policy: Policy | None,
    ledger: str | None,
    head: str | None,
    dataset: str,
    rounds: int | None,
    where: str,
    site: Site | None = None,
) -> Settings:
    """Settle what protects a client, with a budget or one of the `caps`.

    Raises
    ------
    FieldError
        If it has several budgets, noise that cannot be repeated and no ledger, or a lifetime ledger without a head;
        `where` says where to name them.
    """
    if policy is not None and policy.node is not None:
        accepted = "binds where `fedveil node` runs the app, and nowhere else: start the node with it, or leave it out"
        raise FieldError("policy.node", "a table", accepted)
    if len(caps) + (budget is not None) > 1:
        accepted = "give one of: a budget in code, privacy.participations, privacy.leakage-cap"
        raise FieldError("budget", list(caps), accepted)
    for name, most in caps.items():
        budget = CAPS[name](most)
    if budget is None and policy is None and method.noisy is not None:
        budget = method.noisy.budget()  # what is planned is all that leaves, whoever begins the runs
    recorded = method.client.trust != "central" or budget is not None or policy is not None
    if ledger is None and source.deployable and recorded:
        accepted = f"name the folder of the node's lifetime ledger, which outlives this run: {where}"
        raise FieldError("ledger", None, accepted)
    if ledger not in (None, RUN) and head is None:
        accepted = f"name the folder of the ledger's head, without which an older copy would pass for it: {where}"
        raise FieldError("head", None, accepted)
    return Settings(
        partition=partition,
        method=method,
        source=source,
        budget=budget,
        policy=policy,
        ledger=RUN if ledger is None else ledger,
        head=head,
        dataset=dataset,
        rounds=None if rounds is None else require_rounds("rounds", rounds),
        site=site,
    )


class Remembers(Protocol):
    """What a client remembers from one message of a run to the next."""

    @property
    def last(self) -> str:
        """The last ledger line kept, or an empty one."""

    def ledger(self, run: str, partition: int) -> Ledger:
        """The ledger of this run alone, as it was left."""

    def store(self, line: str) -> None:
        """Keep a ledger line."""

    def store_last(self, line: str) -> None:
        """Keep the last line of a ledger that lies elsewhere."""

    def load(self, fresh: Any) -> Any:
        """The method's state, or `fresh`."""

    def kept(self) -> tuple[int, Releases]:
        """What left last, and in which round."""


@contextmanager
def opened_ledger(
    memory: Remembers,
    settings: Settings,
    run: str,
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None,
) -> Iterator[tuple[Ledger, LineStore]]:
    """The client's ledger and what makes a line of it durable; no other process can use it meanwhile."""
    with ExitStack() as stack:
        if ledgers is not None:
            yield ledgers(str(settings.partition))
        elif settings.ledger == RUN:
            yield memory.ledger(run, settings.partition), memory.store
        else:
            lifetime = stack.enter_context(LifetimeLedger(settings.ledger, settings.dataset, run, head=settings.head))
            lifetime.require(memory.last)
            yield lifetime.ledger, _both(lifetime.store, memory.store_last)


@contextmanager
def opened(
    memory: Remembers,
    settings: Settings,
    layout: Layout,
    run: str,
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None,
    trainer: PrivateTrainer | None = None,
) -> Iterator[ClientParty]:
    """The client with its ledger, as `opened_ledger` has it."""
    with opened_ledger(memory, settings, run, ledgers) as (ledger, store):
        method = settings.method
        yield ClientParty(
            method,
            layout,
            ledger,
            settings.source,
            budget=settings.budget,
            policy=settings.policy,
            state=memory.load(method.client.init()),
            kept=memory.kept(),
            store=store,
            trainer=trainer,
            site=settings.site,
        )


def disagreement(public: PublicFacts, rounds: int | None) -> Refusal | None:
    """Why a client that agreed to so many rounds takes no part, if it does not."""
    if rounds is not None and public.rounds != rounds:
        return Refusal(f"the client agreed to {rounds} rounds, the server plans {public.rounds}")
    return None


def _both(first: LineStore, second: LineStore) -> LineStore:
    def store(line: str) -> None:
        first(line)
        second(line)

    return store
