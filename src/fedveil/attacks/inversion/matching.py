"""Find examples whose simulated update matches the one received: distances, priors, and two optimisers.

Noise-aware: with noise of deviation s_j on coordinate j of the received update u, and image differences d that follow
a Laplace law of scale b, the most likely examples minimise sum_j (u^_j - u_j)^2 / (2 s_j^2) + sum |d| / b.
A server with reference images of mean m and pixel variance v takes the mean of two laws instead, both about m: that
of differences, with b measured on the references, and sum (x - m)^2 / (2 v); it begins at m, which is its answer where
the noise leaves nothing. Every objective is divided by U = sum_j u_j^2 / (2 s_j^2), so that the prior weighs 1 / U;
without noise only total variation is left, with the attack's own weight.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedveil.attacks.inversion.knowledge import ServerKnowledge

# Mean absolute difference of neighbouring pixels, as a share of the pixels' range, in smooth pictures.
ROUGHNESS = 0.1
# L-BFGS stops far too early on a loss near 0.
SCALE = 1e4


@dataclass(frozen=True, eq=False)
class Target:
    """The received update, weighed by what is known of its noise.

    Attributes
    ----------
    update : Tensor
        [d].
    weights : Tensor
        [d], the noise's smallest deviation over each coordinate's; 1 without noise.
    prior : float
        1 / U, the weight of the prior per unit of b; 0 without noise.
    """

    update: Tensor
    weights: Tensor
    prior: float

    @classmethod
    def of(cls, update: Tensor, known: ServerKnowledge, dtype: torch.dtype = torch.float64) -> "Target":
        """Weigh the coordinates of an update [d] by the noise that the server knows of."""
        deviations = known.deviations()
        if not bool((deviations > 0).any()):
            return cls(update.to(dtype), torch.ones_like(update, dtype=dtype), 0.0)
        least = float(deviations[deviations > 0].min())
        weights = least / deviations.clamp(min=least)
        total = float((update.to(torch.float64) * weights).square().sum()) / (2 * least**2)
        return cls(update.to(dtype), weights.to(dtype), 1 / total)

    def euclidean(self, predicted: Tensor) -> Tensor:
        """Squared distance over the squared norm."""
        wanted = self.update * self.weights
        return (predicted * self.weights - wanted).square().sum() / wanted.square().sum()

    def cosine(self, predicted: Tensor) -> Tensor:
        """2 (1 - cosine): the squared distance of the directions."""
        a, b = predicted * self.weights, self.update * self.weights
        distance: Tensor = 2 * (1 - (a @ b) / (a.norm() * b.norm()).clamp(min=1e-30))
        return distance


def total_variation(x: Tensor) -> Tensor:
    """Sum of the absolute differences of neighbouring pixels of [..., H, W], smoothed at 1e-3; 0 for other inputs."""
    if x.dim() < 4:
        return x.new_zeros(())
    down, right = x.diff(dim=-2), x.diff(dim=-1)
    return (down.square() + 1e-6).sqrt().sum() + (right.square() + 1e-6).sqrt().sum()


def image_prior(x: Tensor, target: Target, known: ServerKnowledge, least: float = 0.0) -> Tensor:
    """The prior of examples [N, ...], with the weight that the noise asks for, and `least` on mean total variation."""
    penalty = total_variation(x) * (least / x.numel() / known.data_range) if least else x.new_zeros(())
    if not target.prior:
        return penalty
    if known.reference is None:
        return penalty + total_variation(x) * (target.prior / ROUGHNESS / known.data_range)
    reference = known.reference.to(x.dtype)
    mean, spread = reference.mean(0), reference.var(0).clamp(min=(0.02 * known.data_range) ** 2)
    differences = total_variation(x - mean) * (len(reference) * known.shape[0] * 2 * mean[0].numel())
    roughness = total_variation(reference - mean).clamp(min=1e-6)
    normal = ((x - mean).square() / (2 * spread)).sum()
    return penalty + target.prior * (differences / roughness + normal) / 2


def lbfgs(
    objective: Callable[[Tensor], Tensor],
    first: Tensor,
    bounds: tuple[Tensor, Tensor],
    *,
    steps: int,
    enough: float = 0.0,
) -> tuple[Tensor, float]:
    """Minimise within a box by L-BFGS-B, in float64.

    Parameters
    ----------
    objective : callable
        Of a tensor like `first`; scaled here by 1e4, and no step is taken for too small.
    first : Tensor
        Where to begin.
    bounds : tuple of Tensor
        Least and largest values, like `first`.
    steps : int
        Evaluations of the objective at most.
    enough : float
        Stop once the objective is below.

    Returns
    -------
    tuple of Tensor and float
        The best point and its objective.
    """
    best = [(first, float("inf"))]

    def evaluate(flat: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, object]:
        point = torch.from_numpy(flat.copy()).view(first.shape).requires_grad_()
        value = objective(point)
        slope = torch.autograd.grad(value, point)[0]
        if float(value.detach()) < best[0][1]:
            best[0] = (point.detach(), float(value.detach()))
        if best[0][1] <= enough:
            raise StopIteration
        return float(value.detach()) * SCALE, (slope * SCALE).numpy().ravel()

    limits = scipy.optimize.Bounds(*(b.expand(first.shape).reshape(-1).numpy() for b in bounds))
    options = {"maxcor": 50, "ftol": 1e-14, "gtol": 1e-14, "maxiter": steps, "maxfun": steps}
    try:
        with threadpool_limits(1, "blas"):  # on several threads its small products take ten times as long
            scipy.optimize.minimize(
                evaluate, first.double().numpy().ravel(), jac=True, method="L-BFGS-B", bounds=limits, options=options
            )
    except StopIteration:
        pass
    return best[0]


def signed_adam(
    objective: Callable[[Tensor], Tensor], first: Tensor, pixels: tuple[float, float], *, steps: int, lr: float
) -> tuple[Tensor, float]:
    """Minimise by Adam on the signs of the gradient, the step divided by 10 after 3/8, 5/8 and 7/8, as Geiping et al.

    Every step is cut to the range of the pixels; returned is the best point.
    """
    point = first.clone().requires_grad_()
    optimizer = torch.optim.Adam([point], lr=lr)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * k // 8 for k in (3, 5, 7)], 0.1)
    best = (first, float("inf"))
    for _ in range(steps):
        value = objective(point)
        if float(value.detach()) < best[1]:
            best = (point.detach().clone(), float(value.detach()))
        point.grad = torch.autograd.grad(value, point)[0].sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            point.clamp_(*pixels)
    return best


def dummy(known: ServerKnowledge, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Examples [count, *shape] to begin with: uniform, or under noise about the mean of reference images."""
    low, high = known.pixels
    found = low + (high - low) * torch.rand(count, *known.shape, generator=generator, dtype=dtype)
    if known.reference is None or not bool(known.deviations().any()):
        return found
    mean = known.reference.to(dtype).mean(0)
    return mean + 0.1 * (found - mean)
