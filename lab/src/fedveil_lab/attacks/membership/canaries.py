"""Canaries: crafted clients and records that a coin puts in or out, and the search for their traces in releases.

Sources: crafted clients, Andrew et al. 2023, "One-shot empirical privacy estimation for federated learning" (arXiv
2302.03098), here with orthogonal directions and rigorous bounds (`one_run`); crafted records, Nasr et al. 2023 (arXiv
2302.07956): random images under random labels.

    central   client j sends C e_j, or nothing (zero-out), or -C e_j (replace-one); score: the model's change along e_j
    local     client j sends C u or -C u;        score: sum of its releases along u, each over the variance of its noise
    record    a crafted record is in a client's data or not;                        score: minus the final model's loss

With `contrast` canaries act in odd rounds only, and the scores of even rounds are subtracted. Fresh noise then adds up,
and noise that is used again cancels.

The audited federation has as many clients as canaries, since canary clients are clients: with a hundred canaries beside
four hospitals it would be another federation.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedveil.accounting import (
    PLD,
    REGIONS,
    ZCDP,
    Guarantee,
    Ledger,
    MetricDP,
    Relation,
    Release,
    total,
)
from fedveil.engines import ClientParty, Federation, RoundAnswers, ServerParty, Shared
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.mechanisms import ReproducibleSource, Source, keyed_seed
from fedveil.methods import (
    Broadcast,
    ClientFacts,
    ClientSide,
    Method,
    Plain,
    PublicFacts,
    RecordDP,
    Refusal,
    Releases,
    ServerSide,
    TrustedServer,
)
from fedveil_lab.attacks.bounds import OneRun, one_run
from fedveil_lab.attacks.bounds import bound as independent_bound
from fedveil_lab.attacks.verdict import Verdict


@dataclass(frozen=True, eq=False)
class CanaryRun:
    """Scores and coins of the canaries of one run.

    Attributes
    ----------
    scores, inside : Tensor
        Scores, float64 [m], higher means in; coins, bool [m].
    guarantee : Guarantee
        Promise of the audited party's ledger for the whole run. Under local trust: of the client with the largest cost.
    bound : OneRun
        Bounds that the run proves.
    """

    scores: Tensor
    inside: Tensor
    guarantee: Guarantee
    bound: OneRun

    @classmethod
    def of(cls, scores: Tensor, inside: Tensor, guarantee: Guarantee, delta: float) -> Self:
        """Make a run with the bound that its scores prove, on epsilon at `delta`."""
        return cls(scores, inside, guarantee, one_run(scores[inside], scores[~inside], delta=delta))


def coins(m: int, seed: int) -> Tensor:
    """Toss m fair and independent coins, [m] bool."""
    draw = torch.Generator().manual_seed(keyed_seed("canary coins", seed))
    return torch.rand(m, generator=draw) < 0.5


def server_canaries(
    side: ServerSide,
    m: int,
    length: float,
    *,
    relation: Relation = "zero-out",
    rounds: int = 1,
    contrast: bool = False,
    delta: float = 0.0,
    seed: int = 0,
    source: Source | None = None,
) -> CanaryRun:
    """Run a server method with `m` canary clients and no others, and score the canaries.

    Parameters
    ----------
    side : ServerSide
        Server side of a central method.
    m : int
        Number of canaries, and of model coordinates.
    length : float
        Norm of a canary's update; above the clip C it tests whether updates are clipped.
    relation : {"zero-out", "replace-one"}
        "zero-out": a canary that is out sends nothing. "replace-one": it sends the opposite update.
    rounds : int
        Number of rounds; a canary is in, or out, in all of them.
    contrast : bool
        Whether canaries act in odd rounds only, and scores are odd minus even rounds.
    delta : float
        Delta of the bound on epsilon.
    seed : int
        Seed of the coins, and without a `source` of the noise.
    source : Source, optional
        Source of the noise.
    """
    require_choice("relation", relation, ("zero-out", "replace-one"))
    require_count("m", m, 10)
    inside = coins(m, seed)
    method, layout = (
        Method("canaries", TrustedServer(), side),
        Layout.from_shapes({"a.weight": (m,)}, torch.float64),
    )
    server = ServerParty(
        method, layout, Ledger("canaries", "server"), source or ReproducibleSource(seed)
    )
    scores = torch.zeros(m, dtype=torch.float64)
    broadcast = server.open(torch.zeros(1, m, dtype=torch.float64), 1, rounds, m)
    updates = length * torch.diag(
        inside.double() * 2 - 1 if relation == "replace-one" else inside.double()
    )
    for round_ in range(1, rounds + 1):
        weight, before = _weight(round_, contrast), broadcast.models[0]
        replies: dict[int, Releases] = {
            j: (Release("model", before + (weight > 0) * update),)
            for j, update in enumerate(updates)
        }
        broadcast, _ = server.combine(broadcast, RoundAnswers(replies))
        scores += weight * (broadcast.models[0] - before)
    return CanaryRun.of(
        scores, inside, total(e.spend.guarantee for e in server.ledger.entries), delta
    )


def client_canaries(
    side: ClientSide,
    m: int,
    dimension: int,
    length: float,
    *,
    rounds: int = 1,
    contrast: bool = False,
    follow: int = 0,
    delta: float = 0.0,
    seed: int = 0,
    source: Source | None = None,
    layer_scores: tuple[float, ...] | None = None,
) -> CanaryRun:
    """Run a local method with `m` canary clients, each sending one of two opposite updates (replace-one).

    Parameters
    ----------
    side : ClientSide
        Client side of a local method.
    m, dimension : int
        Number of canaries, and of model coordinates.
    length : float
        Norm of an update, whose coordinates are all of equal size.
    follow : int
        Number of rounds before the audited ones. In them all canaries send the same update, and the server returns each
        its own release. This minimises noise that depends on the similarity with the last global update.
    layer_scores : tuple of float, optional
        Public scores, one per layer of about equal size, for a method that splits its budget by them. Default: one
        layer.
    rounds, contrast, delta, seed, source
        See `server_canaries`.

    Raises
    ------
    FieldError
        If a client declines to take part.
    """
    require_count("m", m, 10)
    inside, along = coins(m, seed), torch.full((dimension,), dimension**-0.5, dtype=torch.float64)
    sizes = [len(part) for part in along.tensor_split(len(layer_scores or "a"))]
    shapes = {f"{chr(ord('a') + k)}.weight": (size,) for k, size in enumerate(sizes)}
    layout = Layout.from_shapes(shapes, torch.float64)
    method = Method("canaries", side, Plain())
    noise = source or ReproducibleSource(seed)
    scores, promises = torch.zeros(m, dtype=torch.float64), []
    for j in range(m):
        client = ClientParty(method, layout, Ledger("canaries", str(j)), noise)
        sent, start = (
            along * (length if inside[j] else -length),
            torch.zeros(1, dimension, dtype=torch.float64),
        )
        for round_ in range(1, follow + rounds + 1):
            public = PublicFacts(
                round=round_,
                rounds=follow + rounds,
                cohort=m,
                dimension=dimension,
                layer_scores=layer_scores,
            )
            broadcast = Broadcast(models=start, public=public)
            declined = client.admit(broadcast)
            if isinstance(declined, Refusal):
                raise FieldError("client", j, f"declines: {declined.reason}")
            facts = ClientFacts(broadcast=broadcast, layout=layout)
            if round_ <= follow:
                weight = 0
            else:
                weight = _weight(round_ - follow, contrast)
            update = (length * along, sent, torch.zeros_like(sent))[weight]
            (release, *_) = client.release((Release("model", start[0] + update),), facts)
            scale = torch.tensor(
                client.ledger.entries[-1].spend.scale or (1.0,), dtype=torch.float64
            )
            if len(scale) == len(sizes):
                deviation = scale.repeat_interleave(torch.tensor(sizes))
            else:
                deviation = scale
            scores[j] += weight * float(((release.value - start[0]) / deviation**2) @ along)
            start = release.value[None] if follow else start
        promises.append(
            total(e.spend.guarantee for e in client.ledger.entries if e.key[0] > follow)
        )
    return CanaryRun.of(scores, inside, max(promises, key=lambda promise: promise.cost), delta)


def orthogonal_records(
    side: RecordDP,
    m: int,
    *,
    rounds: int = 1,
    delta: float = 0.0,
    seed: int = 0,
    source: Source | None = None,
) -> CanaryRun:
    """Run a record-level method on one silo of `m` crafted records (or persons), in or out, and score them.

    The model is linear and starts at 0. Record j is nonzero in coordinate j only, and long enough that its gradient is
    clipped. So gradients of different records are orthogonal. A person has as many such records as the method uses per
    person.

    At region level all `m` records are present, and only their marked content differs. Coordinate j of record j is
    marked. The coin decides whether it holds its long value or the blank 0 (under ``"replace-one"`` the opposite
    value).

    Parameters
    ----------
    side : ClientSide
        Client side of a record-level method (or a region-level one, with blank 0), for two classes.
    m : int
        Number of canaries.
    rounds, delta, seed, source
        See `server_canaries`.
    """
    require_count("m", m, 10)
    inside = coins(m, seed)
    each = side.records_per_person or 1
    person = inside.nonzero()[:, 0].repeat_interleave(each)
    masks: Tensor | None = None
    x = 1e3 * torch.eye(m)[person]
    if side.unit in REGIONS:
        person = torch.arange(m).repeat_interleave(each)
        if side.relation == "replace-one":
            other = -1.0
        else:
            other = 0.0
        content = torch.where(inside, 1.0, other)
        x = 1e3 * torch.diag(content)[person]
        masks = torch.eye(m, dtype=torch.bool)[person]
    labels = torch.zeros(len(person), dtype=torch.int64)
    records = ClientData(x, labels, masks=masks, person=person)
    model = torch.nn.Linear(m, 2, bias=False)
    federation = Federation(
        model=model,
        clients=[records],
        method=side,
        local=LocalTraining(lr=1.0),  # it scales signal and noise alike
        shared=Shared(initial=torch.zeros(1, 2 * m)),
        seed=seed,
        source=source or ReproducibleSource(seed),
    )
    history = federation.run(rounds)
    weight = federation.layout.unflatten(history.models[0])["weight"].to(torch.float64)
    scores = weight[0] - weight[1]
    return CanaryRun.of(scores, inside, history.guarantee, delta)


def record_canaries(
    data: ClientData, m: int, classes: int, seed: int = 0, *, each: int = 1
) -> tuple[ClientData, ClientData, Tensor]:
    """Put crafted records (or persons) into a client's data; a fair coin decides for each.

    Parameters
    ----------
    data : ClientData
        The client's data.
    m, classes : int
        Number of canaries, and of classes from which labels are drawn.
    seed : int
        Seed of images, labels and coins; pixels are uniform between the data's least and largest.
    each : int
        Number of records per canary. If the data name persons, each canary is a new person.

    Returns
    -------
    tuple
        The client's data with the canaries that are in; all m * each records of canaries; the coins [m].
    """
    draw = torch.Generator().manual_seed(keyed_seed("canary records", seed))
    low, high = data.x.min(), data.x.max()
    x = low + (high - low) * torch.rand(
        m * each, *data.x.shape[1:], generator=draw, dtype=data.x.dtype
    )
    y, inside = torch.randint(0, classes, (m * each,), generator=draw), coins(m, seed)
    person, own = torch.arange(m).repeat_interleave(each), inside.repeat_interleave(each)
    others = data.person
    if others is not None:
        person += 1 + int(others.max()) if len(others) else 0
        others = torch.cat([others, person[own]])
    joined = torch.cat([data.x, x[own]]), torch.cat([data.y, y[own]])
    poisoned = ClientData(
        *joined, data.test_x, data.test_y, person=others, test_person=data.test_person
    )
    return poisoned, ClientData(x, y, person=person), inside


def audited(setting: str, run: CanaryRun, distance: float | None = None) -> Verdict:
    """Judge whether the bound of a run breaks the ledger's promise.

    Parameters
    ----------
    setting : str
        Name of the setting, for reports.
    run : CanaryRun
        Run under central or local trust.
    distance : float, optional
        Euclidean distance between a canary's two updates, if the promise depends on distance.

    Returns
    -------
    Verdict
        Its figure is mu or epsilon, whichever is declared; one-sided, so that low, point and high are equal. The detail
        "independent mu" is a tighter bound by `fedveil_lab.attacks.bound`. It holds if scores are independent given the
        coins, as for local releases, or for isotropic noise on canaries along different coordinates. By the same rates,
        "beyond the curve" is the most by which a promised curve is exceeded at one delta.
    """
    promise, bound = run.guarantee, run.bound
    by_epsilon = isinstance(promise.bound, ZCDP | PLD | MetricDP)
    point, ceiling = (
        (bound.epsilon, bound.epsilon_ceiling) if by_epsilon else (bound.mu, bound.mu_ceiling)
    )
    scores, coins_ = run.scores.numpy(), run.inside.numpy()
    independent = independent_bound(scores[coins_], scores[~coins_], bound.confidence)
    details = {
        "ceiling": ceiling,
        "independent mu": independent.mu_lower,
        "independent ceiling": independent.ceiling,
    }
    notes = [f"{bound.correct} of {bound.guesses} guesses right"]
    if promise.proven:
        declared = promise.mu
        if promise.by_distance:
            if distance is None:
                raise FieldError(
                    "distance", None, "the promise is a curve over distance: give the canaries' own"
                )
            declared = promise.cost * distance
        declared = promise.epsilon(bound.delta) if declared is None else declared
        broken = point > declared or (promise.mu is not None and independent.mu_lower > declared)
        if by_epsilon and not promise.by_distance:
            details["beyond the curve"] = independent.beyond(promise.epsilon)
            broken = broken or details["beyond the curve"] > 0
        details |= {"declared": declared, "broken": float(broken)}
        if ceiling < declared:
            notes.append("so few canaries could not refute the declared value")
    figure = "mu"
    if by_epsilon:
        figure = f"epsilon at delta {bound.delta:g}"
    return Verdict.of(
        point,
        attack="canaries",
        setting=setting,
        figure=f"{figure}, lower bound at {bound.confidence:.0%}",
        n=bound.canaries,
        replication="one canary client of one run",
        threat="whoever made the canaries and sees the releases",
        details=details,
        notes=notes,
    )


def _weight(round_: int, contrast: bool) -> int:
    if contrast and round_ % 2 == 0:
        return -1
    return 1
