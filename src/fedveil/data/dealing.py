"""Partition of a data set over clients, and split of held-out parts; all random choices come from a seed."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedveil.data.sets import DataSet, own_scale
from fedveil.errors import (
    FieldError,
    require_choice,
    require_count,
    require_non_negative,
    require_positive,
)
from fedveil.learning.clients import ClientData
from fedveil.mechanisms.source import keyed_seed

Indices = NDArray[np.int64]
Labels = NDArray[Any]

_DRAWS = 100  # draws before the smallest clients are filled up by hand
# Scheme: the options it needs. "shards" has a default, and `min_size` stands where it means nothing.
SCHEMES: dict[str, tuple[str, ...]] = {
    "iid": (),
    "dirichlet": ("alpha",),
    "counts": ("counts",),
    "quantity": ("alpha",),
    "shards": ("shards",),
    "natural": ("owner",),
}
NATURAL: Literal["natural"] = "natural"


def partition(
    y: ArrayLike,
    clients: int | None,
    scheme: str = "iid",
    *,
    seed: int,
    alpha: float | None = None,
    min_size: int = 1,
    counts: Sequence[Sequence[int]] | None = None,
    shards: int | None = None,
    owner: ArrayLike | None = None,
) -> list[Indices]:
    """Distribute examples to clients; each example goes to at most one client.

    Parameters
    ----------
    y : array
        [N], classes of the examples.
    clients : int or None
        Number of clients; None for all natural clients.
    scheme : {"iid", "dirichlet", "counts", "quantity", "shards", "natural"}
        ``"iid"``: at random in equal parts (sizes differ by at most 1). ``"dirichlet"``: each class is split in
        proportions drawn from Dirichlet(alpha). If a client gets fewer than `min_size`, everything is drawn again, at
        most 100 times. After that the smallest clients take single examples from the largest. ``"counts"``: exactly the
        given numbers. ``"quantity"``: at random in parts with sizes drawn from Dirichlet(alpha), with `min_size` as
        above. ``"shards"``: examples are sorted by `y` and cut into clients x shards equal pieces, and each client
        draws `shards` of them (McMahan et al. 2017). ``"natural"``: by `owner`.
    seed : int
        The same seed gives the same partition; the global random state is not used.
    alpha : float
        Parameter of ``"dirichlet"`` and ``"quantity"``; a small value gives uneven parts.
    min_size : int
        Least number of examples of a client. For ``"dirichlet"`` and ``"quantity"`` at most N / clients; with 0,
        clients may be empty. For ``"natural"``, clients with fewer examples are left out.
    counts : sequence of sequence of int
        Numbers of examples for ``"counts"``, [clients][classes]. Other examples go to no client.
    shards : int
        Shards of each client for ``"shards"``; by default 2.
    owner : array
        Natural client of each example for ``"natural"``, [N] int. If `clients` is smaller than their number, so many
        are drawn.

    Returns
    -------
    list of ndarray
        Sorted indices into `y`, one array for each client; ``"counts"`` and ``"natural"`` may leave examples out.

    Raises
    ------
    FieldError
        For options that do not belong to the scheme, a class with too few examples, or too few natural clients.
    """
    labels = np.asarray(y)
    require_choice("scheme", scheme, SCHEMES)
    if clients is not None or scheme != NATURAL:
        clients = require_count("clients", clients)
        if counts is None and clients > len(labels):
            raise FieldError(
                "clients", clients, f"must be at most {len(labels)}, the number of examples"
            )
    if scheme == "shards" and shards is None:
        shards = 2
    _require_options(scheme, {"alpha": alpha, "counts": counts, "shards": shards, "owner": owner})
    least = require_count("min_size", min_size, 0)
    n = clients or 0
    rng = np.random.default_rng(keyed_seed("partition", seed, scheme))
    if scheme == "dirichlet":
        parts = dirichlet(labels, n, require_positive("alpha", alpha), least, rng)
    elif scheme == "counts":
        parts = by_counts(labels, n, counts or [], rng)
    elif scheme == "quantity":
        parts = quantity(len(labels), n, require_positive("alpha", alpha), least, rng)
    elif scheme == "shards":
        parts = shards_of(labels, n, require_count("shards", shards), rng)
    elif scheme == "natural":
        parts = natural(np.asarray(owner, dtype=np.int64), clients, least, rng)
    else:
        parts = np.array_split(rng.permutation(len(labels)), n)
    return [np.sort(part).astype(np.int64) for part in parts]


def _require_options(scheme: str, options: dict[str, Any]) -> None:
    """Refuse options of other schemes, and a missing option that the scheme needs."""
    for name, value in options.items():
        is_needed = name in SCHEMES[scheme]
        if is_needed and value is None:
            raise FieldError(name, None, f"it is needed by the scheme {scheme!r}")
        if not is_needed and value is not None:
            raise FieldError(name, value, f"is no option of the scheme {scheme!r}")


def by_counts(
    labels: Labels,
    clients: int,
    counts: Sequence[Sequence[int]],
    rng: np.random.Generator,
) -> list[Indices]:
    """Draw exactly the given numbers of examples [clients][classes]."""
    rows: list[list[int]] = []
    for row in counts:
        rows.append([require_count("counts", value, least=0) for value in row])
    if len(rows) != clients:
        raise FieldError(
            "clients", clients, f"must be the number of rows of counts, {len(rows)}: one a client"
        )
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise FieldError("counts", rows, "must hold rows of equal length: one number a class")
    classes = range(len(rows[0]))
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    parts: list[list[Indices]] = [[] for _ in rows]
    for c, pool in enumerate(pools):
        wanted = [row[c] for row in rows]
        if sum(wanted) > len(pool):
            accepted = f"the set holds only {len(pool)} examples of class {c}"
            raise FieldError(f"counts[class {c}]", sum(wanted), accepted)
        for i, piece in enumerate(np.split(pool, np.cumsum(wanted))[:clients]):
            parts[i].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def dirichlet(
    labels: Labels,
    clients: int,
    alpha: float,
    min_size: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Divide each class among clients in proportions drawn from Dirichlet(alpha)."""

    def draw() -> list[list[int]]:
        parts: list[list[int]] = [[] for _ in range(clients)]
        for c in np.unique(labels):
            deck = rng.permutation(np.flatnonzero(labels == c))
            cuts = _cuts(len(deck), clients, alpha, rng)
            for part, piece in zip(parts, np.split(deck, cuts), strict=True):
                part += piece.tolist()
        return parts

    return _filled(draw, min(min_size, len(labels) // clients), rng)


def quantity(
    examples: int,
    clients: int,
    alpha: float,
    min_size: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Divide shuffled examples among clients in parts with sizes drawn from Dirichlet(alpha)."""
    deck = rng.permutation(examples)

    def draw() -> list[list[int]]:
        cuts = _cuts(examples, clients, alpha, rng)
        return [part.tolist() for part in np.split(deck, cuts)]

    return _filled(draw, min(min_size, examples // clients), rng)


def shards_of(
    labels: Labels,
    clients: int,
    shards: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Sort examples by label, cut them into equal shards, and let each client draw `shards` of these."""
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(ordered, clients * shards)
    drawn = rng.permutation(clients * shards).reshape(clients, shards)
    parts: list[Indices] = []
    for row in drawn.tolist():
        parts.append(np.concatenate([pieces[j] for j in row]))
    return parts


def natural(
    owner: Indices,
    clients: int | None,
    min_size: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Return the examples of the natural clients with at least `min_size` examples; of these, `clients` are drawn, or all."""
    least = max(min_size, 1)
    owners, sizes = np.unique(owner, return_counts=True)
    enough = owners[sizes >= least]
    if clients is not None and clients > len(enough):
        raise FieldError(
            "clients", clients, f"only {len(enough)} natural clients hold at least {least} examples"
        )
    if not len(enough):
        raise FieldError(
            "min_size", min_size, f"the largest natural client holds {sizes.max()} examples"
        )
    chosen = enough
    if clients is not None:
        chosen = np.sort(rng.choice(enough, size=clients, replace=False))
    groups = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    return [groups[place] for place in np.searchsorted(owners, chosen)]


def _cuts(
    examples: int,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
) -> Indices:
    """Draw the positions at which shuffled examples are cut into parts."""
    shares = rng.dirichlet([alpha] * clients)
    ends = np.cumsum(shares)[:-1] * examples
    return np.floor(ends).astype(np.int64)


def _filled(
    draw: Callable[[], list[list[int]]],
    least: int,
    rng: np.random.Generator,
) -> list[Indices]:
    """Repeat a draw until each client has `least` examples. After too many draws the smallest clients take from the largest."""
    for _ in range(_DRAWS):
        parts = draw()
        if min(map(len, parts)) >= least:
            break
    while min(map(len, parts)) < least:
        donor = max(parts, key=len)
        taker = min(parts, key=len)
        taken = int(rng.integers(len(donor)))
        taker.append(donor.pop(taken))
    return [np.array(part, dtype=np.int64) for part in parts]


def holdout(
    y: ArrayLike,
    indices: Indices,
    fraction: float,
    *,
    seed: int,
) -> tuple[Indices, Indices]:
    """Split one client's examples into a training part and a held-out part with the same proportions of classes.

    Parameters
    ----------
    y : array
        [N], the classes of the whole set; floating-point targets and classes of pixels are split without strata.
    indices : ndarray
        Indices of the client's examples.
    fraction : float
        At least 0 and below 1. round(fraction n) examples are held out, divided over the classes by largest remainder.
        Each class keeps at least one training example, so with rare classes fewer are held out.
    seed : int
        Seed of the choice.

    Returns
    -------
    train, test : ndarray
        Sorted indices, disjoint, and together equal to `indices`.
    """
    if require_non_negative("holdout", fraction) >= 1:
        raise FieldError("holdout", fraction, "must be at least 0 and below 1")
    own = np.asarray(indices, dtype=np.int64)
    labels = np.asarray(y)[own]
    if labels.dtype.kind == "f" or labels.ndim > 1:
        labels = np.zeros(len(own), dtype=np.int64)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    share = fraction * sizes
    whole = np.floor(share)
    take = np.minimum(whole.astype(np.int64), np.maximum(sizes - 1, 0))
    for c in np.argsort(-(share - whole), kind="stable"):
        if take.sum() < round(fraction * len(own)) and take[c] < sizes[c] - 1:
            take[c] += 1
    rng = np.random.default_rng(keyed_seed("holdout", seed))
    chosen = np.zeros(len(own), dtype=bool)
    for c, count in enumerate(take):
        shuffled = rng.permutation(np.flatnonzero(inverse == c))
        chosen[shuffled[:count]] = True
    return np.sort(own[~chosen]), np.sort(own[chosen])


_split = holdout  # `federate` has a parameter of that name


def federate(
    dataset: DataSet,
    *,
    clients: int | Literal["natural"],
    scheme: str = "iid",
    holdout: float = 0.2,
    seed: int,
    sensitive: Sequence[Sequence[str]] = (),
    **options: Any,
) -> list[ClientData]:
    """Distribute a data set to clients, each with a held-out part of its own.

    Parameters
    ----------
    dataset : DataSet
        Data set; its `x` and `y` are distributed, its test half stays with the server. Each client standardises the
        `local_columns` by its own training rows.
    clients : int or "natural"
        ``"natural"``: all of the set's natural clients (or those with `min_size` examples), under their own names. A
        number with ``scheme="natural"`` draws so many of them.
    scheme, seed, **options
        As in :func:`partition`.
    holdout : float
        Fraction that each client holds out, stratified; 0 for none.
    sensitive : sequence of sequence of str
        Kinds of content that clients treat as sensitive, from the set's `region_names`. Client i takes entry i modulo
        their number. Without entries every client takes all kinds.

    Returns
    -------
    list of ClientData
        Clients in the order of their partition numbers. A client may be empty, have a single example, or lack a class.
        A group of the set is distributed as one example with the class of its first row. Clients have masks if the set
        has sensitive pixels.

    Raises
    ------
    FieldError
        As :func:`partition`. Also for natural clients if the set has none, and for a scheme by class if it has no
        classes.
    """
    by_nature = clients == NATURAL or scheme == NATURAL
    _require_dealable(dataset, clients, scheme, by_nature)
    owner = dataset.owner.numpy() if by_nature and dataset.owner is not None else None
    members = _groups(dataset, owner)
    first = np.array([rows[0] for rows in members], dtype=np.int64)
    strata = np.zeros(len(first), dtype=np.int64)
    if dataset.task == "classification":
        strata = dataset.y.numpy()[first]
    if owner is not None:
        scheme = NATURAL
        options = {**options, "owner": owner[first]}
    count = None if clients == NATURAL else int(clients)
    if dataset.group is not None and not by_nature and count is not None and count > len(first):
        raise FieldError(
            "clients",
            clients,
            f"must be at most {len(first)}: people and documents are dealt out whole",
        )
    result: list[ClientData] = []
    held_out: dict[int, bool] = {}  # by person, at the first client that has her
    for i, part in enumerate(partition(strata, count, scheme, seed=seed, **options)):
        train, test = _split(strata, part, holdout, seed=keyed_seed(seed, i))
        if by_nature and dataset.group is not None:
            train, test = _as_elsewhere(dataset.group.numpy()[first], train, test, held_out)
        train_rows = _rows_of(members, train)
        test_rows = _rows_of(members, test) if holdout else None
        name = f"client-{i}"
        if owner is not None:
            name = dataset.owners[int(owner[first[part[0]]])]
        kinds = sensitive[i % len(sensitive)] if sensitive else dataset.region_names
        result.append(_client(dataset, train_rows, test_rows, name, kinds))
    return result


def _require_dealable(
    dataset: DataSet,
    clients: int | Literal["natural"],
    scheme: str,
    by_nature: bool,
) -> None:
    """Refuse a scheme that does not work for this data set."""
    if by_nature and scheme not in (NATURAL, "iid"):
        raise FieldError(
            "scheme", scheme, "natural clients are not dealt out: give a number of clients"
        )
    if by_nature and dataset.owner is None:
        accepted = f"{dataset.name!r} does not say whose its examples are; give a number of clients and a scheme"
        raise FieldError("clients", clients, accepted)
    if dataset.task != "classification" and scheme in ("dirichlet", "counts", "shards"):
        accepted = f"needs a class for each example, and {dataset.name!r} is a {dataset.task}: use iid or quantity"
        raise FieldError("scheme", scheme, accepted)
    if dataset.group is not None and scheme == "counts":
        raise FieldError(
            "scheme",
            scheme,
            f"counts examples, and those of {dataset.name!r} are dealt out in groups",
        )


def _as_elsewhere(
    who: Indices,
    train: Indices,
    test: Indices,
    held_out: dict[int, bool],
) -> tuple[Indices, Indices]:
    """Return a client's two parts, changed so that a person is in the same part as at earlier clients."""
    places = np.sort(np.concatenate([train, test]))
    is_test = np.isin(places, test)
    for i, place in enumerate(places):
        is_test[i] = held_out.setdefault(int(who[place]), bool(is_test[i]))
    return places[~is_test], places[is_test]


def _rows_of(members: Sequence[Indices], groups: Indices) -> Indices:
    """Return the sorted examples of some groups."""
    rows = [np.zeros(0, dtype=np.int64)]
    rows += [members[group] for group in groups]
    return np.sort(np.concatenate(rows))


def _groups(dataset: DataSet, owner: Indices | None) -> list[Indices]:
    """Return the examples of each group; a group at two natural clients becomes one group at each."""
    if dataset.group is None:
        return list(np.arange(len(dataset.y), dtype=np.int64)[:, None])
    group = dataset.group.numpy()
    if owner is not None:
        _, both = np.unique(np.stack([group, owner]), axis=1, return_inverse=True)
        group = both.reshape(-1)
    order = np.argsort(group, kind="stable").astype(np.int64)
    ends = np.flatnonzero(np.diff(group[order])) + 1
    return np.split(order, ends)


def _client(
    dataset: DataSet,
    train: Indices,
    test: Indices | None,
    name: str,
    kinds: Sequence[str],
) -> ClientData:
    """Return one client's data, from rows of a set."""
    rows = torch.from_numpy(train)
    own = dataset.x[rows]
    masks: Tensor | None = None
    if dataset.regions is not None or kinds:
        masks = dataset.sensitive(kinds)[rows]

    def part(indices: Indices) -> tuple[Tensor, Tensor, Tensor | None]:
        rows = torch.from_numpy(indices)
        people = None if dataset.group is None else dataset.group[rows]
        x = own_scale(dataset.x[rows], dataset.local_columns, own)
        return x, dataset.y[rows], people

    x, y, person = part(train)
    if test is None:
        return ClientData(x, y, name=name, masks=masks, person=person)
    test_x, test_y, test_person = part(test)
    return ClientData(
        x,
        y,
        test_x,
        test_y,
        name=name,
        masks=masks,
        person=person,
        test_person=test_person,
    )
