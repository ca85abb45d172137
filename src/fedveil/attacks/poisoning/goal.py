"""What a poisoner wants, and how far it got: success rate, source recall and main accuracy."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from fedveil.engines.seams import Behaviour
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, predict
from fedveil.registry import Registry

BEHAVIOURS: Registry[type[Behaviour]] = Registry("malicious.behaviour", {}, group="fedveil.behaviours")


@dataclass(frozen=True, eq=False)
class Goal:
    """Examples on which an attack wants to be wrong.

    Attributes
    ----------
    x, y : Tensor
        [N, ...] and [N]: the examples as the attack presents them, with their true classes.
    target : int or None
        The class they are to be taken for; None if any wrong one will do.
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
    """How one poisoned (or clean) run ended; all are rates in [0, 1].

    Attributes
    ----------
    success : float
        Share of the goal's examples taken for the target (or for any wrong class, where there is no target).
    recall : float
        Share of them taken for what they are: of the source class, in a label flip.
    accuracy : float
        Share of all test examples, unchanged, that are right.
    examples : int
        Of the goal.
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
    success = 1 - recall if goal.target is None else float((taken == goal.target).double().mean())
    return Poisoned(success, recall, accuracy, len(goal.x))


def goal_of(behaviour: Behaviour, x: Tensor, y: Tensor) -> Goal | None:
    """What a behaviour wants to be wrong on; None if it only wants to harm."""
    make = getattr(behaviour, "goal", None)
    return None if make is None else make(x, y)


@dataclass(frozen=True, eq=False, kw_only=True)
class Around(Behaviour):
    """Another behaviour with something around it: trains on the other's data, and has its goal.

    Parameters
    ----------
    of : Behaviour
        The other; by default one that trains honestly.
    """

    of: Behaviour = field(default_factory=Behaviour)

    def data(self, data: ClientData, partition: int, round_: int) -> ClientData:
        return self.of.data(data, partition, round_)

    def goal(self, x: Tensor, y: Tensor) -> Goal | None:
        """The other behaviour's, if it has one."""
        return goal_of(self.of, x, y)
