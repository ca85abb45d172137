"""Mechanisms that public apps and pull requests describe, with the epsilon that they print.

Sources and what is assumed: results/published/README.md, "Apps in the open". Each function is what the text describes,
in a few lines; nothing is anybody's code.
"""

import numpy as np

CLIENT = "delta=1e-5 zero-out client total central"
CASES = {
    "flip_tutorial": {
        "claim": f"eps=10 {CLIENT} gaussian",
        "steps": "sigma=4.84481e-5 clip=1 sensitivity=1e-4 rounds=3",
    },
    "ruview_conservative": {
        "claim": f"eps=2 {CLIENT} gaussian",
        "steps": "noise_multiplier=1.5 rounds=50",
    },
    "ruview_standard": {
        "claim": f"eps=5 {CLIENT} gaussian",
        "steps": "noise_multiplier=1 rounds=100",
    },
    "ruview_lenient": {
        "claim": f"eps=8 {CLIENT} gaussian",
        "steps": "noise_multiplier=0.5 rounds=100",
    },
    "flower_opacus": {  # by the PRV accountant; nothing to run: the difference is out of reach of scores
        "claim": "eps=0.211 delta=1e-5 zero-out record total local",
        "steps": "noise_multiplier=1 lots=poisson rate=0.0016 steps=625 rounds=3",
    },
    "flower_hub_opacus": {  # ten clients of 4,000 images, fifty rounds, the epsilon of each printed by itself (RDP)
        "claim": "eps=1.12 delta=1e-5 zero-out record total local",
        "steps": "noise_multiplier=1 lots=poisson rate=0.008 steps=125 rounds=50",
    },
    "fl_dp_sa": {  # prints none; three rounds, a clip of 10 and noise of deviation 2 on the sum
        "claim": None,
        "unit": "zero-out client total central",
        "steps": "clip=10 sigma=2 rounds=3",
    },
    "flamby_heart": {  # Cleveland: a patient is in one lot of each of thirty passes
        "claim": "eps=1 delta=1e-4 zero-out record total local",
        "steps": "noise_multiplier=2.109 lots=shuffled epochs=30",
    },
    "flamby_hungary": {
        "claim": "eps=1 delta=1e-4 zero-out record total local",
        "steps": "noise_multiplier=2.266 lots=shuffled epochs=35",
    },
    "flamby_long_beach": {
        "claim": "eps=1 delta=1e-4 zero-out record total local",
        "steps": "noise_multiplier=3.086 lots=shuffled epochs=69",
    },
    "flamby_switzerland": {
        "claim": "eps=1 delta=1e-4 zero-out record total local",
        "steps": "noise_multiplier=5 lots=shuffled epochs=188",
    },
}


def clipped_sum(data_sets):
    """The sum of the clients' rows, each client at most 1 long."""
    total = np.zeros(data_sets[0].shape[1])
    for rows in data_sets:
        one = rows.sum(axis=0)
        if np.isfinite(one).all():
            total += one * min(1.0, 1 / max(float(np.linalg.norm(one)), 1e-300))
    return total


def noisy_rounds(data_sets, seed, deviation, rounds):
    """The clipped sum with noise of its own in every round."""
    total = clipped_sum(data_sets)
    return total + np.random.default_rng(seed).normal(0, deviation, (rounds, len(total)))


def flip_tutorial(data_sets, seed):
    """A clip of 1, and noise for a sensitivity of 1e-4 and epsilon 10 in each of three rounds."""
    return noisy_rounds(data_sets, seed, 4.84481e-5, 3)


def ruview_conservative(data_sets, seed):
    """Sigma 1.5 and 50 rounds, called epsilon 2."""
    return noisy_rounds(data_sets, seed, 1.5, 50)


def ruview_standard(data_sets, seed):
    """Sigma 1 and 100 rounds, called epsilon 5."""
    return noisy_rounds(data_sets, seed, 1.0, 100)


def ruview_lenient(data_sets, seed):
    """Sigma 0.5 and 100 rounds, called epsilon 8."""
    return noisy_rounds(data_sets, seed, 0.5, 100)
