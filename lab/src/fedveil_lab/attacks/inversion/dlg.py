"""Inversion by the distance of the update, with L-BFGS: of one step, or of several epochs of local training."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fedveil_lab.attacks.inversion.analytic import recover_labels
from fedveil_lab.attacks.inversion.cosine import registered
from fedveil_lab.attacks.inversion.knowledge import (
    INVERSIONS,
    Inversion,
    Reconstruction,
    ServerKnowledge,
)
from fedveil_lab.attacks.inversion.matching import Matching, best_start, lbfgs
from fedveil_lab.attacks.observation import Received

FOUND = 1e-6  # an objective that no wrong example reaches


@INVERSIONS.register("dlg")
@dataclass(frozen=True, kw_only=True)
class DLG(Inversion):
    """Attack that matches the update by L-BFGS and searches the labels too.

    DLG: find an example and a label whose simulated update is the received one.

    Source: Zhu, Liu and Han 2019 (Deep Leakage from Gradients, arXiv 1906.08935), on updates instead of gradients.

    Threat model: honest-but-curious server; receives the client's own model, knows how it trained.

        min over x, y   || clip(U(x, softmax(y))) - u ||^2 / ||u||^2  +  prior        U: simulated local training

    With `clipping=False` the attack does not know of the defence, as printed: it then fails against a clipped update.
    Pixels stay in their range (L-BFGS-B). The prior (total variation) has the weight that the noise asks for:
    `matching`. Smooth activations are needed: ReLU networks want `cosine`.

    Parameters
    ----------
    steps : int
        Largest number of evaluations from one start.
    restarts : int
        Number of further starts, made while the objective is above 1e-6 and above what the noise explains.
    enough : float
        Objective at which a start ends; float32 releases hardly allow less.
    clipping : bool
        Whether the attacker knows of the clipping.
    seed : int
        Seed of the starts.
    """

    steps: int = 400
    restarts: int = 3
    enough: float = 1e-12
    clipping: bool = True
    seed: int = 0

    summary: ClassVar[str] = "match the update, example and label together, by L-BFGS"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        matching = Matching(received, known, self.seed, clipping=self.clipping)
        size = known.examples * prod(known.shape)
        labels = self._labels(received, known, matching.generator)
        with torch.no_grad():
            classes = matching.outputs(
                matching.start, matching.dummy(1).repeat(2, *[1] * len(known.shape))
            ).shape[1]
        if labels is not None:
            free = 0
        else:
            free = known.examples * classes

        def parts(point: Tensor) -> tuple[Tensor, Tensor]:
            x = point[:size].view(1, known.examples, *known.shape)
            return x, labels if labels is not None else point[size:].view(
                known.examples, -1
            ).softmax(1)

        def objective(point: Tensor) -> Tensor:
            x, y = parts(point)
            return matching.euclidean(x, y) + matching.prior(x[0])

        (low, high), noise = (
            known.pixels,
            known.layout.size * matching.weight / 2,
        )  # its share of the squared update
        least = torch.cat([torch.full((size,), low), torch.full((free,), -20.0)]).double()
        most = torch.cat([torch.full((size,), high), torch.full((free,), 20.0)]).double()

        def start(_number: int) -> tuple[Tensor, float]:
            first = torch.cat([matching.dummy().view(-1), torch.zeros(free)])
            return lbfgs(objective, first, (least, most), steps=self.steps, enough=self.enough)

        best, value = best_start(start, self.restarts, max(FOUND, 1.5 * noise))
        x, y = parts(best)
        return Reconstruction(x[0], y if y.dim() == 1 else y.argmax(1), value)

    def _labels(
        self, received: Received, known: ServerKnowledge, generator: torch.Generator
    ) -> Tensor | None:
        """Return the labels if they are known; None if they are searched."""
        return known.labels


@INVERSIONS.register("idlg")
class IDLG(DLG):
    """Attack that reads the labels first, then matches the update by L-BFGS; see `DLG` for the parameters.

    Source: Zhao, Mopuri and Bilen 2020 (iDLG, arXiv 2001.02610); for several examples see `labels`.
    """

    summary: ClassVar[str] = "labels from the last layer, then match the update by L-BFGS"

    def _labels(
        self, received: Received, known: ServerKnowledge, generator: torch.Generator
    ) -> Tensor:
        return recover_labels(received, known, generator)


@INVERSIONS.register("local-steps")
@dataclass(frozen=True, kw_only=True)
class LocalSteps(Inversion):
    """Attack that matches the update of several epochs by L-BFGS.

    One set of dummy examples stands for each epoch of local training. The sets are tied by their mean, which does not
    depend on the order.

    Source: Dimitrov, Balunovic, Konstantinov and Vechev 2022 (Data Leakage in Federated Averaging, arXiv 2206.12395).

    Threat model: honest-but-curious server; receives the client's own model, knows learning rate, epochs, batch size
    and the number of examples, but not the order in which an epoch took them.

        min over x_1 .. x_E    |U(x_1, .., x_E; y) - u|^2 / |u|^2  +  w sum_e |mean(x_e) - mean(x_1)|^2  +  prior

    U simulates all E ceil(N / B) steps of SGD. Afterwards the epochs' images are matched by the Hungarian method within
    equal labels and averaged. Labels are read from the last layer; the order of labels within an epoch is a guess that
    several starts vary.

    Parameters
    ----------
    steps : int
        Largest number of evaluations of the objective from one start.
    restarts : int
        Number of further starts, each with the labels in another order.
    invariance : float
        Weight w.
    enough : float
        Objective at which a start ends.
    seed : int
        Seed of the starts.
    """

    steps: int = 300
    restarts: int = 1
    invariance: float = 0.1
    enough: float = 1e-9
    seed: int = 0

    summary: ClassVar[str] = (
        "match the update of several epochs, each with dummy examples of its own"
    )

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        matching = Matching(received, known, self.seed)
        read = recover_labels(received, known, matching.generator)
        # one batch holds everything: its order is of no consequence, and one set serves all epochs
        if known.examples <= known.local.batch_size:
            epochs = 1
        else:
            epochs = known.local.epochs
        low, high = (torch.tensor(p, dtype=torch.float64) for p in known.pixels)

        def start(number: int) -> tuple[tuple[Tensor, Tensor], float]:
            if number:
                labels = read[torch.randperm(len(read), generator=matching.generator)]
            else:
                labels = read

            def objective(x: Tensor) -> Tensor:
                apart = (x.mean(1) - x[:1].mean(1)).square().mean(0).sum() / known.data_range**2
                prior = matching.prior(x.flatten(0, 1)) / len(x)
                return matching.euclidean(x, labels) + self.invariance * apart + prior

            first = torch.stack([matching.dummy() for _ in range(epochs)])
            x, value = lbfgs(objective, first, (low, high), steps=self.steps, enough=self.enough)
            return (x, labels), value

        (x, labels), value = best_start(start, self.restarts, self.enough * 1e3)
        return Reconstruction(registered(x, labels), labels, value)
