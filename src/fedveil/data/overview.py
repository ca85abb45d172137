"""What each client holds, and what is worth saying about it before a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from fedveil.data.sets import DataSet
from fedveil.learning.clients import ClientData

_NAMED = 5  # clients or classes that a line lists by name


@dataclass(frozen=True)
class Holding:
    """What one client holds, training and held-out examples together unless said otherwise.

    Attributes
    ----------
    name : str
        The client's.
    examples, held_out : int
        To train on, and kept apart.
    counts : tuple of int
        Examples (or pixels) of each class; empty for a regression.
    mean, deviation : float or None
        Of the first target of a regression, if there is an example.
    notes : tuple of str
        What is unusual: "empty", "one example", "lacks class 3".
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
        """Classes with at least one example."""
        return sum(1 for count in self.counts if count)


def holdings(clients: Sequence[ClientData], dataset: DataSet) -> list[Holding]:
    """What each client holds, in order.

    These are facts about private data: a table of them is for whoever runs the experiment, and no release of a
    federation covers it.
    """
    every = (_holding(client, dataset.classes, whole=True) for client in clients)
    return [replace(own, notes=_notes(own, dataset)) for own in every]


def warnings_of(holdings: Sequence[Holding], dataset: DataSet) -> list[str]:
    """A line for each kind of unusual client; none where there is nothing to say."""
    owners = dataset.owners
    mixed = bool(owners) and not {h.name for h in holdings} <= set(owners)
    lacking = _line(
        holdings, lambda h: bool(h.examples) and 1 < h.present < dataset.classes, "no example of some class"
    )
    natural = f"the set's {len(owners)} natural clients are mixed: partition = 'natural' keeps them" if mixed else ""
    return [line for line in (natural, "" if mixed else _left_out(holdings, dataset), *_odd(holdings), lacking) if line]


def _left_out(holdings: Sequence[Holding], dataset: DataSet) -> str:
    """Which natural clients take no part, and with how many examples."""
    taking_part = {holding.name for holding in holdings}
    gone = [i for i, name in enumerate(dataset.owners) if name not in taking_part]
    if not gone or dataset.owner is None:
        return ""
    examples = int(torch.isin(dataset.owner, torch.tensor(gone)).sum())
    names = ", ".join(dataset.owners[i] for i in gone[:_NAMED]) + ", ..." * (len(gone) > _NAMED)
    why = "by min_size, or because fewer clients are drawn"
    return (
        f"{len(gone)} of {len(dataset.owners)} natural clients, with {examples} examples, are left out {why} ({names})"
    )


def oddities(clients: Sequence[ClientData]) -> list[str]:
    """What is unusual about clients whatever their data set is: a line each kind."""
    classes = 1 + max(
        (max(-1, int(c.y.max())) for c in clients if c.examples and not c.y.is_floating_point()), default=-1
    )
    holdings = [_holding(client, classes, name=client.name or f"client {i}") for i, client in enumerate(clients)]
    several = sum(any(column) for column in zip(*(h.counts for h in holdings), strict=False)) > 1
    return [line for line in _odd(holdings, several) if line]


def _odd(holdings: Sequence[Holding], several: bool = True) -> list[str]:
    single = "examples of a single class, and their models learn to name it alone: deal out more classes a client"
    return [
        "one client: its model is the aggregate, and no other client hides it" if len(holdings) == 1 else "",
        _line(holdings, lambda h: not h.examples, "no example to train on: they return the model they receive"),
        _line(holdings, lambda h: h.examples == 1, "a single example to train on"),
        _line(holdings, lambda h: several and h.examples > 1 and h.present == 1 < len(holdings), single),
    ]


def _holding(client: ClientData, classes: int, whole: bool = False, name: str = "") -> Holding:
    """What one client has to train on, or the whole."""
    y = torch.cat([client.y, client.test_y]) if whole and client.test_y is not None else client.y
    own = Holding(name or client.name, client.examples, client.held_out)
    if classes and not y.is_floating_point():
        return replace(own, counts=tuple(torch.bincount(y[y >= 0], minlength=classes).tolist()))
    if not len(y):
        return own
    first = y.reshape(len(y), -1)[:, 0].to(torch.float64)
    return replace(own, mean=float(first.mean()), deviation=float(first.std(correction=0)))


def _notes(own: Holding, dataset: DataSet) -> tuple[str, ...]:
    if not own.examples:
        return ("empty",)
    notes = ["one example"] if own.examples == 1 else []
    lacking = [name for name, count in zip(dataset.names(), own.counts, strict=False) if not count]
    if len(lacking) > _NAMED:
        notes.append(f"lacks {len(lacking)} of {dataset.classes} classes")
    elif lacking:
        notes.append(f"lacks class{'es' * (len(lacking) > 1)} {', '.join(lacking)}")
    return tuple(notes)


def _line(holdings: Sequence[Holding], chosen: Callable[[Holding], bool], text: str) -> str:
    names = [holding.name for holding in holdings if chosen(holding)]
    if not names:
        return ""
    more = ", ..." if len(names) > _NAMED else ""
    return f"{len(names)} of {len(holdings)} clients hold {text} ({', '.join(names[:_NAMED])}{more})"
