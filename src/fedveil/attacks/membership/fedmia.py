"""What the server learns from comparing clients: who holds a record (source inference), is it the target (FedMIA)."""

import torch
from torch import Tensor

from fedveil.attacks.statistics import rate
from fedveil.attacks.verdict import Verdict
from fedveil.errors import FieldError


def fed_mia(measure: Tensor, target: int) -> Tensor:
    """Scores [N] that the records are the target client's.

    FedMIA: the server takes the other clients' updates for the null hypothesis; no shadow models.

    Source: Zhu et al. 2024, "FedMIA: an effective membership inference attack exploiting the all for one principle"
    (arXiv 2402.06289): per round and record, where does the measure under the target client's update lie among the
    others'?

        score(i) = mean over rounds of Phi((m[r, target, i] - mean over others) / deviation over others)

    The measure m is the received model's log-odds of the true class, or the update's agreement with the record's own
    gradient. Where clients hold different classes (Dirichlet .1) the null is wrong: others do not know the class,
    whoever the record belongs to, and the score says whose class it is. `by_class` therefore standardises what each
    client's update does to a record by what it does to *reference* records of the same class, which nobody trained on.
    How much of an AUC is knowledge of the class shows against non-members with the members' classes (`same_classes`).

    Threat model: honest-but-curious server with the records in question, and with reference records for `by_class`.

    Parameters
    ----------
    measure : Tensor
        [R, K, N] of R rounds, K clients, N records; higher under an update that was trained on the record.
    target : int
        Index of the client in question, among the K.

    Raises
    ------
    FieldError
        With fewer than two other clients.
    """
    if measure.dim() != 3 or measure.shape[1] < 3:
        raise FieldError("measure", tuple(measure.shape), "must be [R, K, N] with at least two other clients")
    others = torch.cat([measure[:, :target], measure[:, target + 1 :]], dim=1)
    z = (measure[:, target] - others.mean(1)) / others.std(1).clamp(min=1e-9)
    score: Tensor = torch.special.ndtr(z).mean(0)
    return score


def by_class(measure: Tensor, y: Tensor, reference: Tensor, reference_y: Tensor) -> Tensor:
    """The measure, standardised by each client's mean and deviation on reference records of the same class.

    Parameters
    ----------
    measure : Tensor
        [..., K, N].
    y : Tensor
        [N], classes.
    reference : Tensor
        [..., K, M], the same measure on reference records.
    reference_y : Tensor
        [M].

    Raises
    ------
    FieldError
        If a class has fewer than two reference records.
    """
    calibrated = measure.clone()
    for c in set(y.tolist()):
        rows = reference_y == c
        if int(rows.sum()) < 2:
            raise FieldError("reference", c, "needs two reference records of this class")
        usual = reference[..., rows]
        shifted = calibrated[..., y == c] - usual.mean(-1, keepdim=True)
        calibrated[..., y == c] = shifted / usual.std(-1, keepdim=True).clamp(min=1e-9)
    return calibrated


def same_classes(members: Tensor, others: Tensor, seed: int = 0) -> Tensor:
    """Draw non-members whose classes have the members' shares.

    Parameters
    ----------
    members, others : Tensor
        Classes [n] and [m].
    seed : int
        Of the draw.

    Returns
    -------
    Tensor
        Indices into `others`: k of a class for each member of it, with the largest k for which there are enough.

    Raises
    ------
    FieldError
        If there are fewer non-members of a class than members.
    """
    draw = torch.Generator().manual_seed(seed)
    counts = {c: int((members == c).sum()) for c in set(members.tolist())}
    found = {c: (others == c).nonzero().flatten() for c in counts}
    k = min(len(found[c]) // n for c, n in counts.items())
    if k < 1:
        short = min(counts, key=lambda c: len(found[c]) / counts[c])
        raise FieldError(
            "others", len(found[short]), f"are too few of class {short}: there are {counts[short]} members"
        )
    picked = [rows[torch.randperm(len(rows), generator=draw)[: k * counts[c]]] for c, rows in sorted(found.items())]
    return torch.cat(picked).sort().values


def guess(measure: Tensor) -> Tensor:
    """Index [N] of the client whose measure [K, N] (minus the loss, say) is largest."""
    return measure.argmax(0)


def source_inference(measure: Tensor, owner: Tensor, setting: str, attack: str = "source inference") -> Verdict:
    """How many records are put down to their owner.

    Source inference: which client holds a record that is known to be a member of somebody's data.

    Source: Hu et al. 2021, "Source inference attacks in federated learning" (arXiv 2109.05659): the client whose model
    has the least loss on it. Chance is 1 / K.

    Threat model: honest-but-curious server that received K models.

    Parameters
    ----------
    measure : Tensor
        [K, N], or [R, K, N], of which the mean over rounds counts.
    owner : Tensor
        [N], index of the client that holds each record.
    setting, attack : str
        For reports.
    """
    flat = measure.mean(0) if measure.dim() == 3 else measure
    if len(owner) != flat.shape[1] or int(owner.max()) >= len(flat):
        raise FieldError("owner", tuple(owner.shape), f"must name one of {len(flat)} clients for each record")
    found = rate(int((guess(flat) == owner).sum()), len(owner))
    most = float(torch.bincount(owner).max()) / len(owner)
    return Verdict(
        attack=attack,
        setting=setting,
        figure="top-1 accuracy",
        point=found.point,
        low=found.low,
        high=found.high,
        n=len(owner),
        replication="one record of one run",
        threat="honest-but-curious server",
        details={"chance": 1 / len(flat), "largest client's share": most},
    )
