"""Aggregation rules: the base class with its two halves, reduce and step, and the plain means."""

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
    """State of a rule that has no memory."""


def require_rule(field: str, value: Any) -> None:
    """Refuse anything but an aggregation rule, such as its class or its name.

    Raises
    ------
    FieldError
        With the way to write it.
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
    """Rule that turns the updates of a round into the next model.

    A rule is a frozen dataclass; its memory is an explicit state.

    Attributes
    ----------
    identity_step : bool
        Whether `step` only adds the reduced update, so that the noise may go on the output (order "printed").
    columnwise : bool
        Whether a coordinate of the reduced update follows from that coordinate of the updates and the weights alone.
    working_copies : int
        How many stacks of all updates `reduce` makes beside those that it gets: what a server needs room for.
    linear : bool
        Whether the reduced update is the weighted sum, so that factors on updates may become factors on weights.

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
        """Return weights [n] (float64, summing to 1) for n replies; `counts` are their example counts, if sent."""
        return even(n)

    def planned_weights(self, counts: Tensor | None, n: int, cohort: int) -> Tensor:
        """Return weights [n] of n replies in a planned cohort: at most 1/cohort each, so that absent clients weigh 0.

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
        """Return the rule of one round, with its state, draws or public data; most rules do not change.

        Parameters
        ----------
        state : object
            State of the rule.
        source : Source
            Source of the round; a rule that draws takes a child of it.
        public_update : Tensor, optional
            [d], update that the server trained on public data.
        """
        return self

    @property
    def by_examples(self) -> bool:
        """Whether weights follow the clients' example counts."""
        return False

    @property
    def least(self) -> int:
        """Fewest updates on which the rule works; engines count absent clients as zeros to reach it."""
        return 1

    def withstands(self, n: int) -> int:
        """Return the most malicious updates among n that the rule withstands."""
        return 0

    def admit(self, malicious: int, n: int) -> None:
        """Refuse more malicious updates than the rule withstands.

        Raises
        ------
        FieldError
            With the largest number.
        """
        most = self.withstands(n)
        if malicious > most:
            name = type(self).__name__
            raise FieldError(
                "malicious", malicious, f"{name} withstands at most {most} among {n} updates"
            )

    def _filled(self, **values: Any) -> Self:
        """Return a copy with values that are no parameters."""
        filled = copy(self)
        for name, value in values.items():
            object.__setattr__(filled, name, value)
        return filled

    def effective_weights(self, updates: Tensor, weights: Tensor) -> Tensor | None:
        """Return the share [n] (float64) of each update in the result; None if coordinates differ in it."""
        return None

    def bears(self, n: int) -> int:
        """Return `withstands`, under its former name."""
        return self.withstands(n)

    def shares(self, updates: Tensor, weights: Tensor) -> Tensor | None:
        """Return `effective_weights`, under its former name."""
        return self.effective_weights(updates, weights)

    @abstractmethod
    def reduce(self, updates: Tensor, weights: Tensor) -> Tensor:
        """Combine updates [n, d] with weights [n] into one update [d]; float64, and a tensor of its own.

        Noise is added before anything is rounded to the updates' type. In float32 one client would move a sum of many
        by more than its own share, because every later sum is rounded differently (at n = 20,000 by up to 7 C / n).
        """

    def step(self, model: Tensor, update: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Apply the reduced update [d] to the model [d]; return the next model, a tensor of its own, and state."""
        return model + update, state

    @abstractmethod
    def sensitivity(
        self,
        clip: float,
        weights: Tensor,
        relation: Relation,
    ) -> float | None:
        """Bound the Euclidean change of `reduce` when one client changes, with updates clipped to `clip`.

        The bound includes `rounding`; None if there is no bound. Zero-out replaces the client's update by zero and
        keeps all weights; replace-one replaces it by any other update within the clip.
        """

    def lipschitz(self, weights: Tensor) -> float | None:
        """Bound the change of `reduce` per unit of distance that one update moves; None if it can jump."""
        return None


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """Mean of the updates, uniform or weighted by example counts; the base of the mean rules.

    Parameters
    ----------
    weighting : {"uniform", "examples"}
        Uniform weights are public; weights by examples are as public as the counts.
    max_examples : int, optional
        Declared bound: a client counts as at most this many examples, whatever it reports. Formal noise with weights by
        examples needs it.
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
        """Return 1/cohort, or a client's share of the declared bound: min(count, bound) / (bound * cohort)."""
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
        """Return C times the largest weight (twice that for replace-one), with rounding."""
        return float(weights.max()) * clip * FACTOR[relation] * (1 + rounding(len(weights)))

    def lipschitz(self, weights: Tensor) -> float:
        """Return the largest weight."""
        return float(weights.max())


def even(n: int) -> Tensor:
    """Return equal weights [n], float64, that sum to 1."""
    return torch.full((n,), 1 / n, dtype=torch.float64)


def weighted_sum(rows: Rows, weights: Tensor, start: Tensor | None = None) -> Tensor:
    """Compute the weighted sum [d] (float64) of n rows, or of the rows less `start`; weights are [n]."""
    if isinstance(rows, Tensor) and len(blocks_of(*rows.shape)) == 1:
        return weights @ rows.to(torch.float64)
    return add_weighted(zeros(rows[0].shape[0]), rows, weights, start)


def add_weighted(
    total: Tensor,
    rows: Rows,
    weights: Tensor,
    start: Tensor | None = None,
) -> Tensor:
    """Add to a sum [d] (float64) n rows [d], or these minus `start`, with weights [n], two rows at a time."""
    for some, columns, part in parts_of(rows, start):
        total[columns].addmv_(part.t(), weights[some])
    return total


def rounding(n: int) -> float:
    """Bound the share that rounding adds to one client's influence on a float64 sum of n updates.

    In any order of n products w_i x_i, the result is off by at most g sum w_i |x_i| a coordinate. Here g = 2 n 2^-53
    covers the products, the sums and the sums of their blocks (Higham 2002, section 3.1). Over all coordinates that is
    at most g n w C, with w the largest weight, before and after the client's change. So it is 2 g n of its share w C,
    1.1e-6 at n = 50,000. Up to n = 1,000 it is left out, being below 1e-9.
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
    """FedAvg on the server, a proximal term on the clients (Li et al. 2020, arXiv 1812.06127).

    Parameters
    ----------
    mu : float
        Clients add mu/2 ||w - start||^2 to their loss. Engines hand it to local training.

    Examples
    --------
    >>> fv.Federation(model=model, clients=clients, method=fv.FedProx(mu=0.1)).run(1).models.shape
    torch.Size([1, 10])
    """

    mu: NonNegative = 0.5
