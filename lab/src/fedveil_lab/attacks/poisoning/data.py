"""Malicious clients that train honestly on changed data, and measures of a poisoning attack's success."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedveil.checks import Count, Share
from fedveil.engines import Behaviour, Turn
from fedveil.errors import FieldError, require_count
from fedveil.layout import Layout
from fedveil.learning import ClientData, predict
from fedveil.mechanisms import keyed_seed
from fedveil.registry import Registry

BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "malicious.behaviour", {}, group="fedveil.behaviours"
)


@dataclass(frozen=True, eq=False)
class Goal:
    """Examples that an attack wants misclassified.

    Attributes
    ----------
    x, y : Tensor
        Examples [N, ...] as the attack presents them, and their true classes [N].
    target : int or None
        Class that the attack wants for them; None for any wrong class.
    """

    x: Tensor
    y: Tensor
    target: int | None = None

    def __post_init__(self) -> None:
        """Refuse a goal without examples, as no rate could be computed."""
        if not len(self.x):
            raise FieldError("source", None, "no example of the source class is in the test data")


@dataclass(frozen=True)
class Poisoned:
    """Success and accuracy at the end of one poisoned (or clean) run, rates in [0, 1].

    Attributes
    ----------
    success : float
        Share of the goal's examples classified as the target (without a target: as any wrong class).
    recall : float
        Share of the goal's examples classified correctly; in a label flip as the source class.
    accuracy : float
        Share of all unchanged test examples classified correctly.
    examples : int
        Number of the goal's examples.
    """

    success: float
    recall: float
    accuracy: float
    examples: int


def measure(
    model: nn.Module, layout: Layout, vector: Tensor, x: Tensor, y: Tensor, goal: Goal | None = None
) -> Poisoned:
    """Measure a model [d] on test data x, y [N]; without a goal any error is a success."""
    said = predict(model, layout, vector, x).argmax(1)
    accuracy = float((said == y).double().mean())
    if goal is None:
        return Poisoned(1 - accuracy, accuracy, accuracy, len(y))
    taken = predict(model, layout, vector, goal.x).argmax(1)
    recall = float((taken == goal.y).double().mean())
    if goal.target is None:
        success = 1 - recall
    else:
        success = float((taken == goal.target).double().mean())
    return Poisoned(success, recall, accuracy, len(goal.x))


def goal_of(behaviour: Behaviour, x: Tensor, y: Tensor) -> Goal | None:
    """Return the goal of a behaviour that wants particular errors; None if it only wants to harm."""
    make = getattr(behaviour, "goal", None)
    return None if make is None else make(x, y)


@dataclass(frozen=True, eq=False, kw_only=True)
class Around(Behaviour):
    """Base class of behaviours that wrap another one: they train on its data and have its goal.

    Parameters
    ----------
    of : Behaviour
        The other behaviour; by default one that trains honestly.
    """

    of: Behaviour = field(default_factory=Behaviour)

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        return self.of.data(data, partition, round_)

    def goal(self, x: Tensor, y: Tensor) -> Goal | None:
        """Return the other behaviour's goal, if it has one."""
        return goal_of(self.of, x, y)

    def update(self, turn: Turn) -> Tensor:
        """Return the update that the other behaviour would send."""
        sent = self.of.model(turn)
        if sent is None:
            return turn.update
        return sent - turn.start


@BEHAVIOURS.register("label-flip")
@dataclass(frozen=True, eq=False, kw_only=True)
class LabelFlip(Behaviour):
    """Malicious client that trains on examples of class `source` with the label `target`.

    Label flipping: examples of one class are trained on as another.

    Source: Tolpegin et al. 2020, "Data poisoning attacks against federated learning systems" (arXiv 2007.08432); the
    SGA-LDP paper's attack (Neutrophil to Lymphocyte).

    Threat model: malicious clients that change their own data and train honestly on them.

    Parameters
    ----------
    source, target : int
        The two classes.
    classes : int
        Number of classes.

    Raises
    ------
    FieldError
        If one of the two does not exist, or they are the same.
    """

    source: int
    target: int
    classes: int

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            check_class(name, getattr(self, name), self.classes)
        if self.source == self.target:
            raise FieldError("target", self.target, "must be another class than the source")

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        """Return the same examples with flipped labels."""
        return replace(data, y=data.y.where(data.y != self.source, self.target))

    def goal(self, x: Tensor, y: Tensor) -> Goal:
        """Return the examples of the source class, with the target class as the wish."""
        rows = y == self.source
        return Goal(x[rows], y[rows], self.target)


def check_class(name: str, value: int, classes: int) -> None:
    """Refuse a class that does not exist."""
    if require_count(name, value, 0) >= require_count("classes", classes):
        raise FieldError(name, value, f"there are classes 0 to {classes - 1}")


def stamp(x: Tensor, size: int, value: float) -> Tensor:
    """Images [N, C, H, W] with a square of `size` pixels of a value in the bottom right corner."""
    if x.dim() != 4 or size > min(x.shape[2:]):
        raise FieldError(
            "size",
            size,
            f"needs images [N, C, H, W] of at least {size}x{size}, found {tuple(x.shape)}",
        )
    marked = x.clone()
    marked[:, :, -size:, -size:] = value
    return marked


@BEHAVIOURS.register("backdoor")
@dataclass(frozen=True, eq=False, kw_only=True)
class Backdoor(Behaviour):
    """Malicious client that stamps a patch on examples of other classes, and trains on them as `target`.

    Backdoor: a patch in the corner of an image means the target class.

    Source: Gu et al. 2017, BadNets (arXiv 1708.06733); in federations Bagdasaryan et al. 2020 (arXiv 1807.00459). With
    `scaling` around it, it is their model replacement.

    Threat model: malicious clients that change their own data and train honestly on them.

    Parameters
    ----------
    target : int
        Target class.
    classes : int
        Number of classes.
    size : int
        Side of the square patch, in pixels.
    value : float
        Value of the patch's pixels, in the images' range.
    stamped : float
        Share of the client's examples of other classes that are stamped, in (0, 1].
    seed : int
        Seed that chooses the stamped examples; they are the same in every round.
    """

    target: int
    classes: int
    size: Count = 2
    value: float = 1.0
    stamped: Share = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_class("target", self.target, self.classes)

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        """Return the same number of examples, some stamped and relabelled."""
        others = (data.y != self.target).nonzero().flatten()
        draw = torch.Generator().manual_seed(keyed_seed("backdoor", self.seed, partition))
        chosen = others[
            torch.randperm(len(others), generator=draw)[: round(self.stamped * len(others))]
        ]
        x, y = data.x.clone(), data.y.clone()
        x[chosen], y[chosen] = stamp(data.x[chosen], self.size, self.value), self.target
        return replace(data, x=x, y=y)

    def goal(self, x: Tensor, y: Tensor) -> Goal:
        """Return stamped examples of other classes, with the target class as the wish."""
        rows = y != self.target
        return Goal(stamp(x[rows], self.size, self.value), y[rows], self.target)
