"""SPEAR: whole batches from a dense first layer that ReLU follows, exactly without noise.

Source: Dimitrov, Baader, Mueller and Vechev 2024 (SPEAR, arXiv 2403.03945). The search for sparse directions by
reweighted least squares and the polishing under noise are ours; SPEAR++ (2510.24200) replaces the same step.

Threat model: honest-but-curious server; receives the client's own model after one step of SGD, knows the
architecture. Ignores clipping: a common factor cancels. Labels and later layers are not used.

    G = [dL/dW | dL/db] = D X'   D [m, N]: gradients at the layer's outputs, X' = [inputs | 1]  [N, n + 1]
    rank:      G = L S R by SVD, cut at N; so D = L Q and X' = Q^-1 S R for one invertible Q [N, N]
    sparsity:  ReLU makes about half of each column of D zero: a column of Q is a q for which many rows of L q vanish
    search:    N - 1 rows of L at random have a kernel q; reweighted least squares, q <- argmin sum w_j (L_j q)^2 with
               w_j = 1 / ((L_j q)^2 + t^2) and t falling, draws it to a sparse direction near by; taken are the sparsest
               ones that do not depend on each other (a combination of two columns is sparser than neither)
    check:     the rows that do not vanish along a column are the units with W x + b > 0, which the server knows
    polishing: with the signs of W x + b as the zeros of D, least squares for D and X in turn

The noise of an entry of G is measured by the singular values beyond N; that of L q is |q / S| times as large.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil_lab.attacks.inversion.analytic import first_layer, recover_labels
from fedveil_lab.attacks.inversion.knowledge import (
    INVERSIONS,
    Inversion,
    Reconstruction,
    ServerKnowledge,
)
from fedveil_lab.attacks.observation import Received

FLOOR = 1e-13  # relative error of singular vectors in float64
REWEIGHTED = 1e-8  # least width of the search: squares of it are still resolved in float64
APART = 0.1  # distance of a direction (unit vector) from the span of sparser ones


@INVERSIONS.register("spear")
@dataclass(frozen=True, kw_only=True)
class SPEAR(Inversion):
    """Attack that decodes the batch from low rank and sparsity of the first layer's update.

    Parameters
    ----------
    candidates : int
        Number of directions that one sweep tries.
    sweeps : int
        Largest number of sweeps; the search ends once the activations of the found images fit.
    polish : int
        Number of alternations under noise.
    seed : int
        Seed of the candidates.
    """

    candidates: int = 400
    sweeps: int = 150
    polish: int = 30
    seed: int = 0

    summary: ClassVar[str] = (
        "low rank and ReLU sparsity of a dense first layer's update: whole batches"
    )

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        change = first_layer(received.update.to(torch.float64), known)
        count = known.examples
        if count >= min(change.shape):
            raise FieldError(
                "examples",
                count,
                f"must be below the first layer's width and inputs, {min(change.shape)}",
            )
        generator = torch.Generator().manual_seed(self.seed)
        u, s, v = torch.linalg.svd(change, full_matrices=False)
        rest = (change.shape[0] - count) * (change.shape[1] - count)
        noise = max(float(s[count:].square().sum() / rest) ** 0.5, FLOOR * float(s[0]))
        before = first_layer(received.start.to(torch.float64), known)
        rows = _Rows(u[:, :count], noise / s[:count])
        images, signs, pool = torch.empty(0), -1.0, u.new_zeros(0, count)
        for _ in range(self.sweeps):
            pool = torch.cat([pool, rows.sparse(_kernels(rows.left, self.candidates, generator))])
            pool = _independent(pool[rows.zeros(pool).sum(1).argsort(descending=True, stable=True)])
            if len(pool) < count:
                continue
            chosen = torch.stack([rows.agreed(q) for q in pool], 1)
            scaled = _scaled(
                torch.linalg.lstsq(chosen, s[:count, None] * v[:count]).solution, known
            )
            fits = float((~rows.zeros(chosen.T) == (scaled @ before.T > 0)).double().mean())
            if fits > signs:
                images, signs = scaled, fits
            if signs > 0.99:
                break
        if signs < 0:
            raise FieldError(
                "update",
                "no sparse directions",
                "does the first layer end in ReLU, after a single step?",
            )
        error = _misfit(change, images)
        for _ in range(self.polish if noise > 10 * FLOOR * float(s[0]) else 0):
            better = _polished(change, images, before, known)
            reached = _misfit(change, better)
            if not reached <= error * (1 - 1e-9):
                break
            images, error = better, reached
        labels = recover_labels(received, known, generator)
        return Reconstruction(images[:, :-1].reshape(count, *known.shape), labels, error)


@dataclass(frozen=True, eq=False)
class _Rows:
    """L [m, N] and the noise of one entry of each of its columns [N]."""

    left: Tensor
    noise: Tensor

    def zeros(self, directions: Tensor) -> Tensor:
        """Mark the rows that vanish along each of the directions [c, N]; [c, m]."""
        widths = 3 * (directions * self.noise).norm(dim=1, keepdim=True)
        widths = widths.clamp(min=100 * REWEIGHTED * float(self.left.abs().max()))
        return (directions @ self.left.T).abs().lt(widths)

    def sparse(self, directions: Tensor) -> Tensor:
        """Move each direction [c, N] to a sparse one near by."""
        count = directions.shape[1]
        squares = (self.left[:, :, None] * self.left[:, None]).flatten(1)
        width = (directions @ self.left.T).abs().median(1, keepdim=True).values
        for _ in range(40):  # the width falls to 1e-4 of what it was, or to the noise
            floor = (directions * self.noise).norm(dim=1, keepdim=True)
            width = (width * 0.8).clamp(min=REWEIGHTED).maximum(floor)
            weights = 1 / ((directions @ self.left.T).square() + width**2)
            moments = (weights @ squares).view(-1, count, count)
            moments = moments / moments.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
            directions = torch.linalg.solve_ex(moments, directions[..., None]).result[
                ..., 0
            ]  # inverse iteration
            directions = torch.nn.functional.normalize(torch.nan_to_num(directions), dim=1)
        return directions

    def agreed(self, direction: Tensor) -> Tensor:
        """Return the direction that fits best all rows that vanish along the given one."""
        rows = self.left[self.zeros(direction[None])[0]]
        return torch.linalg.svd(rows).Vh[-1] if len(rows) >= len(direction) - 1 else direction


def _kernels(left: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw unit vectors [count, N], each orthogonal to N - 1 random rows that are not 0."""
    left = torch.nn.functional.normalize(left[left.norm(dim=1) > 100 * REWEIGHTED], dim=1)
    order = torch.rand(count, len(left), generator=generator).argsort(1)
    chosen = left[order[:, : left.shape[1] - 1]]
    solved = torch.linalg.solve_ex(chosen[..., :-1], -chosen[..., -1:]).result[..., 0]
    kernels = torch.cat([torch.nan_to_num(solved), torch.ones(count, 1, dtype=left.dtype)], 1)
    return torch.nn.functional.normalize(kernels, dim=1)


