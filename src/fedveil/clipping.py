"""Clipping of updates: to one norm, to one norm for each layer, or to a norm that adapts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.checks import Clip, NumberNoise, Parameters, Positive, UnitInterval
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.ranges import RANGES, require_within

# A float32 product can round up: without the shrink, a float32 vector of 1.2 million coordinates kept a norm of
# 1.00000196 C (measured), and the sensitivity would be exceeded.
SHRINK = 1e-6
_ELEMENTS = 1 << 18  # numbers in a block
WIDTH = (
    1 << 15
)  # columns of two rows (or more short ones) with float64 copies that fit the second-level cache

Rows = Sequence[Tensor] | Tensor


def norms(updates: Tensor) -> Tensor:
    """Compute Euclidean norms in float64.

    Parameters
    ----------
    updates : Tensor
        [d] or [n, d] (or 0-d, one coordinate), float32 or float64.

    Returns
    -------
    Tensor
        0-d for one update, [n] for a stack; float64.

    Raises
    ------
    FieldError
        If the type is not float32 or float64, or a value is NaN or infinite.
    """
    _check(updates)
    rows = updates.reshape(1) if updates.dim() == 0 else updates
    # the conversion to float64 copies: a block at a time, which stays in the cache
    parts = []
    for columns in blocks_of(len(rows) if rows.dim() == 2 else 1, rows.shape[-1]):
        parts.append(torch.linalg.vector_norm(rows[..., columns], dim=-1, dtype=torch.float64))
    if len(parts) == 1:
        return require_finite(parts[0])
    return require_finite(torch.stack(parts).square_().sum(0).sqrt_())


def require_finite(lengths: Tensor) -> Tensor:
    """Return norms, after refusing NaN and infinity."""
    if not torch.isfinite(lengths).all():
        accepted = (
            "must be finite: training diverged (lower its learning rate), or the reply is damaged"
        )
        raise FieldError("updates", "NaN or infinity", accepted)
    return lengths


def parts_of(
    rows: Rows, start: Tensor | None = None, width: int = WIDTH
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield blocks of n rows [d], or of the rows less `start`, in float64.

    Each item is the slice of rows, the slice of columns (cut at multiples of `width`), and the block's numbers. All
    blocks use the same memory, which stays in the second-level cache.
    """
    _check(rows[0])
    d = rows[0].shape[0]
    width = min(d, width * max(1, WIDTH // width))
    height = max(1, 2 * WIDTH // width)
    wide = torch.empty(height, width, dtype=torch.float64)
    narrow = torch.empty(width, dtype=rows[0].dtype)
    rows = rows.detach() if isinstance(rows, Tensor) else [row.detach() for row in rows]
    for first in range(0, d, width):
        columns = slice(first, min(first + width, d))
        room, begun = narrow[: columns.stop - first], None if start is None else start[columns]
        for top in range(0, len(rows), height):
            some = rows[top : top + height]
            part = wide[: len(some), : columns.stop - first]
            if isinstance(some, Tensor) and begun is None:
                part.copy_(some[:, columns])
            else:
                for row, into in zip(some, part, strict=True):
                    into.copy_(
                        row[columns] if begun is None else torch.sub(row[columns], begun, out=room)
                    )
            yield slice(top, top + len(some)), columns, part


def blocks_of(n: int, d: int, least: int = 1024) -> list[slice]:
    """Divide the columns of [n, d] into blocks of about 2^18 numbers (but at least `least` wide), which fit into the cache."""
    width = max(least, _ELEMENTS // max(n, 1))
    return [slice(start, min(start + width, d)) for start in range(0, d, width)] or [slice(0, 0)]


def clip(
    updates: Tensor,
    norm: float | Mapping[str, float],
    layout: Layout | None = None,
    *,
    lengths: Tensor | None = None,
) -> Tensor:
    """Scale updates down to a norm; shorter updates are unchanged.

    Parameters
    ----------
    updates : Tensor
        [d] or [n, d] (or 0-d), float32 or float64; each row is clipped alone.
    norm : float or mapping of str to float
        Bound C, or one bound for each layer (arrays or modules of the layout).
    layout : Layout, optional
        Layout of the updates; required if there is a bound for each layer.
    lengths : Tensor, optional
        `norms` of the updates, if they are known; not if there is a bound for each layer.

    Returns
    -------
    Tensor
        Clipped updates, of the same shape and type; every norm is at most the bound, computed in float64.

    Raises
    ------
    FieldError
        For a bound outside the limits of `fedveil.ranges`, integer updates, NaN, infinities, or wrong layer names.
    """
    if not isinstance(norm, Mapping):
        bound = require_bound("norm", norm)
        return _scaled(updates, norms(updates) if lengths is None else lengths, bound)
    if layout is None:
        raise FieldError("layout", None, "it is needed to clip per layer")
    _check(updates)
    layout.check(updates, "updates")
    groups = layout.groups(layout.grouping_of("norm", norm))
    clipped = updates.clone()
    for name, slices in groups.items():
        bound = require_bound(f"norm[{name}]", norm[name])
        squares = torch.stack([norms(updates[..., s]).square() for s in slices])
        layer = squares.sum(0).sqrt()
        for s in slices:
            clipped[..., s] = _scaled(updates[..., s], layer, bound)
    return clipped


@dataclass(frozen=True, kw_only=True)
class QuantileClip(Parameters):
    """Clipping norm that follows a quantile of the updates' norms (Andrew et al. 2021, arXiv 1905.03871).

    After each round C <- C exp(-lr (b - quantile)), with the noised share b of updates within C. The share is a
    separate release with its own cost. One client changes one bit, so the sum of bits has sensitivity 1 under every
    relation. An absent client counts as a zero update within C.

    Parameters
    ----------
    initial : float
        C of the first round.
    quantile : float
        Target share, in [0, 1].
    lr : float
        Learning rate in the exponent.
    bit_noise : float
        Standard deviation of the noise on the *sum* of the bits; the paper takes cohort / 20.

    Examples
    --------
    >>> fv.GlobalDP(
    ...     noise_multiplier=2.0, clip=fv.QuantileClip(initial=1.0, quantile=0.5)
    ... ).clip.initial
    1.0
    """

    initial: Clip = 1.0
    quantile: UnitInterval = 0.5
    lr: Positive = 0.2
    bit_noise: NumberNoise = 1.0

    def next(self, norm: float, lengths: Tensor, noise: float) -> float:
        """Compute the next C from the norms of a planned cohort's updates and one draw of standard normal noise.

        Raises
        ------
        FieldError
            If the noise moves C out of the allowed range.
        """
        share = (float((lengths <= norm).sum()) + self.bit_noise * noise) / len(lengths)
        after = norm * math.exp(min(-self.lr * (share - self.quantile), 700.0))
        if not RANGES["clip"].holds(after):
            raise FieldError(
                "clip.bit_noise", self.bit_noise, f"carries C to {after:g}: lower it, or lr"
            )
        return after


def factors(lengths: Tensor, bound: float) -> Tensor:
    """Return the factors that scale updates of these norms (float64) down to a bound; 1 for shorter updates."""
    return torch.where(lengths > bound, bound * (1 - SHRINK) / lengths, torch.ones_like(lengths))


def _scaled(updates: Tensor, lengths: Tensor, bound: float) -> Tensor:
    factor = factors(lengths, bound)
    # applied as two roots: the factor of a huge update is subnormal in float32, too coarse to keep the norm within C
    root = (
        factor.sqrt()
        .to(updates.dtype)
        .reshape(factor.shape + (1,) * (updates.dim() - factor.dim()))
    )
    return (updates * root).mul_(root)


def require_bound(field: str, value: float) -> float:
    """Return a clipping norm as a float, after refusing values outside the allowed range."""
    return require_within("clip", field, value)


def _check(updates: Tensor) -> None:
    if not isinstance(updates, Tensor) or updates.dtype not in (torch.float32, torch.float64):
        kind = updates.dtype if isinstance(updates, Tensor) else type(updates).__name__
        raise FieldError(
            "updates", kind, "must be a float32 or float64 tensor; integers are not clipped"
        )
    if updates.dim() > 2:
        raise FieldError("updates", tuple(updates.shape), "must be [d] or [n, d]")
