"""Gradients of single examples, formed or as products: norms, persons' means and clipped sums, in float64."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.layout import Layout

_SOUND = 1e-10  # how far products of a basis's rows may be from 0 or 1: ten thousand times what rounding leaves
_LONGEST = 1e100  # squared: beyond float32, and short enough that no product with a square below float64 is a length
_BLOCK = 1 << 18  # numbers that are held in float64 at once: they should stay in a core's cache

Named = list[tuple[str, Tensor]]


class Formed:
    """Gradients of some parameters that are formed; row i belongs to example i, as in `Products`.

    Parameters
    ----------
    rows : mapping of str to Tensor
        [B, ...] each, by name in the layout.
    """

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self._rows = {name: value.reshape(len(value), -1) for name, value in rows.items()}
        self.width = max(rows.shape[1] for rows in self._rows.values())  # numbers converted to float64 at once

    def squares(self) -> Tensor:
        """Squared norms [B], in float64."""
        return torch.stack([squared_norms(rows) for rows in self._rows.values()]).sum(0)

    def parts(self) -> list[Tensor]:
        """The float32 tensors [B, ...] that they are made of."""
        return list(self._rows.values())

    def drop(self, gone: Tensor) -> None:
        """Make the rows of some examples [B] 0: 0 times infinity is no 0."""
        self._rows = {name: without(rows, gone) for name, rows in self._rows.items()}

    def sum(self, scale: Tensor) -> Named:
        """(name in the layout, sum over the examples of scale [B] times gradient), a block converted at a time."""
        return [(name, _weighted(rows, scale)) for name, rows in self._rows.items()]

    def means(self, weights: Tensor, each: int, rows: slice) -> Named:
        """(name in the layout, weighted sums [U, *shape] of every `each` of these rows, with weights of them alone)."""
        means = []
        for name, every in self._rows.items():
            own = every[rows].to(torch.float64).view(-1, each, every.shape[1])
            means.append((name, torch.bmm(weights.view(-1, 1, each), own)[:, 0]))
        return means


class Products:
    """Gradients of a dense layer: outer products of output gradients and inputs (weight), output gradients (bias).

    Parameters
    ----------
    names : mapping of str to str
        The layout's names of ``weight`` and ``bias``.
    inputs : Tensor
        [B, in].
    grads : Tensor
        [out, B], of the outputs.
    lengths : Tensor, optional
        [B], the squared norms of the inputs, where they are known: then no input is infinite or NaN.
    """

    def __init__(self, names: Mapping[str, str], inputs: Tensor, grads: Tensor, lengths: Tensor | None = None) -> None:
        self._names, self._a, self._b, self._known = names, inputs, grads, lengths is not None
        self.width = inputs.shape[1]
        self._lengths = squared_norms(inputs) if lengths is None else lengths
        self._wide: Tensor | None = None  # output gradients in float64

    def squares(self) -> Tensor:
        """Squared norms [B]: products of two, and infinite where one is so long that the other may have got lost."""
        self._wide = self._b.to(torch.float64)
        own, lengths = (self._wide * self._wide).sum(0), self._lengths
        if self._b.dtype == torch.float64:
            own, lengths = (square.masked_fill(square > _LONGEST, math.inf) for square in (own, lengths))
        return own.addcmul(own, lengths) if "bias" in self._names else own.mul_(lengths)

    def parts(self) -> list[Tensor]:
        """Output gradients, and inputs unless they are the examples themselves."""
        return [self._b.T] if self._known else [self._a, self._b.T]

    def drop(self, gone: Tensor) -> None:
        """Make rows 0."""
        if not self._known and not all_finite(self._a):
            self._a = without(self._a, gone)
        if not all_finite(self._b):
            self._b, self._wide = self._b.masked_fill(gone, 0), None

    def sum(self, scale: Tensor) -> Named:
        """One product a block of rows, whose inputs are converted while they are in the cache."""
        scaled = (self._b if self._wide is None else self._wide) * scale
        step = max(1, _BLOCK // self.width)
        wide = self._a[:step].to(torch.float64, copy=True)
        weight = scaled[:, :step] @ wide
        for i in range(step, len(self._a), step):
            block = self._a[i : i + step]
            weight.addmm_(scaled[:, i : i + step], wide[: len(block)].copy_(block))  # in memory that is in the cache
        return self._named(weight, scaled.sum(1))

    def means(self, weights: Tensor, each: int, rows: slice) -> Named:
        """One product a unit."""
        a = self._a[rows].to(torch.float64).view(-1, each, self._a.shape[1])
        b = (self._b[:, rows] * weights).view(len(self._b), -1, each)
        return self._named(torch.bmm(b.transpose(0, 1), a), b.sum(2).T)

    def cores(self, weights: Tensor, rows: Tensor) -> Tensor:
        """B' R [U, out, each] of output gradients B with weights [B] and the rows R of `Bases`: one product a unit."""
        b = (self._b * weights).view(len(self._b), *rows.shape[:2])
        return torch.bmm(b.transpose(0, 1), rows)

    def spread(self, cores: Tensor, bases: "Bases") -> Named:
        """The sum of the mean gradients that cores stand for: one product of all units."""
        columns = cores.index_select(0, bases.places).transpose(0, 1).flatten(1)
        both = columns @ bases.basis.flatten(0, 1)
        return self._named(both[:, : self.width], both[:, -1])

    def _named(self, weight: Tensor, bias: Tensor) -> Named:
        named = [(self._names["weight"], weight)]
        return [*named, (self._names["bias"], bias)] if "bias" in self._names else named


