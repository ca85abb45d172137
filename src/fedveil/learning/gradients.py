"""Gradients of single examples, as tensors or as factors of products, with their norms and clipped sums in float64."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.layout import Layout

_SOUND = 1e-10  # tolerated distance of products of a basis's rows from 0 or 1: ten thousand times what rounding causes
_LONGEST = 1e100  # squared: beyond float32, and so short that no product with a squared length that underflows float64 is a length
_BLOCK = 1 << 18  # numbers held in float64 at once; they should fit into a core's cache

Named = list[tuple[str, Tensor]]


class Formed:
    """Gradients of some parameters as whole tensors, one row for each example; `Products` keeps factors instead.

    Parameters
    ----------
    rows : mapping of str to Tensor
        [B, ...] each, by the parameter's name in the layout.
    """

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self._rows: dict[str, Tensor] = {}
        self.width = 0  # numbers converted to float64 at once
        for name, value in rows.items():
            flat = value.reshape(len(value), -1)
            self._rows[name] = flat
            self.width = max(self.width, flat.shape[1])

    def squares(self) -> Tensor:
        """Return the squared norms [B] over all these parameters, in float64."""
        squares = [squared_norms(rows) for rows in self._rows.values()]
        return torch.stack(squares).sum(0)

    def parts(self) -> list[Tensor]:
        """Return the tensors [B, ...] of the gradients."""
        return list(self._rows.values())

    def drop(self, gone: Tensor) -> None:
        """Set the gradients of the examples marked in `gone` [B] to 0. A factor 0 would not remove an infinity."""
        for name, rows in self._rows.items():
            self._rows[name] = without(rows, gone)

    def sum(self, scale: Tensor) -> Named:
        """Return the sum over examples of scale [B] times gradient, by name, in float64; blocks are converted one at a time."""
        return [(name, _weighted(rows, scale)) for name, rows in self._rows.items()]

    def means(self, weights: Tensor, each: int, rows: slice) -> Named:
        """Return the weighted sum of each group of `each` consecutive rows, by name, [U, size] in float64.

        `weights` belong to the rows in the slice `rows`, a whole number of groups.
        """
        means: Named = []
        for name, every in self._rows.items():
            own = every[rows].to(torch.float64).view(-1, each, every.shape[1])
            mean = torch.bmm(weights.view(-1, 1, each), own)[:, 0]
            means.append((name, mean))
        return means


class Products:
    """Gradients of a dense layer as factors: an example's weight gradient is an outer product of two vectors.

    The factors are the output gradient and the input. The gradient of the bias is the output gradient itself.

    Parameters
    ----------
    names : mapping of str to str
        Names of ``weight`` and ``bias`` in the layout.
    inputs : Tensor
        [B, in], inputs of the layer.
    grads : Tensor
        [out, B], gradients of the outputs.
    lengths : Tensor, optional
        [B], squared norms of the inputs if they are known. Then no input is infinite or NaN.
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
        """Return the squared norms [B], each the product of two squared lengths.

        The result is infinite if one length is so large that it could hide an underflow of the other.
        """
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
        """Return the tensors to be checked for infinities: output gradients, and inputs unless their norms are known."""
        if self._inputs_are_finite:
            return [self._grads.T]
        return [self._inputs, self._grads.T]

    def drop(self, gone: Tensor) -> None:
        """Set the factors of the examples marked in `gone` [B] to 0."""
        if not self._inputs_are_finite and not all_finite(self._inputs):
            self._inputs = without(self._inputs, gone)
        if not all_finite(self._grads):
            self._grads = self._grads.masked_fill(gone, 0)
            self._wide = None

    def sum(self, scale: Tensor) -> Named:
        """Return the sum over examples of scale [B] times gradient, by name; one matrix product for each block of rows."""
        grads = self._grads if self._wide is None else self._wide
        scaled = grads * scale
        step = max(1, _BLOCK // self.width)
        wide = self._inputs[:step].to(torch.float64, copy=True)
        weight = scaled[:, :step] @ wide
        for start in range(step, len(self._inputs), step):
            block = self._inputs[start : start + step]
            converted = wide[: len(block)].copy_(block)  # into memory that is already in the cache
            weight.addmm_(scaled[:, start : start + step], converted)
        return self._named(weight, scaled.sum(1))

    def means(self, weights: Tensor, each: int, rows: slice) -> Named:
        """Return the weighted sum of each group of `each` consecutive rows, by one matrix product for each unit."""
        inputs = self._inputs[rows].to(torch.float64).view(-1, each, self.width)
        grads = self._by_unit(self._grads[:, rows] * weights, each)
        weight = torch.bmm(grads.transpose(0, 1), inputs)
        return self._named(weight, grads.sum(2).T)

    def cores(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return M = B' R as [U, out, each], from output gradients B times weights [B] and the factors R = `rows` (`Bases`)."""
        grads = self._by_unit(self._grads * weights, rows.shape[1])
        return torch.bmm(grads.transpose(0, 1), rows)

    def spread(self, cores: Tensor, bases: "Bases") -> Named:
        """Return the sum over units of M Q, from M = `cores` [U, out, each], by one product over all units."""
        columns = cores.index_select(0, bases.places).transpose(0, 1).flatten(1)
        both = columns @ bases.basis.flatten(0, 1)
        return self._named(both[:, : self.width], both[:, -1])

    def _by_unit(self, grads: Tensor, each: int) -> Tensor:
        """Return the output gradients [out, B] as [out, U, each]."""
        return grads.view(len(grads), -1, each)

    def _named(self, weight: Tensor, bias: Tensor) -> Named:
        named = [(self._names["weight"], weight)]
        if "bias" in self._names:
            named.append((self._names["bias"], bias))
        return named


@dataclass(frozen=True)
class Bases:
    """Factors A = R Q of each person's inputs A to a model of one dense layer; the rows of Q are orthonormal.

    They save time if each person has few rows. A person's mean gradient is B' A, with weighted output gradients B. It
    equals M Q with M = B' R, and is no longer than M; M is clipped. Four things hold:

    - Length: |M Q| is at most |M| times Q's largest singular value, which is 1 to within 1e-14. So the added vector is
      no longer than the measured one. A Gram matrix has no such bound: terms of 1e10 C that cancel can hide a length of
      100 C.
    - Bits: R and Q depend on the person's own inputs in their order, and on the number of threads. If the number of
      threads changes, they are computed again. Data that are read at each access are factorised at each step.
    - One path for all: public numbers alone decide whether factors are used (planned persons, rows of each, shape of
      the layer). When the real number of persons decided, one more person changed the arithmetic for everybody (by
      5,462 C).
    - Sum: in one product over all persons' rows, lengths add up to at most m r^(1/2) C for m persons of r rows. So
      rounding is at most m^2 r^(3/2) 2^-53 C, and the allowance for rounding counts rows instead of persons.

    Attributes
    ----------
    rows : Tensor
        R as [U, each, each] in float64, at the persons' places in a batch; 0 for dummies.
    basis : Tensor
        Q as [m, each, in] of the m persons; with a bias [m, each, in + 1], as its input is 1.
    places : Tensor
        [m], places of these persons.
    """

    rows: Tensor
    basis: Tensor
    places: Tensor

    @classmethod
    def of(cls, inputs: Tensor, present: Tensor, bias: bool) -> "Bases":
        """Factorise the inputs [n, each, in] of n persons, as far as they are present [n, each] and finite.

        Each person is factorised alone, in memory of her own, because rounding in kernels depends on a matrix's place
        among others. If the squares of her inputs exceed float64, her basis is not orthonormal. Her rows are then NaN,
        and she counts as zero.
        """
        device = inputs.device
        with_one = nn.functional.pad(inputs.to(torch.float64), (0, int(bias)), value=1.0).cpu()
        here = present & inputs.cpu().isfinite().all(2)
        wide = with_one.masked_fill(~here[:, :, None], 0)
        places = torch.arange(len(wide), device=device)
        if not len(wide):  # an empty lot
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
        """Return the factors of the chosen persons, in their order, put at `places` among `count` places; see `Units.at`."""
        taken = torch.arange(len(chosen)) if places is None else places
        where = taken.to(self.places)
        rows = self.rows.new_zeros(count, *self.rows.shape[1:])
        rows[where] = self.rows[chosen]
        everybody = len(chosen) == len(self.basis)
        basis = self.basis if everybody else self.basis[chosen]
        return Bases(rows, basis, where)


Piece = Formed | Products


class Gradients:
    """Gradients of single examples for all parameters of a layout.

    Parameters
    ----------
    pieces : sequence of Piece
        Gradients of some of the parameters each; every parameter is in exactly one piece.
    layout : Layout
        Layout of the model.
    """

    def __init__(self, pieces: Sequence[Piece], layout: Layout) -> None:
        self._pieces = pieces
        self._layout = layout

    @property
    def squares(self) -> Tensor:
        """Squared norms [B] over all parameters, in float64."""
        total, *others = [piece.squares() for piece in self._pieces]
        for other in others:
            total = total + other
        return total

    def parts(self) -> list[Tensor]:
        """Return the tensors [B, ...] of all pieces, for a check that they are finite."""
        parts: list[Tensor] = []
        for piece in self._pieces:
            parts += piece.parts()
        return parts

    def drop(self, gone: Tensor) -> None:
        """Set the gradients of the examples marked in `gone` [B] to 0."""
        for piece in self._pieces:
            piece.drop(gone)

    def sum(self, scale: Tensor) -> Tensor:
        """Return the sum [d] over examples of scale [B] times gradient, in float64. Drop examples that are not finite first."""
        pairs: Named = []
        for piece in self._pieces:
            pairs += piece.sum(scale)
        return self.flat(pairs)

    def flat(self, pairs: Named) -> Tensor:
        """Join values by parameter name to one vector [d]."""
        named = dict(pairs)
        return torch.cat([named[name].reshape(-1) for name in self._layout.names])

    def means(self, weights: Tensor, each: int) -> Iterator[list[Tensor]]:
        """Form the weighted sum of each group of `each` consecutive rows, in blocks of U groups, one tensor for each array.

        Yields
        ------
        list of Tensor
            [U, size] in float64 each; joined they are vectors [U, d].
        """
        widest = max(piece.width for piece in self._pieces)
        numbers = max(self._layout.size, each * widest)  # numbers of one unit
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
        """Return the gradients of a model that is one dense layer; rows whose weight [B] is 0 are set to 0."""
        [piece] = self._pieces
        assert isinstance(piece, Products)
        piece.drop(weights == 0)
        return piece


GradientsAndLosses = tuple[
    Gradients, Tensor, Tensor
]  # gradients, losses [B], and which examples [B] have both


def squared_norms(rows: Tensor) -> Tensor:
    """Return squared norms [B] of rows [B, ...], in float64."""
    flat = rows.reshape(len(rows), -1)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    return lengths.square_()


def all_finite(values: Tensor) -> bool:
    """Whether no value is infinite or NaN. The check is of the sum, so a sum that overflows counts as infinite, too."""
    if not values.is_floating_point():
        return True
    return math.isfinite(float(values.sum()))


def without(rows: Tensor, gone: Tensor) -> Tensor:
    """Return rows [B, ...] with 0 in the rows marked in `gone` [B]; infinities and NaN there are gone, too."""
    trailing = [1] * (rows.dim() - 1)
    return rows.masked_fill(gone.view(-1, *trailing), 0)


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of weights [B] times rows [B, d] in float64, one block of rows at a time."""
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        total += weights[block] @ rows[block].to(torch.float64)
    return total
