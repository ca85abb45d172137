"""Overview of the data that each client has, with warnings before a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.data.sets import DataSet
from fedveil.learning.clients import ClientData

_NAMED = 5  # clients or classes that a line lists by name


@dataclass(frozen=True)
class Holding:
    """Summary of one client's examples; training and held-out ones count together.

    Attributes
    ----------
    name : str
        Name of the client.
    examples, held_out : int
        Numbers of training examples and held-out examples.
    counts : tuple of int
        Examples (or pixels) of each class; empty for a regression.
    mean, deviation : float or None
        Mean and standard deviation of the first target of a regression; None without an example.
    notes : tuple of str
        Unusual facts, such as "empty", "one example", "lacks class 3".
    """

    name: str
    examples: int
    held_out: int
    counts: tuple[int, ...] = ()
    mean: float | None = None
    deviation: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def present(self) -> int:
        """Number of classes with at least one example."""
        return len(self.counts) - self.counts.count(0)


def holdings(clients: Sequence[ClientData], dataset: DataSet) -> list[Holding]:
    """Summarise the data of each client, in order.

    These are facts about private data, for the experimenter only. No privacy promise covers them.
    """
    found: list[Holding] = []
    for client in clients:
        own = _holding(client, _all_labels(client), dataset.classes, client.name)
        found.append(replace(own, notes=_notes(own, dataset)))
    return found


def warnings_of(holdings: Sequence[Holding], dataset: DataSet) -> list[str]:
    """Return warnings: natural clients that were mixed or left out, and a line for each kind of unusual client."""
    lines: list[str] = []
    owners = dataset.owners
    names = {holding.name for holding in holdings}
    if owners and not names <= set(owners):
        lines.append(
            f"the set's {len(owners)} natural clients are mixed: partition = 'natural' keeps them"
        )
    else:
        lines.append(_left_out(holdings, dataset))
    lines += _odd(holdings)
    lacking = [one for one in holdings if one.examples and 1 < one.present < dataset.classes]
    lines.append(_line(holdings, lacking, "no example of some class"))
    return [line for line in lines if line]


def _left_out(holdings: Sequence[Holding], dataset: DataSet) -> str:
    """Describe natural clients that take no part, with their numbers of examples; "" if there are none."""
    taking_part = {holding.name for holding in holdings}
    gone = [i for i, name in enumerate(dataset.owners) if name not in taking_part]
    if not gone or dataset.owner is None:
        return ""
    examples = int(torch.isin(dataset.owner, torch.tensor(gone)).sum())
    names = _some([dataset.owners[i] for i in gone])
    count = f"{len(gone)} of {len(dataset.owners)} natural clients, with {examples} examples"
    return f"{count}, are left out by min_size, or because fewer clients are drawn ({names})"


def oddities(clients: Sequence[ClientData]) -> list[str]:
    """Return a line for each kind of unusual client, without knowledge of the data set."""
    highest = -1
    for client in clients:
        if client.examples and not client.y.is_floating_point():
            highest = max(highest, int(client.y.max()))
    holdings: list[Holding] = []
    present: set[int] = set()
    for i, client in enumerate(clients):
        own = _holding(client, client.y, 1 + highest, client.name or f"client {i}")
        holdings.append(own)
        present.update(c for c, count in enumerate(own.counts) if count)
    lines = _odd(holdings, several=len(present) > 1)
    return [line for line in lines if line]


def _odd(holdings: Sequence[Holding], several: bool = True) -> list[str]:
    """Return a line (or "") for each kind: a single client; clients without examples, with one example, with one class."""
    alone = (
        "one client: its model is the aggregate, and no other client hides it"
        if len(holdings) == 1
        else ""
    )
    empty: list[Holding] = []
    single: list[Holding] = []
    of_one_class: list[Holding] = []
    for one in holdings:
        if not one.examples:
            empty.append(one)
        elif one.examples == 1:
            single.append(one)
        elif one.present == 1 and several and len(holdings) > 1:
            of_one_class.append(one)
    fix = "and their models learn to name it alone: deal out more classes a client"
    return [
        alone,
        _line(holdings, empty, "no example to train on: they return the model they receive"),
        _line(holdings, single, "a single example to train on"),
        _line(holdings, of_one_class, f"examples of a single class, {fix}"),
    ]


def _all_labels(client: ClientData) -> Tensor:
    """Return the labels of a client's training and held-out examples."""
    if client.test_y is None:
        return client.y
    return torch.cat([client.y, client.test_y])


def _holding(client: ClientData, y: Tensor, classes: int, name: str) -> Holding:
    """Summarise a client with labels y [N, ...]."""
    own = Holding(name, client.examples, client.held_out)
    if classes and not y.is_floating_point():
        counts = torch.bincount(y[y >= 0], minlength=classes)
        return replace(own, counts=tuple(counts.tolist()))
    if not len(y):
        return own
    first = y.reshape(len(y), -1)[:, 0].to(torch.float64)
    return replace(own, mean=float(first.mean()), deviation=float(first.std(correction=0)))


def _notes(own: Holding, dataset: DataSet) -> tuple[str, ...]:
    if not own.examples:
        return ("empty",)
    notes: list[str] = []
    if own.examples == 1:
        notes.append("one example")
    lacking: list[str] = []
    for name, count in zip(dataset.names(), own.counts, strict=False):
        if not count:
            lacking.append(name)
    if len(lacking) > _NAMED:
        notes.append(f"lacks {len(lacking)} of {dataset.classes} classes")
    elif len(lacking) == 1:
        notes.append(f"lacks class {lacking[0]}")
    elif lacking:
        notes.append(f"lacks classes {', '.join(lacking)}")
    return tuple(notes)


def _line(holdings: Sequence[Holding], chosen: Sequence[Holding], text: str) -> str:
    """Make a line with the number of chosen clients and some of their names; "" if there are none."""
    if not chosen:
        return ""
    names = _some([holding.name for holding in chosen])
    return f"{len(chosen)} of {len(holdings)} clients hold {text} ({names})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown}, ..." if len(names) > _NAMED else shown
