"""The update a client would send if its examples were the given ones, differentiable in them."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedveil.attacks.inversion.knowledge import ServerKnowledge
from fedveil.learning.losses import cross_entropy, outputs_of


class Simulator:
    """Local training from one start, on dummy examples, with the client's clipping but without its noise.

    Parameters
    ----------
    known : ServerKnowledge
        Architecture, training, clipping norms.
    start : Tensor
        [d], where training began.
    clipping : bool
        False simulates a client that does not clip: an attack that does not know of the defence.
    dtype : torch.dtype
        Float64 is what L-BFGS wants.
    """

    def __init__(
        self, known: ServerKnowledge, start: Tensor, *, clipping: bool = True, dtype: torch.dtype = torch.float64
    ) -> None:
        self.known, self.clipping = known, clipping
        self.start = start.detach().to(dtype)
        self.module = deepcopy(known.model).to(dtype).train()
        for part in self.module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.eval()  # which units the client dropped is not known
        self._buffers = {name: b.detach().clone() for name, b in self.module.named_buffers()}

    def outputs(self, vector: Tensor, x: Tensor) -> Tensor:
        """Logits under the parameters [d]; the module's own buffers stay as they are."""
        buffers = {name: b.clone() for name, b in self._buffers.items()}
        return outputs_of(functional_call(self.module, {**self.known.layout.views(vector), **buffers}, (x,)))

    def update(self, x: Tensor, y: Tensor) -> Tensor:
        """The simulated update [d].

        Parameters
        ----------
        x : Tensor
            [E, N, ...], the examples in the order in which each epoch takes them; E = 1 serves all epochs.
        y : Tensor
            [N] classes, or [N, classes] probabilities.
        """
        local, theta = self.known.local, self.start
        for epoch in range(local.epochs):
            for rows in torch.split(torch.arange(x.shape[1]), local.batch_size):
                step = self._gradient(theta, x[epoch % len(x), rows], y[rows])
                theta = theta - local.rate() * (step + local.prox * (theta - self.start))
        return self._clip(theta - self.start) if self.clipping else theta - self.start

    def _gradient(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        bound = self.known.example_clip
        if bound is not None and self.clipping:

            def one(vector: Tensor, image: Tensor, label: Tensor) -> Tensor:
                return cross_entropy(self.outputs(vector, image[None]), label[None])

            rows: Tensor = vmap(grad(one), in_dims=(None, 0, 0))(theta, x, y)
            return torch.mean(rows * (bound / rows.norm(dim=1, keepdim=True)).clamp(max=1), 0)
        leaf = theta if theta.requires_grad else theta.detach().requires_grad_()
        return torch.autograd.grad(cross_entropy(self.outputs(leaf, x), y), leaf, create_graph=True)[0]

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
