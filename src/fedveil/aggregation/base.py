"""Aggregation rules: the base class with its two halves (reduce and step), and the plain means."""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedveil.accounting import Relation
from fedveil.accounting.events import FACTOR
from fedveil.checks import Count, NonNegative, Parameters
from fedveil.clipping import Rows, blocks_of, parts_of
from fedveil.errors import FieldError
from fedveil.mechanisms import Source, zeros

Weighting = Literal["uniform", "examples"]

_MANY = (
    1000  # clients up to which rounding in float64 adds less than 1e-9 to one client's influence
)


@dataclass(frozen=True)
class NoState:
    """State of a rule that keeps nothing between rounds."""


def require_rule(field: str, value: Any) -> None:
    """Refuse anything but an aggregation rule, such as its class or its name.

    Raises
    ------
    FieldError
        If the value is not a rule; the text shows how to write one.
    """
    if isinstance(value, type) and issubclass(value, Aggregator):
        raise FieldError(field, value.__name__, f"is a class: write {value.__name__}()")
    if isinstance(value, int | float):
        accepted = f"is no rule: give numbers by name, noise_multiplier={value} or epsilon={value} with its rounds"
        raise FieldError(field, value, accepted)
    if not isinstance(value, Aggregator):
        raise FieldError(
            field, value, "must be a rule, such as fedveil.FedAvg() or fedveil.FedMedian()"
        )


