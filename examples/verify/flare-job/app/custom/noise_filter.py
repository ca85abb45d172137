"""A filter that clips a difference, and sizes its noise for another sensitivity than the clip."""

import numpy as np
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter


class NoiseFilter(Filter):
    """Gaussian noise of `noise_multiplier` times `sensitivity` on a difference that is at most `clip` long."""

    def __init__(self, clip, sensitivity, noise_multiplier):
        super().__init__()
        self.clip, self.deviation = clip, sensitivity * noise_multiplier

    def process(self, shareable, fl_ctx):
        """Clip, add noise, send on."""
        dxo, rng = from_shareable(shareable), np.random.default_rng()
        length = np.sqrt(sum(float((np.asarray(v) ** 2).sum()) for v in dxo.data.values()))
        for name, value in dxo.data.items():
            clipped = np.asarray(value) * min(1.0, self.clip / max(length, 1e-12))
            dxo.data[name] = clipped + rng.normal(0, self.deviation, clipped.shape).astype(
                clipped.dtype
            )
        return dxo.update_shareable(shareable)