@dataclass(frozen=True)
class Bases:
    """Factors A = R Q of persons' inputs at a dense head, where each has few; the rows of Q are orthonormal.

    A mean gradient B' A is (B' R) Q, and no longer than B' R, which is clipped: however badly terms cancel, what is
    added is bounded by what was measured. Both factors follow a person's own inputs alone.

    Attributes
    ----------
    rows : Tensor
        R [U, each, each] in float64, at the persons' places in a batch; 0 for dummies.
    basis : Tensor
        Q [m, each, in] of the m persons; with a bias [m, each, in + 1], for its input 1.
    places : Tensor
        [m], theirs.
    """

    rows: Tensor
    basis: Tensor
    places: Tensor

    @classmethod
    def of(cls, inputs: Tensor, present: Tensor, bias: bool) -> "Bases":
        """Factors of inputs [n, each, in] that are present [n, each] and finite.

        Each person is factorised alone, in memory of her own: kernels round by a matrix's place among others. Whose
        basis is not orthonormal (squares of her inputs are beyond float64) counts as zero: her rows are NaN.
        """
        wide = nn.functional.pad(inputs.to(torch.float64), (0, int(bias)), value=1.0).cpu()
        wide = wide.masked_fill(~(present & inputs.cpu().isfinite().all(2))[:, :, None], 0)
        if not len(wide):  # a lot of nobody
            none = inputs.new_zeros(wide.shape, dtype=torch.float64)
            return cls(none[:, :, : inputs.shape[1]], none, torch.arange(0, device=inputs.device))
        factors = [torch.linalg.qr(own.T) for own in wide]
        one = torch.eye(inputs.shape[1], dtype=torch.float64)
        sound = torch.tensor([bool(torch.dist(q.T @ q, one) < _SOUND) for q, _ in factors])[:, None, None]
        rows = torch.stack([r.T for _, r in factors]).where(sound, math.nan)
        basis = torch.stack([q.T for q, _ in factors]).where(sound, 0.0)
        return cls(rows.to(inputs.device), basis.to(inputs.device), torch.arange(len(rows), device=inputs.device))

    def at(self, chosen: Tensor, places: Tensor | None, count: int) -> "Bases":
        """Those of some persons, in their order, at places among `count`; see `Units.at`."""
        where = (torch.arange(len(chosen)) if places is None else places).to(self.places)
        rows = self.rows.new_zeros(count, *self.rows.shape[1:])
        rows[where] = self.rows[chosen]
        return Bases(rows, self.basis if len(chosen) == len(self.basis) else self.basis[chosen], where)


Piece = Formed | Products


class Gradients:
    """Gradients of single examples by a layout's parameters.

    Parameters
    ----------
    pieces : sequence of Piece
        Each parameter is in one.
    layout : Layout
        Of the model.
    """

    def __init__(self, pieces: Sequence[Piece], layout: Layout) -> None:
        self._pieces, self._layout = pieces, layout

    @property
    def squares(self) -> Tensor:
        """Squared norms [B], in float64."""
        first, *others = [piece.squares() for piece in self._pieces]
        for other in others:
            first = first + other
        return first

    def parts(self) -> list[Tensor]:
        """Everything that they are made of, as tensors [B, ...]."""
        return [part for piece in self._pieces for part in piece.parts()]

    def drop(self, gone: Tensor) -> None:
        """Make the rows of some examples [B] 0."""
        for piece in self._pieces:
            piece.drop(gone)

    def sum(self, scale: Tensor) -> Tensor:
        """Sum [d] with factors [B] of float64; rows that are not finite must have been dropped."""
        return self.flat([pair for piece in self._pieces for pair in piece.sum(scale)])

    def flat(self, pairs: Named) -> Tensor:
        """Values by name as a vector [d]."""
        named = dict(pairs)
        return torch.cat([named[name].reshape(-1) for name in self._layout.names])

    def means(self, weights: Tensor, each: int) -> Iterator[list[Tensor]]:
        """Weighted sums of every `each` rows, formed, with weights [B]: blocks of U units, each the layout's arrays.

        Yields
        ------
        list of Tensor
            [U, size] of float64 each; side by side they are vectors [U, d].
        """
        units = max(1, _BLOCK // max(self._layout.size, each * max(piece.width for piece in self._pieces))) * each
        gone = weights == 0
        if gone.any():
            self.drop(gone)
        for start in range(0, len(weights), units):
            rows = slice(start, start + units)
            named = dict(pair for piece in self._pieces for pair in piece.means(weights[rows], each, rows))
            yield [named[name].flatten(1) for name in self._layout.names]

    def head(self, weights: Tensor) -> Products:
        """The piece of a dense head, which has no other; its rows without a weight [B] are 0."""
        [piece] = self._pieces
        assert isinstance(piece, Products)
        piece.drop(weights == 0)
        return piece


GradientsAndLosses = tuple[Gradients, Tensor, Tensor]  # and losses [B], and which examples [B] have both


def squared_norms(rows: Tensor) -> Tensor:
    """Squared norms [B] of rows [B, ...], in float64."""
    lengths: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1, dtype=torch.float64)
    return lengths.square_()


def all_finite(values: Tensor) -> bool:
    """Whether there is no infinity and no NaN (nor a sum beyond all numbers) among values; integers have none."""
    return not values.is_floating_point() or math.isfinite(float(values.sum()))


def without(rows: Tensor, gone: Tensor) -> Tensor:
    """Rows [B, ...] with 0 where `gone` [B] is set, whatever was there."""
    return rows.masked_fill(gone.view(-1, *[1] * (rows.dim() - 1)), 0)


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), step):
        total += weights[start : start + step] @ rows[start : start + step].to(torch.float64)
    return total
