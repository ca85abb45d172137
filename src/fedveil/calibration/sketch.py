"""Random projections of the layers: farthest pairs of large cohorts without the whole models.

Source: Achlioptas 2003, "Database-friendly random projections", whose coins project as well as normal draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveil.calibration.pairs import centred, column_blocks
from fedveil.errors import FieldError, require_count, require_delta


@dataclass(frozen=True)
class Sketch:
    """Finds the farthest pair of models by a random projection; the pair found is measured exactly.

    Every layer of more than `size` coordinates is projected to `size`, by random signs that follow from the seed. With
    probability 1 - failure over the seed, every square (of a layer's distance between two models) is kept up to a
    factor within 1 -+ e; `error` gives e, which falls as 1 / sqrt(size). So

        sqrt((1 - e) / (1 + e)) * d <= result <= d,    d the exact largest distance.

    The result is never above d: it is the distance of two of the models. Where a larger distance gives less noise, a
    sketch therefore errs on the side of noise; with direction ``"more"`` it errs on the other side: measure exactly
    there. A sketch protects nobody: it depends on the models as d itself does, metric privacy stays heuristic with it,
    and the formal variants have no use for it, for theirs is a distance of released models.

    Parameters
    ----------
    size : int
        k, coordinates a layer.
    seed : int
        Public; models that were made to fit a known seed can hide a distance, so draw it after they are in.

    Examples
    --------
    >>> round(Sketch(size=1024).error(models=1000, layers=4), 2)
    0.33
    """

    size: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        """Check both."""
        require_count("size", self.size)
        require_count("seed", self.seed, least=0)

    def error(self, models: int, layers: int, failure: float = 1e-3) -> float:
        """E: how far squared distances are off, relative, for all pairs and layers at once.

        Parameters
        ----------
        models, layers : int
            How many.
        failure : float
            Probability, over the seed, that one of them is further off.

        Raises
        ------
        FieldError
            If the size is too small for any promise (e would be 1 or more).
        """
        pairs = require_count("models", models, least=2) * (models - 1) / 2 * require_count("layers", layers)
        # either tail of one square has probability exp(-k (e^2 / 2 - e^3 / 3) / 2) at most
        needed = 2 * math.log(2 * pairs / require_delta("failure", failure)) / self.size
        if needed >= 1 / 6:
            raise FieldError(
                "size", self.size, f"promises nothing here: take at least {math.ceil(6 * needed * self.size)}"
            )
        low, high = 0.0, 1.0
        for _ in range(60):
            e = (low + high) / 2
            low, high = (e, high) if e * e / 2 - e**3 / 3 < needed else (low, e)
        return high

    def project(self, models: Tensor, groups: list[list[slice]]) -> tuple[Tensor, list[list[slice]]]:
        """Project the layers of models [n, d]; returns [n, K] float32 and the layers' places in it."""
        generator = np.random.Generator(np.random.Philox(key=self.seed))
        everybody = torch.arange(len(models))
        layers, places, start = [], [], 0
        for columns in groups:
            width = sum(s.stop - s.start for s in columns)
            layer = torch.zeros(len(models), min(width, self.size), dtype=torch.float64)
            seen = 0
            for block in column_blocks((models,), columns, everybody):
                part, _, unit = centred(block, torch.float32)
                if width <= self.size:
                    layer[:, seen : seen + part.shape[1]] = part.double() * unit
                else:
                    layer.add_(part @ self._signs(part.shape[1], generator), alpha=unit / math.sqrt(self.size))
                seen += part.shape[1]
            layers.append(layer)
            places.append([slice(start, start + layer.shape[1])])
            start += layer.shape[1]
        return torch.cat(layers, dim=1), places

    def _signs(self, rows: int, generator: np.random.Generator) -> Tensor:
        """Fair coins [rows, k], -1 or 1."""
        count = rows * self.size
        bits = np.unpackbits(np.frombuffer(generator.bytes((count + 7) // 8), dtype=np.uint8), count=count)
        return torch.from_numpy(bits).reshape(rows, self.size).to(torch.float32).mul_(2).sub_(1)