def _independent(pool: Tensor) -> Tensor:
    """Choose, in order, the directions of the pool [c, N] that the ones before do not span, up to APART."""
    chosen: list[Tensor] = []
    rest = pool
    while len(chosen) < pool.shape[1]:
        far = rest.norm(dim=1) > APART
        if not bool(far.any()):
            break
        first = int(far.to(torch.int8).argmax())
        chosen.append(pool[first])
        span = torch.linalg.qr(torch.stack(chosen, 1)).Q
        rest = pool - (pool @ span) @ span.T
    if chosen:
        return torch.stack(chosen)
    return pool[:0]


def _scaled(images: Tensor, known: ServerKnowledge) -> Tensor:
    """Scale rows [N, n + 1] so that their last entry is 1, and cut them to the range of the pixels."""
    last = images[:, -1:]
    images = torch.nan_to_num(images / torch.where(last == 0, torch.ones_like(last), last))
    images[:, :-1] = images[:, :-1].clamp(*known.pixels)
    images[:, -1] = 1
    return images


def _polished(change: Tensor, images: Tensor, before: Tensor, known: ServerKnowledge) -> Tensor:
    """Make one alternation: D with the zeros of these images' activations, then the images."""
    active = (before @ images.T > 0).to(change.dtype)
    gram = images @ images.T
    systems = active[:, :, None] * gram * active[:, None] + torch.diag_embed(1 - active)
    columns = torch.linalg.solve_ex(systems, (change @ images.T * active)[..., None]).result[..., 0]
    return _scaled(torch.linalg.lstsq(torch.nan_to_num(columns), change).solution, known)


def _misfit(change: Tensor, images: Tensor) -> float:
    """Return the share of the squared update that no D explains with these images."""
    rest = change - change @ torch.linalg.pinv(images) @ images
    return float(rest.square().sum() / change.square().sum())
