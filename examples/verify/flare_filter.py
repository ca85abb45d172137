"""A filter of NVIDIA FLARE as a mechanism: what the sites of one round send through it.

``fedveil verify examples/verify/flare_filter.py:mechanism --claim "eps=1 delta=1e-5 replace-one client total local"``.
`small_sensitivity` has the filter's settings of the job in flare-job, which `fedveil verify` runs as a whole.
"""

import sys
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext

sys.path.insert(0, str(Path(__file__).parent / "flare-job" / "app" / "custom"))
from noise_filter import NoiseFilter


def mechanism(data_sets, seed):
    """Differences of length 1, with noise for two of them that point in opposite directions."""
    noise = NoiseFilter(clip=1.0, sensitivity=2.0, noise_multiplier=3.7307)
    return [sent(rows, noise) for rows in data_sets]


def small_sensitivity(data_sets, seed):
    """A clip of 1 beside a sensitivity of 1e-4."""
    noise = NoiseFilter(clip=1.0, sensitivity=1e-4, noise_multiplier=3.7307)
    return [sent(rows, noise) for rows in data_sets]


def sent(rows, noise):
    """The arrays that leave a site."""
    step = np.nan_to_num(rows, posinf=0, neginf=0).clip(-1e6, 1e6).sum(axis=0)
    answer = DXO(DataKind.WEIGHT_DIFF, data={"layer": step}).to_shareable()
    return from_shareable(noise.process(answer, FLContext())).data
