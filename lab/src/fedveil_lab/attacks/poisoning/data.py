"""A poisoner's goal and success, and malicious clients that train honestly on changed data."""

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
        [N, ...] and [N]: the examples as the attack presents them, with their true classes.
    target : int or None
        The class wanted for them; None if any wrong class will do.
    """

    x: Tensor
    y: Tensor
    target: int | None = None

    def __post_init__(self) -> None:
        """Refuse a goal without examples: no rate could be given."""
        if not len(self.x):
            raise FieldError("source", None, "no example of the source class is in the test data")


@dataclass(frozen=True)
class Poisoned:
    """Rates at the end of one poisoned (or clean) run, in [0, 1].

    Attributes
    ----------
    success : float
        Share of the goal's examples taken for the target (or for any wrong class, where there is no target).
    recall : float
        Share of the goal's examples that get their true class: in a label flip, the source class.
    accuracy : float
        Share of all unchanged test examples that get their true class.
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
    """Base of behaviours around another one: they train on its data, and have its goal.

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
        """Update that the other behaviour would send."""
        sent = self.of.model(turn)
        if sent is None:
            return turn.update
        return sent - turn.start


@BEHAVIOURS.register("label-flip")
@dataclass(frozen=True, eq=False, kw_only=True)
class LabelFlip(Behaviour):
    """Train on `source` as `target`.

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
        """Return the same examples under other labels."""
        return replace(data, y=data.y.where(data.y != self.source, self.target))

    def goal(self, x: Tensor, y: Tensor) -> Goal:
        """Examples of the source class are to be taken for the target."""
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
    """Stamp a share of the examples of other classes and train on them as `target`.

    Backdoor: a patch in the corner of an image means the target class.

    Source: Gu et al. 2017, BadNets (arXiv 1708.06733); in federations Bagdasaryan et al. 2020 (arXiv 1807.00459). With
    `scaling` around it, it is their model replacement.

    Threat model: malicious clients that change their own data and train honestly on them.

    Parameters
    ----------
    target, classes : int
        Target class, and number of classes.
    size : int
        Side of the square patch, in pixels.
    value : float
        Its pixels, in the images' range.
    stamped : float
        Share of the client's examples of other classes, in (0, 1].
    seed : int
        Decides which; a client stamps the same ones in every round.
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
        """Stamped examples of other classes are to be taken for the target."""
        rows = y != self.target
        return Goal(stamp(x[rows], self.size, self.value), y[rows], self.target)
