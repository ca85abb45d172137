r"""Layer scores: how strongly each layer's gradient depends on the pixels of a sensitive region.

Source: FedRE (layer-wise local differential privacy from privacy-sensitive regions). Let J_l(x) be d/dx of the gradient
d loss / d w_l of layer l. The score S_l is the Frobenius norm of J_l over the layer's parameters and the channels of
one pixel. It is averaged over the region's pixels, then over the images. A layer is a module: weight and bias together.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, require_choice, require_count
from fedveil.layout import Layout
from fedveil.learning.losses import LossFunction, evaluating, loss_of, outputs_of
from fedveil.mechanisms.source import keyed_seed

Rectangle = tuple[int, int, int, int]
Region = Tensor | Rectangle | Sequence[Rectangle]
Parameters = dict[str, Tensor]

_ELEMENTS = 1 << 24  # tangent elements held at once, which bounds the memory of a chunk


def layer_scores(
    module: nn.Module,
    loss: str | LossFunction,
    x: Tensor,
    y: Tensor,
    region: Region,
    method: str = "exact",
    *,
    probes: int = 32,
    seed: int = 0,
) -> dict[str, float]:
    """Score each layer of a module: how strongly its gradient depends on the pixels of a region.

    **The scores are computed from `x` and `y`, so on a client's images they are private**, unless the images are
    public. They are a `ClientFact` and must not leave the client. If a budget is split by them, the size of the noise
    leaks them.

    Parameters
    ----------
    module : torch.nn.Module
        Module, unchanged; runs in evaluation mode, so dropout is off. For activations without a second derivative
        (ReLU), autograd uses 0.
    loss : str or callable
        Name of a trainer's loss, or ``loss(outputs, y) -> scalar``. Each image is scored alone, so a mean over the
        batch and a sum give the same.
    x : Tensor
        [B, C, H, W], images.
    y : Tensor
        [B, ...], labels.
    region : Tensor or tuple of int
        Region of all images: a bool mask [H, W], or (top, left, bottom, right) in pixels with the last two exclusive,
        or several such boxes. Or one bool mask for each image, [B, H, W].
    method : {"exact", "estimate", "signal"}
        ``"exact"``: one forward-over-reverse product for each coordinate of the region. ``"estimate"``: random
        directions v in each layer's parameters, for all pixels at once, as E[(v . J)_j^2] = ||J[:, j]||^2; the root is
        too low by about 1 / (4 probes). ``"signal"``: the inverse length of the layer's gradient on these images,
        without J. The region then has no influence, and a layer with a longer gradient gets a larger budget.
    probes : int
        Number of random directions of the estimate.
    seed : int
        Seed of the random directions; the global random state is not used.

    Returns
    -------
    dict of str to float
        Score of each layer, in layout order.

    Raises
    ------
    FieldError
        For an empty or misplaced region, images that are not [B, C, H, W], or an unknown method.
    """
    layout = Layout.from_module(module, buffers="keep")
    own = layout.unflatten(layout.read(module))
    values = _Answers(module, layout, loss, method, probes, seed).score(own, x, y, region)
    return dict(zip(layout.groups("module"), values.tolist(), strict=True))


def score_models(
    module: nn.Module,
    layout: Layout,
    loss: str | LossFunction,
    models: Tensor,
    x: Tensor,
    y: Tensor,
    region: Region,
    method: str = "exact",
    *,
    probes: int = 32,
    seed: int = 0,
) -> Tensor:
    """Score the layers of several models, as a server does on public images.

    Parameters
    ----------
    models : Tensor
        [n, d], parameter vectors. For the other parameters see :func:`layer_scores`.

    Returns
    -------
    Tensor
        [n, L], float64 scores, layers (modules) in layout order.
    """
    layout.check(models, "models")
    if models.dim() != 2:
        raise FieldError("models", tuple(models.shape), f"must be [n, {layout.size}]")
    answers = _Answers(module, layout, loss, method, probes, seed)
    scores = torch.zeros(len(models), len(layout.groups("module")), dtype=torch.float64)
    for i, vector in enumerate(models):
        scores[i] = answers.score(layout.unflatten(vector), x, y, region)
    return scores


def score_maps(
    module: nn.Module,
    layout: Layout,
    loss: str | LossFunction,
    vector: Tensor,
    x: Tensor,
    y: Tensor,
    method: str = "estimate",
    *,
    probes: int = 32,
    seed: int = 0,
) -> Tensor:
    """Score each layer at each pixel: how strongly its gradient depends on that pixel (FedRE paper, figures 2 and 4).

    Parameters
    ----------
    vector : Tensor
        [d], model. For the other parameters see :func:`layer_scores`; the maps are private like the scores.

    Returns
    -------
    Tensor
        [L, H, W], float64, mean over the images. The score of a region is the mean of its pixels.
    """
    everything = torch.ones(len(x), *x.shape[2:], dtype=torch.bool)
    answers = _Answers(module, layout, loss, method, probes, seed)
    return answers.maps(layout.unflatten(vector), x, y, everything).mean(0)


def region_mask(region: Region, height: int, width: int) -> Tensor:
    """Convert a region (a mask or boxes) to a bool mask [H, W].

    Raises
    ------
    FieldError
        If the region is empty, outside the image, or of the wrong type or shape.
    """
    if isinstance(region, Tensor):
        if region.dtype != torch.bool or tuple(region.shape) != (height, width):
            given = (tuple(region.shape), region.dtype)
            raise FieldError("region", given, f"a mask must be bool [{height}, {width}]")
        if not region.any():
            raise FieldError("region", "empty mask", "must hold at least one pixel")
        return region.cpu()
    several = [one for one in region if not isinstance(one, int)]
    if several:
        masks = [region_mask(one, height, width) for one in several]
        return torch.stack(masks).any(0)
    if len(region) != 4:
        raise FieldError(
            "region", region, "must be a bool mask, or (top, left, bottom, right) in pixels"
        )
    sides = [require_count("region", side, least=0) for side in region]
    top, left, bottom, right = sides
    if not (top < bottom <= height and left < right <= width):
        raise FieldError(
            "region", region, f"must hold at least one pixel and lie within {height} x {width}"
        )
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[top:bottom, left:right] = True
    return mask


def region_masks(region: Region, count: int, height: int, width: int) -> Tensor:
    """Convert a region to bool masks [count, H, W], one for each of `count` images; see `region_mask`."""
    if isinstance(region, Tensor) and region.dim() == 3:
        if len(region) != count:
            raise FieldError(
                "region", tuple(region.shape), f"must hold one mask for each of {count} images"
            )
        return torch.stack([region_mask(one, height, width) for one in region])
    return region_mask(region, height, width).expand(count, -1, -1)


@dataclass(frozen=True, eq=False)
class _Answers:
    """Computation of how a module's gradient depends on pixels, by one method."""

    module: nn.Module
    layout: Layout
    loss: str | LossFunction
    method: str
    probes: int
    seed: int

    def score(
        self,
        parameters: Parameters,
        x: Tensor,
        y: Tensor,
        region: Region,
    ) -> Tensor:
        """Return the scores of all layers, [L]."""
        if self.method == "signal":
            return self._weakness(parameters, x, y)
        if x.dim() != 4 or not len(x) or len(x) != len(y):
            raise FieldError(
                "x",
                (tuple(x.shape), len(y)),
                "must be [B, C, H, W] with B at least 1, and y as long",
            )
        masks = region_masks(region, len(x), x.shape[2], x.shape[3])
        scores: list[Tensor] = []
        for image, mask in zip(self.maps(parameters, x, y, masks), masks, strict=True):
            scores.append(image[:, mask].mean(1))
        return torch.stack(scores).mean(0)

    @property
    def layers(self) -> list[list[str]]:
        """Names of each layer's arrays."""
        layers: dict[str, list[str]] = {name: [] for name in self.layout.groups("module")}
        for block in self.layout.blocks:
            layers[block.module].append(block.name)
        return list(layers.values())

    def _weakness(self, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        """Return the inverse length of each layer's mean gradient, [L]."""
        x, y = _beside(parameters, x, y)

        def loss(weights: Parameters) -> Tensor:
            return loss_of(self.loss)(self._outputs(weights, x), y)

        with evaluating(self.module):
            gradients = self._gradients(parameters, loss)
        lengths: list[float] = []
        for names in self.layers:
            own = [float(gradients[name].detach().norm()) for name in names]
            lengths.append(math.hypot(*own))
        layers = torch.tensor(lengths, dtype=torch.float64)
        least = 1e-12 * max(lengths) or 1.0
        return 1 / layers.clamp_min(least)

    def maps(
        self,
        parameters: Parameters,
        x: Tensor,
        y: Tensor,
        masks: Tensor,
    ) -> Tensor:
        """Return the norm of each layer's J at each pixel of the masks, [B, L, H, W]; pixels outside may have 0."""
        require_choice("method", self.method, ("exact", "estimate"))
        require_count("probes", self.probes)
        x, y = _beside(parameters, x.detach(), y)
        with evaluating(self.module):
            if self.method == "estimate":
                return self._estimate(parameters, x, y)
            images = zip(torch.split(x, 1), torch.split(y, 1), masks, strict=True)
            return torch.stack([self._exact(parameters, *image) for image in images])

    def _outputs(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return outputs_of(torch.func.functional_call(self.module, dict(weights), (x,)))

    def _total(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Sum the losses of single images."""
        function = loss_of(self.loss)
        outputs = self._outputs(weights, x)
        images = zip(torch.split(outputs, 1), torch.split(y, 1), strict=True)
        losses = [function(output, label) for output, label in images]
        return torch.stack(losses).sum()

    def _gradients(
        self,
        parameters: Parameters,
        loss: Callable[[Parameters], Tensor],
    ) -> Parameters:
        """Return the gradients of a loss with respect to the weights; they can be differentiated again."""
        weights = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            gradients = torch.autograd.grad(
                loss(weights),
                list(weights.values()),
                create_graph=True,
                materialize_grads=True,
            )
        return dict(zip(weights, gradients, strict=True))

    def _exact(
        self,
        parameters: Parameters,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the map [L, H, W] of one image: one column of J is computed for each coordinate of the mask's pixels."""
        channels = x.shape[1]
        plane = mask.numel()
        pixels = mask.reshape(-1).nonzero().reshape(-1)
        by_pixel = torch.arange(channels)[None, :] * plane + pixels[:, None]
        coordinates = by_pixel.reshape(-1)

        def gradient(image: Tensor) -> Parameters:
            result: Parameters = torch.func.grad(self._total)(parameters, image, y)
            return result

        def squares(direction: Tensor) -> Tensor:
            columns: Parameters = torch.func.jvp(gradient, (x,), (direction,))[1]
            return self._sums_of_squares(columns)

        chunk = max(1, min(64, _ELEMENTS // self.layout.size))
        parts: list[Tensor] = []
        for some in torch.split(coordinates, chunk):
            directions = torch.zeros(len(some), x.numel(), dtype=x.dtype, device=x.device)
            directions[torch.arange(len(some)), some] = 1
            parts.append(torch.func.vmap(squares)(directions.view(len(some), *x.shape)))
        lengths = torch.cat(parts).view(len(pixels), channels, -1).sum(1).sqrt()
        maps = torch.zeros(len(self.layers), plane, dtype=torch.float64)
        maps[:, pixels] = lengths.cpu().T
        return maps.view(-1, *mask.shape)

    def _sums_of_squares(self, columns: Parameters) -> Tensor:
        """Return the squared length of a column of J in each layer, [L]."""
        sums = {name: column.to(torch.float64).square().sum() for name, column in columns.items()}
        layers: list[Tensor] = []
        for names in self.layers:
            own = torch.stack([sums[name] for name in names])
            layers.append(own.sum())
        return torch.stack(layers)

    def _estimate(self, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        """Estimate the maps [B, L, H, W] by random directions.

        As v . J = d/dx of (v . d loss / d w), one graph of the gradient serves all layers and directions.
        """
        generator = torch.Generator().manual_seed(keyed_seed("layer scores", self.seed))
        images = x.clone().requires_grad_()
        gradients = self._gradients(parameters, lambda weights: self._total(weights, images, y))
        maps: list[Tensor] = []
        for names in self.layers:
            own = [gradients[name] for name in names]
            squares = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
            for directions in self._directions(own, x, generator):
                for direction in directions:
                    column = _derivative_along(own, direction, images)
                    if column is not None:
                        squares += column.to(torch.float64).square()
            maps.append((squares / self.probes).sum(1).sqrt())
        return torch.stack(maps, 1).cpu()

    def _directions(
        self,
        gradients: Sequence[Tensor],
        x: Tensor,
        generator: torch.Generator,
    ) -> Iterator[Iterator[tuple[Tensor, ...]]]:
        """Yield random directions in the parameters of each layer, in chunks."""
        size = sum(gradient.numel() for gradient in gradients)
        chunk = max(1, min(self.probes, _ELEMENTS // max(size, 32 * x.numel())))
        for probes in torch.split(torch.arange(self.probes), chunk):
            drawn: list[Tensor] = []
            for gradient in gradients:
                shape = (len(probes), *gradient.shape)
                drawn.append(torch.randn(shape, generator=generator, dtype=x.dtype).to(x.device))
            yield zip(*drawn, strict=True)


def _beside(parameters: Parameters, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Move images and labels to the parameters' device; images get the parameters' number type."""
    some = next(iter(parameters.values()))
    return x.to(some.device, some.dtype), y.to(some.device)


def _derivative_along(
    gradients: Sequence[Tensor],
    direction: Sequence[Tensor],
    images: Tensor,
) -> Tensor | None:
    """Return d/dx of (v . d loss / d w) for a direction v, shaped like the images; None if it depends on no pixel."""
    with torch.enable_grad():
        products = [(gradient * v).sum() for gradient, v in zip(gradients, direction, strict=True)]
        along = torch.stack(products).sum()
    if not along.requires_grad:
        return None
    column, *_ = torch.autograd.grad(along, images, retain_graph=True, materialize_grads=True)
    return column
