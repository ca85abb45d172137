"""Client of a deployed run: its settings, its memory between messages, and its party with the opened ledger."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fedveil.accounting import LeakageFilter, Ledger, ParticipationFilter, Policy, SpendFilter
from fedveil.checks import Parameters, Rounds
from fedveil.engines.client import ClientParty
from fedveil.engines.lifetime import LifetimeLedger, require_head
from fedveil.engines.party import LineStore
from fedveil.engines.warning import Warnings
from fedveil.errors import FieldError, LedgerError
from fedveil.layout import Layout
from fedveil.learning import PrivateTrainer
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, ClientFacts, Method, PublicFacts, Refusal, Releases
from fedveil.reading import json_of
from fedveil.secure import Site

RUN = "run"  # a ledger for this run only
CAPS: dict[str, Callable[[Any], SpendFilter]] = {
    "participations": ParticipationFilter,
    "leakage_cap": LeakageFilter,
}


@dataclass(frozen=True)
class Settings(Parameters):
    """Settings of one client's protection: method, policy, ledger, budget and keys.

    Attributes
    ----------
    ledger : str, optional
        Folder of the lifetime ledger, or `RUN` (the default) for a new ledger in each run.
    head : str, optional
        Folder of the ledger's head and of its key.
    dataset : str
        Name of the data set, which names the ledger.
    rounds : int, optional
        Number of rounds to which the client agreed.
    budget : SpendFilter, optional
        Fresh filter; it is charged with the ledger's entries.
    site : Site, optional
        Key and terms of the client in secure sums.
    ledgers : callable, optional
        Function ``party -> (Ledger, LineStore)``, for ledgers that are stored elsewhere.
    """

    partition: int
    method: Method
    source: Source
    policy: Policy | None
    ledger: str | None
    head: str | None
    dataset: str
    rounds: Rounds | None
    budget: SpendFilter | None = None
    site: Site | None = None
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None


def with_budget(
    given: Settings, caps: Mapping[str, Any], where: str, trains: bool = True
) -> Settings:
    """Return the settings with a budget: the given one, one of the `caps`, or the method's if the client trains.

    `caps` are the configured limits by name; a limit that is not set is None.

    Raises
    ------
    FieldError
        If there are several budgets, secure noise without a ledger, or a lifetime ledger without a head. `where` is the
        text that says where to name them.
    """
    method, policy, budget = given.method, given.policy, given.budget
    if policy is not None and policy.node is not None:
        accepted = "binds where `fedveil node` runs the app, and nowhere else: start the node with it, or leave it out"
        raise FieldError("policy.node", "a table", accepted)
    given_caps = [name for name, most in caps.items() if most is not None]
    if len(given_caps) + (budget is not None) > 1:
        accepted = "give one of: a budget in code, privacy.participations, privacy.leakage-cap"
        raise FieldError("budget", given_caps, accepted)
    for name in given_caps:
        budget = CAPS[name](caps[name])
    if budget is None and policy is None and method.noisy is not None and trains:
        budget = method.noisy.budget()  # only the plan may leave, whoever begins the runs
    recorded = method.client.trust != "central" or budget is not None or policy is not None
    if given.ledger is None and given.source.deployable and recorded:
        accepted = f"name the folder of the node's ledger, which is kept for all its runs: {where}"
        raise FieldError("ledger", None, accepted)
    if given.ledger not in (None, RUN):
        require_head(given.head, where)
    return replace(given, budget=budget)


class ClientMemory(ABC):
    """Memory of a client from one message of a run to the next.

    Attributes
    ----------
    lines : list of str
        All lines of the ledger, if it belongs to this run; only the last line, if the ledger is kept elsewhere.
    """

    lines: list[str]

    def ledger(self, run: str, partition: int) -> Ledger:
        """Return the ledger of this run, as it was saved."""
        return Ledger.parse(run, str(partition), self.lines)

    def store(self, line: str) -> None:
        """Save a line of the ledger."""
        self.lines = [*self.lines, line]

    @abstractmethod
    def load(self, fresh: Any) -> Any:
        """Return the saved state of the method, of the same kind as `fresh`; `fresh` itself if none was saved."""

    @abstractmethod
    def kept(self) -> tuple[int, Releases]:
        """Return the last answered round (0: none) and its releases."""

    @abstractmethod
    def save(self, state: Any, kept: tuple[int, Releases] = (0, ())) -> None:
        """Save the method's state and the last round with its releases."""


def require_known(ledger: Ledger, lines: Sequence[str]) -> None:
    """Refuse a ledger that lacks this run's last line, as past costs would be forgotten.

    Raises
    ------
    LedgerError
        If the ledger lacks the line.
    """
    if not lines:
        return
    last = json_of(lines[-1])
    if "budget" in last:
        lost = ledger.budget is None
    else:
        lost = ledger.find((last["round"], last["purpose"])) is None
    if lost:
        raise LedgerError(
            f"the ledger of {ledger.party!r} lacks a line that this run recorded: restore it"
        )


@contextmanager
def opened_ledger(
    memory: ClientMemory, settings: Settings, run: str
) -> Iterator[tuple[Ledger, LineStore]]:
    """Open a client's ledger and its line store for this context; other processes cannot use the ledger meanwhile."""
    if settings.ledgers is not None:
        ledger, keep = settings.ledgers(str(settings.partition))
        require_known(ledger, memory.lines)

        def kept(line: str) -> None:
            keep(line)
            memory.lines = [line]

        yield ledger, kept
    elif settings.ledger is None or settings.ledger == RUN:
        yield memory.ledger(run, settings.partition), memory.store
    else:
        with LifetimeLedger(settings.ledger, settings.dataset, run, head=settings.head) as lifetime:

            def store(line: str) -> None:
                lifetime.store(line)
                memory.lines = [line]

            lifetime.require(*memory.lines[-1:])
            yield lifetime.ledger, store


@contextmanager
def opened(
    memory: ClientMemory,
    settings: Settings,
    layout: Layout,
    run: str,
    trainer: PrivateTrainer | None = None,
) -> Iterator[ClientParty]:
    """Open a client's ledger and make its party, for this context."""
    with opened_ledger(memory, settings, run) as (ledger, store):
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
    """Refuse a round of a run whose planned number of rounds is not the client's; None if they agree."""
    if rounds is not None and public.rounds != rounds:
        return Refusal(f"the client agreed to {rounds} rounds, the server plans {public.rounds}")
    return None


def answer(
    party: ClientParty,
    memory: ClientMemory,
    broadcast: Broadcast,
    admitted: Releases | None,
    train: Callable[[], tuple[Releases, ClientFacts]],
    warnings: Warnings | None = None,
) -> Releases:
    """Answer a round for an admitted client: train, protect, record the cost, save and return the releases.

    Parameters
    ----------
    party, memory
        Party and memory of the client.
    broadcast : Broadcast
        Broadcast of the admitted round.
    admitted : Releases, optional
        Releases that were sent in this round before; they are sent again without training.
    train : callable
        Function that returns the trained releases and their facts. Under local trust an error in it becomes a zero
        update.
    warnings : Warnings, optional
        Receiver of warnings about the training.
    """
    released = admitted
    if released is None:
        try:
            releases, facts = train()
        except Exception as error:
            released = party.fail(broadcast, error)
        else:
            released = party.release(releases, facts)
            if warnings is not None:
                warnings.on_node(facts, releases, party.ledger.entries[-1].spend.scale)
    memory.save(party.state, party.kept)
    return released
