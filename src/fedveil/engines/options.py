"""The grouped arguments of a federation: what its parties share, what may be spent, what is measured, how it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedveil.accounting import Ledger, Policy, SpendFilter
from fedveil.checks import Parameters, Workers
from fedveil.engines.assembly import AnyMethod
from fedveil.engines.party import LineStore
from fedveil.engines.rounds import Courier
from fedveil.engines.seams import Probe
from fedveil.engines.stopping import EarlyStopping
from fedveil.errors import require_choice
from fedveil.layout import Buffers
from fedveil.learning import ClientData
from fedveil.learning.learner import Learner
from fedveil.learning.trainers import TRAINERS
from fedveil.methods import ClientSide, Publishing
from fedveil.secure import SiteKey


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared(Parameters):
    """Things that all parties have in common before the first round, beside the model and the method.

    Parameters
    ----------
    initial : Tensor, optional
        [k, d], the first hypotheses. Default: the model's own parameters.
    buffers : {"refuse", "keep"}
        What becomes of batch-norm statistics and counters, which are never shared: refuse the model
        (`fedveil.learning.mend` repairs it), or keep each client's with that client, from round to round, in its
        ``clients[i].buffers``. Each is then measured with its own; one that has not trained yet has the model's.
    public_data : ClientData or tuple, optional
        Public examples on which FedRE's server scores models, and FLTrust's trains.
    region : tuple of int or Tensor, optional
        The privacy-sensitive pixels, for FedRE.

    Examples
    --------
    >>> start = fv.Layout.from_module(model).read(model)[None]
    >>> fv.Federation(model=model, clients=clients, shared=fv.Shared(initial=start)).run(
    ...     1
    ... ).models.shape
    torch.Size([1, 10])
    """

    initial: Tensor | None = None
    buffers: Buffers = "refuse"
    public_data: ClientData | Sequence[Any] | None = None
    region: Any = None


@dataclass(frozen=True, kw_only=True)
class Budgets(Parameters):
    """Limits on what parties may spend.

    Parameters
    ----------
    server : SpendFilter, optional
        Ends the run before the server exceeds it.
    clients : callable, optional
        ``partition -> SpendFilter``, a fresh one a client; validation clients are numbered behind those that train.
    policy : Policy or path, optional
        What every client's owner allows, of validation clients too; or the TOML file that says so.

    Examples
    --------
    >>> once = fv.Budgets(server=fv.Filter(epsilon=1.0, delta=1e-5))
    >>> noise = fv.GlobalDP(noise_multiplier=6.0, clip=1.0)
    >>> run = fv.Federation(model=model, clients=clients, method=noise, budgets=once).run(9)
    >>> len(run.rounds)
    2
    >>> run.guarantee.epsilon(1e-5) <= 1
    True
    """

    server: SpendFilter | None = None
    clients: Callable[[int], SpendFilter | None] | None = None
    policy: Policy | str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation(Parameters):
    """Measurements of a round, who is shown them, and when they end the run.

    Parameters
    ----------
    metrics : sequence of str, optional
        What is measured on held-out examples, of `fedveil.learning.METRICS`. Default: the task's usual figures.
    probes : sequence of Probe, optional
        Shown each finished round; their figures stand in its record.
    publishing : Publishing, optional
        What clients see of the aggregated metrics after each round. Default: nothing.
    stopping : EarlyStopping, optional
        Ends the run when the loss of clients that never train no longer falls. Not under Flower.

    Examples
    --------
    >>> few = fv.Evaluation(metrics=["accuracy"])
    >>> held = [(*client, *client) for client in clients]  # in earnest, rows on which nobody trains
    >>> run = fv.Federation(model=model, clients=held, evaluation=few).run(1)
    >>> sorted(run.metrics)
    ['accuracy', 'examples']
    """

    metrics: Sequence[str] | None = None
    probes: Sequence[Probe] = ()
    publishing: Publishing | None = None
    stopping: EarlyStopping | None = None


@dataclass(frozen=True)
class PerClient:
    """Method with parameters of their own (epsilon, clip, ...) for some clients.

    Parameters
    ----------
    method
        What `Federation` takes as one: that of all others.
    sides : mapping of int to ClientSide
        By partition. Of the same class as the method's client side, with the same trust and needs.

    Examples
    --------
    >>> strict = fv.PerClient("sga-ldp", {0: fv.SGALDP(epsilon_max=1.5)})
    >>> fv.Federation(model=model, clients=clients, method=strict).run(1).guarantee.status
    'heuristic'
    """

    method: AnyMethod | None
    sides: Mapping[int, ClientSide] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Execution(Parameters):
    """Options of how a federation is carried out: trainer, threads, where ledgers are kept.

    Parameters
    ----------
    trainer : {"auto", "batched", "sequential"}
        How clients are trained; see `fedveil.learning.make_trainer`.
    workers : int
        Threads that train clients.
    learner : Learner, optional
        Trains instead of one that is built from the federation's model, local training and region, and the two above.
    run_id : str
        Names the ledgers.
    single_examples : bool
        Whether a silo of record-level privacy may hold one example, as where an attack is to be the strongest.
    tell : callable, optional
        Takes each warning. Default: ``warnings.warn``.
    keys : sequence of SiteKey, optional
        Of secure sums, one a client. Default: keys that follow the seed, which anybody can compute, or with a secure
        source fresh ones.
    ledgers : callable, optional
        ``party -> (Ledger, LineStore)``; by default ledgers live in memory.
    courier : callable, optional
        ``Federation -> Courier``: who moves the messages. Default: nobody, since all clients are in this process.

    Examples
    --------
    >>> run = fv.Federation(
    ...     model=model, clients=clients, execution=fv.Execution(trainer="sequential")
    ... ).run(1)
    >>> run.models.shape
    torch.Size([1, 10])
    """

    trainer: str = "auto"
    workers: Workers = 1
    learner: Learner | None = None
    run_id: str = "memory"
    single_examples: bool = False
    tell: Callable[[str], None] | None = None
    keys: Sequence[SiteKey] = ()
    ledgers: Callable[[str], tuple[Ledger, LineStore]] | None = None
    courier: Callable[[Any], Courier] | None = None

    def __post_init__(self) -> None:
        """Check the trainer and the workers."""
        super().__post_init__()
        require_choice("trainer", self.trainer, TRAINERS)
