"""Label flipping: examples of one class are trained on as another.

Source: Tolpegin et al. 2020, "Data poisoning attacks against federated learning systems" (arXiv 2007.08432); the
SGA-LDP paper's attack (Neutrophil to Lymphocyte).

Threat model: malicious clients that change their own data and train honestly on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.attacks.poisoning.goal import Goal
from fedveil.engines.behaviour import Behaviour
from fedveil.errors import FieldError, require_count
from fedveil.learning import ClientData


def flip(y: Tensor, source: int, target: int) -> Tensor:
    """Labels [N] with `source` turned into `target`."""
    return torch.where(y == source, torch.full_like(y, target), y)


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelFlip(Behaviour):
    """Train on `source` as `target`.

    Parameters
    ----------
    source, target : int
        Two classes.
    classes : int
        How many there are.

    Raises
    ------
    FieldError
        If one of the two does not exist, or they are the same.
    """

    source: int
    target: int
    classes: int

    def __post_init__(self) -> None:
        """Check the pair."""
        for name in ("source", "target"):
            check_class(name, getattr(self, name), self.classes)
        if self.source == self.target:
            raise FieldError("target", self.target, "must be another class than the source")

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        """The same examples under other labels."""
        return replace(data, y=flip(data.y, self.source, self.target))

    def goal(self, x: Tensor, y: Tensor) -> Goal:
        """Examples of the source class are to be taken for the target."""
        rows = y == self.source
        return Goal(x[rows], y[rows], self.target)


def check_class(name: str, value: int, classes: int) -> None:
    """Refuse a class that does not exist."""
    if require_count(name, value, 0) >= require_count("classes", classes):
        raise FieldError(name, value, f"there are classes 0 to {classes - 1}")
