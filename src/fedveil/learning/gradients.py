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
        self._rows: dict[str, Tensor] = {}
        self.width = 0  # numbers converted to float64 at once
        for name, value in rows.items():
            flat = value.reshape(len(value), -1)
            self._rows[name] = flat
            self.width = max(self.width, flat.shape[1])

    def squares(self) -> Tensor:
        """Return squared norms [B], in float64."""
        squares = [squared_norms(rows) for rows in self._rows.values()]
        return torch.stack(squares).sum(0)

    def parts(self) -> list[Tensor]:
        """Return the float32 tensors [B, ...] that the gradients are made of."""
        return list(self._rows.values())

    def drop(self, gone: Tensor) -> None:
        """Make the rows of some examples [B] 0: 0 times infinity is no 0."""
        for name, rows in self._rows.items():
            self._rows[name] = without(rows, gone)

    def sum(self, scale: Tensor) -> Named:
        """Sum scale [B] times gradient over the examples, by name in the layout; a block is converted at a time."""
        return [(name, _weighted(rows, scale)) for name, rows in self._rows.items()]

    def means(self, weights: Tensor, each: int, rows: slice) -> Named:
        """Return weighted sums [U, *shape] of every `each` of these rows, by name; `weights` are of them alone."""
        means: Named = []
        for name, every in self._rows.items():
            own = every[rows].to(torch.float64).view(-1, each, every.shape[1])
            mean = torch.bmm(weights.view(-1, 1, each), own)[:, 0]
            means.append((name, mean))
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

    def __init__(
        self,
        names: Mapping[str, str],
        inputs: Tensor,
        grads: Tensor,
        lengths: Tensor | None = None,
    ) -> None:
        self._names = names
        self._inputs = inputs
        self._grads = grads
        self._inputs_are_finite = lengths is not None
        self._lengths = squared_norms(inputs) if lengths is None else lengths
        self._wide: Tensor | None = None  # output gradients in float64
        self.width = inputs.shape[1]

    def squares(self) -> Tensor:
        """Return squared norms [B]: products of two lengths, infinite where one may have absorbed the other."""
        self._wide = self._grads.to(torch.float64)
        own = (self._wide * self._wide).sum(0)
        lengths = self._lengths
        if self._grads.dtype == torch.float64:
            own = own.masked_fill(own > _LONGEST, math.inf)
            lengths = lengths.masked_fill(lengths > _LONGEST, math.inf)
        if "bias" in self._names:
            return own.addcmul(own, lengths)
        return own.mul_(lengths)

    def parts(self) -> list[Tensor]:
        """Return output gradients, and inputs unless they are the examples themselves."""
        if self._inputs_are_finite:
            return [self._grads.T]
        return [self._inputs, self._grads.T]

    def drop(self, gone: Tensor) -> None:
        """Make the rows of some examples [B] 0."""
        if not self._inputs_are_finite and not all_finite(self._inputs):
            self._inputs = without(self._inputs, gone)
        if not all_finite(self._grads):
            self._grads = self._grads.masked_fill(gone, 0)
            self._wide = None

    def sum(self, scale: Tensor) -> Named:
        """Sum scale [B] times gradient: one product a block of rows, converted while they are in the cache."""
        grads = self._grads if self._wide is None else self._wide
        scaled = grads * scale
        step = max(1, _BLOCK // self.width)
        wide = self._inputs[:step].to(torch.float64, copy=True)
        weight = scaled[:, :step] @ wide
        for start in range(step, len(self._inputs), step):
            block = self._inputs[start : start + step]
            converted = wide[: len(block)].copy_(block)  # in memory that is in the cache
            weight.addmm_(scaled[:, start : start + step], converted)
        return self._named(weight, scaled.sum(1))

    def means(self, weights: Tensor, each: int, rows: slice) -> Named:
        """Return weighted sums of every `each` of these rows: one product a unit."""
        inputs = self._inputs[rows].to(torch.float64).view(-1, each, self.width)
        grads = self._by_unit(self._grads[:, rows] * weights, each)
        weight = torch.bmm(grads.transpose(0, 1), inputs)
        return self._named(weight, grads.sum(2).T)

    def cores(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return B' R [U, out, each] of output gradients B with weights [B] and the rows R of `Bases`."""
        grads = self._by_unit(self._grads * weights, rows.shape[1])
        return torch.bmm(grads.transpose(0, 1), rows)

    def spread(self, cores: Tensor, bases: "Bases") -> Named:
        """Sum the mean gradients that cores stand for: one product of all units."""
        columns = cores.index_select(0, bases.places).transpose(0, 1).flatten(1)
        both = columns @ bases.basis.flatten(0, 1)
        return self._named(both[:, : self.width], both[:, -1])

    def _by_unit(self, grads: Tensor, each: int) -> Tensor:
        """Return output gradients [out, B] as [out, U, each]."""
        return grads.view(len(grads), -1, each)

    def _named(self, weight: Tensor, bias: Tensor) -> Named:
        named = [(self._names["weight"], weight)]
        if "bias" in self._names:
            named.append((self._names["bias"], bias))
        return named


@dataclass(frozen=True)
class Bases:
    """Factors A = R Q of persons' inputs at a dense head, where each has few; the rows of Q are orthonormal.

    A mean gradient B' A is (B' R) Q, and no longer than M = B' R, which is clipped. Four things hold:

    - What is added is no longer than what was measured: |M Q| is at most |M| times Q's largest singular
      value, 1 to within 1e-14. A Gram matrix has no such bound: terms of 1e10 C that cancel can hide a length of 100 C.
    - Bits: R and Q follow the person's own inputs in their order, and the number of threads. Another number of threads
      finds them anew. Data that are read at each access are factorised at each step.
    - One path for all: whether factors are used follows public numbers alone (persons planned, rows each, shape of the
      layer). Asked of the real persons, one more person turned everybody to other arithmetic (5,462 C).
    - The sum: one product over all persons' rows has lengths that add up to m r^(1/2) C for m persons of r rows. So
      rounding is at most m^2 r^(3/2) 2^-53 C, and the allowance for it counts the rows in place of the persons.

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
        """Factorise inputs [n, each, in] that are present [n, each] and finite.

        Each person is factorised alone, in memory of her own: kernels round by a matrix's place among others. A person
        whose basis is not orthonormal (squares of her inputs are beyond float64) counts as zero: her rows are NaN.
        """
        device = inputs.device
        with_one = nn.functional.pad(inputs.to(torch.float64), (0, int(bias)), value=1.0).cpu()
        here = present & inputs.cpu().isfinite().all(2)
        wide = with_one.masked_fill(~here[:, :, None], 0)
        places = torch.arange(len(wide), device=device)
        if not len(wide):  # a lot of nobody
            none = inputs.new_zeros(wide.shape, dtype=torch.float64)
            return cls(none[:, :, : inputs.shape[1]], none, places)
        one = torch.eye(inputs.shape[1], dtype=torch.float64)
        rows: list[Tensor] = []
        basis: list[Tensor] = []
        sound: list[bool] = []
        for own in wide:
            q, r = torch.linalg.qr(own.T)
            rows.append(r.T)
            basis.append(q.T)
            sound.append(bool(torch.dist(q.T @ q, one) < _SOUND))
        orthonormal = torch.tensor(sound)[:, None, None]
        all_rows = torch.stack(rows).where(orthonormal, math.nan)
        all_basis = torch.stack(basis).where(orthonormal, 0.0)
        return cls(all_rows.to(device), all_basis.to(device), places)

    def at(self, chosen: Tensor, places: Tensor | None, count: int) -> "Bases":
        """Return those of some persons, in their order, at places among `count`; see `Units.at`."""
        taken = torch.arange(len(chosen)) if places is None else places
        where = taken.to(self.places)
        rows = self.rows.new_zeros(count, *self.rows.shape[1:])
        rows[where] = self.rows[chosen]
        everybody = len(chosen) == len(self.basis)
        basis = self.basis if everybody else self.basis[chosen]
        return Bases(rows, basis, where)


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
        self._pieces = pieces
        self._layout = layout

    @property
    def squares(self) -> Tensor:
        """Squared norms [B], in float64."""
        total, *others = [piece.squares() for piece in self._pieces]
        for other in others:
            total = total + other
        return total

    def parts(self) -> list[Tensor]:
        """Return everything that the gradients are made of, as tensors [B, ...]."""
        parts: list[Tensor] = []
        for piece in self._pieces:
            parts += piece.parts()
        return parts

    def drop(self, gone: Tensor) -> None:
        """Make the rows of some examples [B] 0."""
        for piece in self._pieces:
            piece.drop(gone)

    def sum(self, scale: Tensor) -> Tensor:
        """Sum [d] with factors [B] of float64; rows that are not finite must have been dropped."""
        pairs: Named = []
        for piece in self._pieces:
            pairs += piece.sum(scale)
        return self.flat(pairs)

    def flat(self, pairs: Named) -> Tensor:
        """Return values by name as a vector [d]."""
        named = dict(pairs)
        return torch.cat([named[name].reshape(-1) for name in self._layout.names])

    def means(self, weights: Tensor, each: int) -> Iterator[list[Tensor]]:
        """Form weighted sums of every `each` rows with weights [B], in blocks of U units, by the layout's arrays.

        Yields
        ------
        list of Tensor
            [U, size] of float64 each; side by side they are vectors [U, d].
        """
        widest = max(piece.width for piece in self._pieces)
        numbers = max(self._layout.size, each * widest)  # of one unit
        step = max(1, _BLOCK // numbers) * each
        gone = weights == 0
        if gone.any():
            self.drop(gone)
        for start in range(0, len(weights), step):
            rows = slice(start, start + step)
            named: dict[str, Tensor] = {}
            for piece in self._pieces:
                named.update(piece.means(weights[rows], each, rows))
            yield [named[name].flatten(1) for name in self._layout.names]

    def head(self, weights: Tensor) -> Products:
        """Return the piece of a dense head, which has no other; its rows without a weight [B] are 0."""
        [piece] = self._pieces
        assert isinstance(piece, Products)
        piece.drop(weights == 0)
        return piece


GradientsAndLosses = tuple[
    Gradients, Tensor, Tensor
]  # and losses [B], and which examples [B] have both


def squared_norms(rows: Tensor) -> Tensor:
    """Return squared norms [B] of rows [B, ...], in float64."""
    flat = rows.reshape(len(rows), -1)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    return lengths.square_()


def all_finite(values: Tensor) -> bool:
    """Return whether no value is infinite or NaN, and their sum is none; integers are finite."""
    if not values.is_floating_point():
        return True
    return math.isfinite(float(values.sum()))


def without(rows: Tensor, gone: Tensor) -> Tensor:
    """Return rows [B, ...] with 0 where `gone` [B] is set, whatever was there."""
    trailing = [1] * (rows.dim() - 1)
    return rows.masked_fill(gone.view(-1, *trailing), 0)


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum weights [B] times rows [B, d] in float64, a block of rows at a time."""
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        total += weights[block] @ rows[block].to(torch.float64)
    return total
