"""Several epochs of local training: one set of dummy examples an epoch, tied by what does not depend on their order.

Source: Dimitrov, Balunovic, Konstantinov and Vechev 2022 (Data Leakage in Federated Averaging, arXiv 2206.12395).

Threat model: honest-but-curious server; receives the client's own model, knows learning rate, epochs, batch size and
the number of examples, but not the order in which an epoch took them.

    min over x_1 .. x_E    |U(x_1, .., x_E; y) - u|^2 / |u|^2  +  w sum_e |mean(x_e) - mean(x_1)|^2  +  prior

U simulates all E ceil(N / B) steps of SGD. Afterwards the epochs' images are matched by the Hungarian method within
equal labels and averaged. Labels are read from the last layer; the order of labels within an epoch is a guess that
several starts vary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.inversion.knowledge import Inversion, Reconstruction, ServerKnowledge
from fedveil.attacks.inversion.labels import recover_labels
from fedveil.attacks.inversion.matching import Target, dummy, image_prior, lbfgs
from fedveil.attacks.inversion.see_through import in_order
from fedveil.attacks.inversion.simulate import Simulator
from fedveil.attacks.observation import Received


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Inversion):
    """Match the update of several epochs by L-BFGS.

    Parameters
    ----------
    steps : int
        Evaluations of the objective at most, of one start.
    restarts : int
        Further starts, each with the labels in another order.
    invariance : float
        Weight w.
    enough : float
        An objective that counts as found.
    seed : int
        Of the starts.
    """

    steps: int = 300
    restarts: int = 1
    invariance: float = 0.1
    enough: float = 1e-9
    seed: int = 0

    name: ClassVar[str] = "local-steps"
    summary: ClassVar[str] = "match the update of several epochs, each with dummy examples of its own"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        generator = torch.Generator().manual_seed(self.seed)
        simulator = Simulator(known, received.start)
        target = Target.of(received.update, known)
        found = recover_labels(received, known, generator)
        # one batch holds everything: its order is of no consequence, and one set serves all epochs
        epochs = 1 if known.examples <= known.local.batch_size else known.local.epochs
        low, high = (torch.tensor(p, dtype=torch.float64) for p in known.pixels)
        best: tuple[float, Tensor, Tensor] = (float("inf"), torch.empty(0), found)
        for restart in range(self.restarts + 1):
            labels = found[torch.randperm(len(found), generator=generator)] if restart else found

            def objective(x: Tensor, labels: Tensor = labels) -> Tensor:
                apart = (x.mean(1) - x[:1].mean(1)).square().mean(0).sum() / known.data_range**2
                prior = image_prior(x.flatten(0, 1), target, known) / len(x)
                return target.euclidean(simulator.update(x, labels)) + self.invariance * apart + prior

            first = torch.stack([dummy(known, known.examples, generator) for _ in range(epochs)])
            x, value = lbfgs(objective, first, (low, high), steps=self.steps, enough=self.enough)
            if value < best[0]:
                best = (value, x, labels)
            if value <= self.enough * 1e3:
                break
        value, x, labels = best
        images = torch.stack([in_order(each, x[0], labels) for each in x]).mean(0)
        return Reconstruction(images, labels, value, self.restarts)
