"""Groups of arguments of `Federation`: shared values, budgets, evaluation, execution."""

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
    """Values shared by all parties before the first round, besides the model and the method.

    Parameters
    ----------
    initial : Tensor, optional
        [k, d], first hypotheses. Default: the model's own parameters.
    buffers : {"refuse", "keep"}
        Treatment of batch-norm statistics and counters, which are never shared. "refuse": a model with them is refused
        (`fedveil.learning.mend` repairs it). "keep": each client keeps its own from round to round, in
        ``clients[i].buffers``, and is measured with them. Before its first training it has the model's.
    public_data : ClientData or tuple, optional
        Public examples, on which FedRE's server scores models and FLTrust's server trains.
    region : tuple of int or Tensor, optional
        Privacy-sensitive pixels, for FedRE.

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
    """Privacy budgets of the server and the clients, and the clients' policy.

    Parameters
    ----------
    server : SpendFilter, optional
        Budget of the server; the run ends before it is exceeded.
    clients : callable, optional
        Function ``partition -> SpendFilter``, which makes a fresh filter for each client. Validation clients are
        numbered after those that train.
    policy : Policy or path, optional
        Policy of all clients' owners (of validation clients, too), or its TOML file.

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
    """Metrics of a round, their publication, and early stopping.

    Parameters
    ----------
    metrics : sequence of str, optional
        Metrics on held-out examples, names in `fedveil.learning.METRICS`. Default: the task's usual ones.
    probes : sequence of Probe, optional
        Probes that see each finished round; their figures are in its record.
    publishing : Publishing, optional
        Publication of the aggregated metrics to clients after each round. Default: none.
    stopping : EarlyStopping, optional
        Early stopping by the loss of clients that never train. Not under Flower.

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
    """Method in which some clients have their own parameters (epsilon, clip, ...).

    Parameters
    ----------
    method
        Method of all other clients, in any form that `Federation` accepts.
    sides : mapping of int to ClientSide
        Client sides by partition, of the same class, trust and needs as the method's client side.

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
    """How a federation is computed: trainer, threads, keys, and place of the ledgers.

    Parameters
    ----------
    trainer : {"auto", "batched", "sequential"}
        Kind of trainer; see `fedveil.learning.make_trainer`.
    workers : int
        Number of threads that train clients.
    learner : Learner, optional
        Learner in place of one built from the federation's model, local training and region, and from the two options
        above.
    run_id : str
        Name of the run in the ledgers.
    single_examples : bool
        Whether a silo may hold a single example at record level; this makes attacks strongest, for audits.
    tell : callable, optional
        Called with the text of each warning. Default: ``warnings.warn``.
    keys : sequence of SiteKey, optional
        Keys for secure sums, one for each client. Default: fresh keys with a secure source; otherwise keys from the
        seed, which anybody can compute.
    ledgers : callable, optional
        Function ``party -> (Ledger, LineStore)``. Default: ledgers in memory.
    courier : callable, optional
        Function ``Federation -> Courier`` that makes the carrier of messages. Default: clients in this process.

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
