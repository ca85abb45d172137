"""Find examples whose simulated update matches the one received: distances, priors, and two optimisers.

Noise-aware: with noise of deviation s_j on coordinate j of the received update u, and image differences d that follow a
Laplace law of scale b, the most likely examples minimise sum_j (u^_j - u_j)^2 / (2 s_j^2) + sum |d| / b. A server with
reference images, of mean m and pixel variance v, takes the mean of two laws about m instead: the law of differences,
with b measured on the references, and sum (x - m)^2 / (2 v). It begins at m, which is its answer where the noise hides
everything. Every objective is divided by U = sum_j u_j^2 / (2 s_j^2), so that the prior weighs 1 / U; without noise
only total variation is left, with the attack's own weight.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from math import inf
from typing import Any

import numpy as np
import scipy
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedveil.learning import cross_entropy, outputs_of
from fedveil_lab.attacks.inversion.knowledge import Marking, ServerKnowledge
from fedveil_lab.attacks.observation import Received

# Mean absolute difference of neighbouring pixels, as a share of the pixels' range, in smooth pictures.
ROUGHNESS = 0.1
# L-BFGS stops far too early on a loss near 0.
SCALE = 1e4


class Matching:
    """Compare the simulated update of dummy examples with a client's release.

    Local training is simulated from the client's start, with its clipping and without its noise. The result is
    differentiable in the examples.

    Parameters
    ----------
    received, known
        Release of the client, and what the server knows about its training.
    seed : int
        Seed of the dummy examples.
    clipping : bool
        Whether the simulated client clips; False: the attack does not know the defence.
    dtype : torch.dtype
        Type of the numbers; L-BFGS needs float64.

    Attributes
    ----------
    start : Tensor
        Model [d] at which training began.
    module : torch.nn.Module
        Copy of the model without dropout, as the client's dropout masks are not known.
    received : Tensor
        Received update [d], each coordinate weighted by its noise.
    weight : float
        1 / U: weight of the prior per unit of b; 0 without noise.
    generator : torch.Generator
        Random generator of the dummy examples.
    """

    def __init__(
        self,
        received: Received,
        known: ServerKnowledge,
        seed: int = 0,
        *,
        clipping: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.known, self._clipping, self.generator = (
            known,
            clipping,
            torch.Generator().manual_seed(seed),
        )
        self.start = received.start.detach().to(dtype)
        self._blanked_at_start: Tensor | None = None
        self.module = deepcopy(known.model).to(dtype).train()
        for part in self.module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.eval()
        self._buffers = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        self.weight, self._weights, update = 0.0, torch.ones_like(self.start), received.update
        deviations = known.deviations()
        if bool((deviations > 0).any()):
            least = float(deviations[deviations > 0].min())
            weights = least / deviations.clamp(min=least)
            self.weight = 1 / (
                float((update.to(torch.float64) * weights).square().sum()) / (2 * least**2)
            )
            self._weights = weights.to(dtype)
        self.received = update.to(dtype) * self._weights

    def outputs(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return logits under the parameters [d]; the module's own buffers stay as they are."""
        buffers = {name: b.clone() for name, b in self._buffers.items()}
        return outputs_of(
            functional_call(self.module, {**self.known.layout.views(vector), **buffers}, (x,))
        )

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """Simulate the client's update [d] on dummy examples.

        Parameters
        ----------
        x : Tensor
            Examples [E, N, ...] in the order of each epoch; E = 1 serves all epochs.
        y : Tensor
            Classes [N], or probabilities [N, classes].
        """
        local, theta = self.known.local, self.start
        x = self.whole(x)
        for epoch in range(local.epochs):
            for rows in torch.split(torch.arange(x.shape[1]), local.batch_size):
                step = self._gradient(theta, x[epoch % len(x), rows], y[rows])
                theta = theta - local.rate() * (step + local.prox * (theta - self.start))
        if self._clipping:
            return self._clip(theta - self.start)
        return theta - self.start

    def whole(self, x: Tensor) -> Tensor:
        """Put what a server knows of the examples beside marked content around what it tries, [..., N, *shape]."""
        marking = self.known.marking
        if marking is None:
            return x
        return marking.around(x)

    def _gradient(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        bound, marking = self.known.example_clip, self.known.marking
        if bound is not None and self._clipping:
            rows = self._each(theta, x, y)
            if marking is None or not marking.differences:
                return clipped_mean(rows, bound)
            blanked = self._blanked(theta, x, y, marking)
            return torch.mean(blanked, 0) + clipped_mean(rows - blanked, bound)
        if theta.requires_grad:
            leaf = theta
        else:
            leaf = theta.detach().requires_grad_()
        return torch.autograd.grad(
            cross_entropy(self.outputs(leaf, x), y), leaf, create_graph=True
        )[0]

    def _each(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Compute the gradient [N, d] of each example alone."""

        def one(vector: Tensor, image: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(self.outputs(vector, image[None]), label[None])

        rows: Tensor = vmap(grad(one), in_dims=(None, 0, 0))(theta, x, y)
        return rows

    def _blanked(self, theta: Tensor, x: Tensor, y: Tensor, marking: Marking) -> Tensor:
        """Compute the gradients [N, d] of the blanked examples; those of known ones at the start once."""
        if marking.y is not None:
            y = marking.y
        if marking.x is None or theta is not self.start:
            return self._each(theta, marking.blanked(x), y)
        if self._blanked_at_start is None:
            self._blanked_at_start = self._each(theta, marking.blanked(x).detach(), y).detach()
        return self._blanked_at_start

    def _clip(self, update: Tensor) -> Tensor:
        bound, layout = self.known.clip, self.known.layout
        if bound is None:
            return update
        if not isinstance(bound, Mapping):
            return torch.mul(update, (bound / update.norm()).clamp(max=1))
        factors = torch.ones_like(update)
        for name, slices in layout.groups(layout.grouping_of("clip", bound)).items():
            length = torch.cat([update[s] for s in slices]).norm()
            for s in slices:
                factors[s] = (bound[name] / length).clamp(max=1)
        return update * factors

    def dummy(self, count: int | None = None) -> Tensor:
        """Draw the first dummy examples [count, *shape]: uniform, or under noise about the mean of reference images."""
        (low, high), known, dtype = self.known.pixels, self.known, self.start.dtype
        size = (known.examples if count is None else count, *known.shape)
        values = low + (high - low) * torch.rand(size, generator=self.generator, dtype=dtype)
        if known.reference is None or not self.weight:
            return values
        mean = known.reference.to(dtype).mean(0)
        return mean + 0.1 * (values - mean)

    def euclidean(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the squared distance of the update, divided by its squared norm; arguments as in `update`."""
        distance = (self.update(x, y) * self._weights - self.received).square().sum()
        return distance / self.received.square().sum()

    def cosine(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 2 (1 - cosine), the squared distance of the directions."""
        a, b = self.update(x, y) * self._weights, self.received
        distance: Tensor = 2 * (1 - (a @ b) / (a.norm() * b.norm()).clamp(min=1e-30))
        return distance

    def prior(self, x: Tensor, least: float = 0.0) -> Tensor:
        """Return the penalty of examples [N, ...]: total variation with weight `least`, and the prior for the noise."""
        known = self.known
        if least:
            penalty = total_variation(x) * (least / x.numel() / known.data_range)
        else:
            penalty = x.new_zeros(())
        if not self.weight:
            return penalty
        if known.reference is None:
            return penalty + total_variation(x) * (self.weight / ROUGHNESS / known.data_range)
        reference = known.reference.to(x.dtype)
        mean, spread = reference.mean(0), reference.var(0).clamp(min=(0.02 * known.data_range) ** 2)
        differences = total_variation(x - mean) * (
            len(reference) * known.shape[0] * 2 * mean[0].numel()
        )
        roughness = total_variation(reference - mean).clamp(min=1e-6)
        normal = ((x - mean).square() / (2 * spread)).sum()
        return penalty + self.weight * (differences / roughness + normal) / 2


def clipped_mean(rows: Tensor, bound: float) -> Tensor:
    """Average vectors [N, d], each cut to a length of at most `bound`."""
    lengths = rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return torch.mean(rows * (bound / lengths).clamp(max=1), 0)


def total_variation(x: Tensor) -> Tensor:
    """Sum the absolute differences of neighbouring pixels of [..., H, W], smoothed at 1e-3; 0 for other inputs."""
    if x.dim() < 4:
        return x.new_zeros(())
    down, right = x.diff(dim=-2), x.diff(dim=-1)
    return (down.square() + 1e-6).sqrt().sum() + (right.square() + 1e-6).sqrt().sum()


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
        Function of a tensor like `first`. It is scaled by 1e4 inside, so that no step counts as too small.
    first : Tensor
        Start.
    bounds : tuple of Tensor
        Least and largest values, like `first`.
    steps : int
        Largest number of evaluations of the objective.
    enough : float
        Objective below which the search stops.

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
        with threadpool_limits(
            1, "blas"
        ):  # on several threads its small products take ten times as long
            scipy.optimize.minimize(
                evaluate,
                first.double().numpy().ravel(),
                jac=True,
                method="L-BFGS-B",
                bounds=limits,
                options=options,
            )
    except StopIteration:
        pass
    return best[0]


def signed_adam(
    objective: Callable[[Tensor], Tensor],
    first: Tensor,
    pixels: tuple[float, float],
    steps: int,
    lr: float,
) -> tuple[Tensor, float]:
    """Minimise by Adam on the signs of the gradient, the step divided by 10 after 3/8, 5/8 and 7/8, as Geiping et al.

    Every step is cut to the range of the pixels; `lr` is a share of that range. Returns the best point.
    """
    point = first.clone().requires_grad_()
    optimizer = torch.optim.Adam([point], lr=lr * (pixels[1] - pixels[0]))
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [steps * k // 8 for k in (3, 5, 7)], 0.1
    )
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


def best_start(
    attempt: Callable[[int], tuple[Any, float]], restarts: int, enough: float = -inf
) -> tuple[Any, float]:
    """Search from several starts, and return the best result with its objective; stop once it is at most `enough`."""
    best = attempt(0)
    for number in range(1, restarts + 1):
        if best[1] <= enough:
            break
        best = min(best, attempt(number), key=lambda reached: reached[1])
    return best