class Aggregator(Parameters, ABC):
    """Aggregation rule: turns the updates of a round into the next model.

    A rule is a frozen dataclass of parameters. `reduce` combines the updates; `step` applies the result to the model.
    Everything that a rule keeps between rounds is in an explicit state.

    Attributes
    ----------
    identity_step : bool
        Whether `step` only adds the reduced update, so that the noise may go on the output (order "printed").
    columnwise : bool
        Whether each coordinate of the reduced update depends only on the same coordinate of the updates, and on the
        weights.
    working_copies : int
        Number of further copies of all updates that `reduce` makes; a server needs memory for them.
    linear : bool
        Whether the reduced update is the weighted sum of the updates. Then a factor on an update can become a factor on
        its weight.

    Examples
    --------
    >>> fv.FedAvg().reduce(updates, equal)
    tensor([10.8000,  1.8200], dtype=torch.float64)
    >>> fv.methods.build("vanilla", fv.FedMedian()).server.rule  # any rule fits a method
    FedMedian()
    """

    identity_step: ClassVar[bool] = True
    columnwise: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    working_copies: ClassVar[int] = 0

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """Return the state before the first round, for models of d coordinates."""
        return NoState()

    def weights(self, counts: Tensor | None, n: int) -> Tensor:
        """Return the weights [n] (float64, sum 1) of n replies; `counts` are their example counts, if they were sent."""
        return even(n)

    def planned_weights(self, counts: Tensor | None, n: int, cohort: int) -> Tensor:
        """Return the weights [n] of n replies in a planned cohort, at most 1/cohort each; absent clients count as zero updates.

        Raises
        ------
        FieldError
            If a weight has no public bound.
        """
        return torch.full((n,), 1 / cohort, dtype=torch.float64)

    @property
    def needs(self) -> frozenset[str]:
        """Fields of ServerFacts that `for_round` needs: nothing or ``{"public_update"}``."""
        return frozenset()

    def for_round(
        self,
        state: Any,
        source: Source,
        public_update: Tensor | None = None,
    ) -> "Aggregator":
        """Return the rule for one round, with that round's state, random draws or public data; most rules return themselves.

        Parameters
        ----------
        state : object
            State of the rule.
        source : Source
            Randomness of the round; a rule that needs random numbers uses a child of it.
        public_update : Tensor, optional
            [d], update by the server's training on public data.
        """
        return self

    @property
    def by_examples(self) -> bool:
        """Whether weights depend on the clients' example counts."""
        return False

    @property
    def least(self) -> int:
        """Least number of updates for which the rule works; engines add zeros for absent clients to reach it."""
        return 1

    def withstands(self, n: int) -> int:
        """Return how many malicious updates among n the rule withstands."""
        return 0

    def admit(self, malicious: int, n: int) -> None:
        """Refuse a number of malicious updates that the rule does not withstand.

        Raises
        ------
        FieldError
            If there are more than `withstands`; the text gives that number.
        """
        most = self.withstands(n)
        if malicious > most:
            name = type(self).__name__
            raise FieldError(
                "malicious", malicious, f"{name} withstands at most {most} among {n} updates"
            )

    def _filled(self, **values: Any) -> Self:
        """Return a copy with further attributes that are no parameters."""
        filled = copy(self)
        for name, value in values.items():
            object.__setattr__(filled, name, value)
        return filled

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor | None:
        """Return the weight [n] (float64) that each update has in the result; None if it differs between coordinates."""
        return None

    def bears(self, n: int) -> int:
        """Return `withstands`, under its former name."""
        return self.withstands(n)

    def shares(self, updates: Tensor, weights: Tensor) -> Tensor | None:
        """Return `effective_weights`, under its former name."""
        return self.effective_weights(updates, weights)

    @abstractmethod
    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Combine updates [n, d] with weights [n] to one new update [d], in float64.

        It is float64 because noise is added before rounding to the updates' type. In float32 one client could move a
        sum by more than its own share, at n = 20,000 by up to 7 C / n. Each later partial sum would be rounded
        differently.
        """

    def step(self, model: Tensor, update: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Apply the reduced update [d] to the model [d]; return the next model (a new tensor) and the next state."""
        return model + update, state

    @abstractmethod
    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Return a bound on how far `reduce` moves (Euclidean) if one client changes, with updates clipped to `clip`.

        The bound includes `rounding`; None if there is no bound. Zero-out replaces the client's update by zero and
        keeps all weights; replace-one replaces it by any other update within the clip.
        """

    def lipschitz(self, weights: Tensor) -> float | None:
        """Return a bound on how far `reduce` moves for each unit of distance that one update moves; None if it can jump."""
        return None


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """Mean of the updates, uniform or weighted by example counts; base class of the mean rules.

    Parameters
    ----------
    weighting : {"uniform", "examples"}
        Uniform weights are public; weights by examples are as public as the counts.
    max_examples : int, optional
        Declared bound: a client never counts as more examples than this. Formal noise with weights by examples needs
        it.
    """

    weighting: Weighting = "uniform"
    max_examples: Count | None = None

    columnwise: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_examples is not None and self.weighting == "uniform":
            raise FieldError(
                "max_examples", self.max_examples, 'is for weighting="examples"; leave it out'
            )

    @property
    def by_examples(self) -> bool:
        """Whether `weighting` is "examples"."""
        return self.weighting == "examples"

    def weights(self, counts: Tensor | None, n: int) -> Tensor:
        """Return uniform weights, or weights proportional to the counts."""
        if self.weighting == "uniform":
            return super().weights(counts, n)
        counted = self._counted(counts, n)
        total = counted.sum()
        if not (torch.isfinite(total) and total > 0):
            raise FieldError(
                "counts", counted.tolist(), "must be finite, not negative, and not all 0"
            )
        return counted / total

    def planned_weights(self, counts: Tensor | None, n: int, cohort: int) -> Tensor:
        """Return 1/cohort, or with weights by examples min(count, bound) / (bound * cohort)."""
        if self.weighting == "uniform":
            return super().planned_weights(counts, n, cohort)
        if self.max_examples is None:
            raise FieldError(
                "max_examples", None, "formal noise needs a declared bound on a client's examples"
            )
        return self._counted(counts, n) / (self.max_examples * cohort)

    def _counted(self, counts: Tensor | None, n: int) -> Tensor:
        if counts is None or len(counts) != n:
            raise FieldError(
                "weighting",
                "examples",
                'needs every reply to carry its count; use weighting="uniform"',
            )
        counted = counts.to(torch.float64)
        if self.max_examples is None:
            return counted
        return counted.clamp(max=self.max_examples)

    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        return weighted_sum(updates, weights)

    def sensitivity(self, clip: float, weights: Tensor, relation: Relation) -> float:
        """Return C times the largest weight (twice that for replace-one), plus rounding."""
        return float(weights.max()) * clip * FACTOR[relation] * (1 + rounding(len(weights)))

    def lipschitz(self, weights: Tensor) -> float:
        """Return the largest weight."""
        return float(weights.max())


def even(n: int) -> Tensor:
    """Return equal weights [n] (float64, sum 1)."""
    return torch.full((n,), 1 / n, dtype=torch.float64)


def weighted_sum(rows: Rows, weights: Tensor, start: Tensor | None = None) -> Tensor:
    """Compute the weighted sum [d] (float64) of n rows [d], or of the rows less `start`, with weights [n]."""
    if isinstance(rows, Tensor) and len(blocks_of(*rows.shape)) == 1:
        return weights @ rows.to(torch.float64)
    return add_weighted(zeros(rows[0].shape[0]), rows, weights, start)


def add_weighted(
    total: Tensor,
    rows: Rows,
    weights: Tensor,
    start: Tensor | None = None,
) -> Tensor:
    """Add the weighted rows [d], or the rows less `start`, to a sum [d] (float64) in place, two rows at a time."""
    for some, columns, part in parts_of(rows, start):
        total[columns].addmv_(part.t(), weights[some])
    return total


def rounding(n: int) -> float:
    """Return a bound on the relative increase of one client's influence by rounding, in a float64 sum of n updates.

    In any order of n products w_i x_i, the error is at most g sum w_i |x_i| in each coordinate. Here g = 2 n 2^-53
    covers the products, the sums and the sums of their blocks (Higham 2002, section 3.1). Over all coordinates that is
    at most g n w C, with w the largest weight, before and after the client's change. So it is the fraction 2 g n of the
    client's share w C, 1.1e-6 at n = 50,000. Up to n = 1,000 it is below 1e-9 and counts as 0.
    """
    if n <= _MANY:
        return 0.0
    return n * n * 2.0**-51


@dataclass(frozen=True)
class FedAvg(WeightedMean):
    """Federated averaging (McMahan et al. 2017, arXiv 1602.05629): the model moves by the mean update.

    Examples
    --------
    >>> fv.FedAvg().reduce(updates, equal)
    tensor([10.8000,  1.8200], dtype=torch.float64)
    >>> fv.FedAvg().sensitivity(
    ...     1.0, equal, "zero-out"
    ... )  # of the mean of five updates, each clipped to 1
    0.2
    """


@dataclass(frozen=True)
class FedProx(WeightedMean):
    """FedAvg on the server, with a proximal term in the clients' loss (Li et al. 2020, arXiv 1812.06127).

    Parameters
    ----------
    mu : float
        Clients add mu/2 ||w - start||^2 to their loss; engines pass mu to local training.

    Examples
    --------
    >>> fv.Federation(model=model, clients=clients, method=fv.FedProx(mu=0.1)).run(1).models.shape
    torch.Size([1, 10])
    """

    mu: NonNegative = 0.5
