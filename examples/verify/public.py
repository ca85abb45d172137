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
        "claim": "eps=0.211 delta=1e-5 add/remove record total local",
        "steps": "noise_multiplier=1 lots=poisson rate=0.0016 steps=625 rounds=3",
    },
    "flower_hub_opacus": {  # ten clients of 4,000 images, fifty rounds, the epsilon of each printed by itself (RDP)
        "runs": 80_000,
        "columns": 1,
        "claim": "eps=1.12 delta=1e-5 add/remove record total local",
        "steps": "noise_multiplier=1 lots=poisson rate=0.008 steps=125 rounds=50",
    },
    "fl_dp_sa": {  # prints none; three rounds, a clip of 10 and noise of deviation 2 on the sum
        "claim": None,
        "unit": "zero-out client total central",
        "steps": "clip=10 sigma=2 rounds=3",
    },
    "jax_privacy_example": {  # noise for the sum of a lot is added to its mean: 256 times too much; lots are shuffled
        "claim": "eps=1 delta=1e-5 replace-one record total central",
        "steps": "sigma=3091 lots=shuffled epochs=100",
    },
    "jax_privacy_example_seed": {  # the same, with the seed that the example writes down
        "claim": "eps=1 delta=1e-5 replace-one record total central",
        "steps": "sigma=3091 lots=shuffled epochs=100 seed=guessable",
    },
    "fedbiomed_central": {  # names no epsilon; a clip of each parameter, and noise for a clip of all of them
        "claim": None,
        "unit": "zero-out client total central",
        "steps": "clip=2 sensitivity=1 noise_multiplier=3.7307",
    },
    "flamby_heart": {  # Cleveland: a patient is in one lot of each of thirty passes; add/remove would move all lots
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


def flower_hub_opacus(data_sets, seed):
    """What a client sends after each of fifty rounds: the sum of its noisy steps so far, each of a Poisson lot."""
    rng, rounds, steps, rate = np.random.default_rng(seed), 50, 125, 0.008
    total = np.zeros((rounds, data_sets[0].shape[1]))
    for row in np.concatenate(data_sets):
        if np.isfinite(row).all() and row.any():
            clipped = row / max(1.0, float(np.linalg.norm(row)))
            total += rng.binomial(steps, rate, (rounds, 1)) * clipped
    total += rng.normal(0, steps**0.5, total.shape)
    return total.cumsum(axis=0)


def passes_over_lots(data_sets, rng):
    """A hundred passes; the record's lot has noise of 6.04 x 2 on its mean, and 256 records."""
    total = np.zeros(data_sets[0].shape[1])
    for row in np.concatenate(data_sets):
        if np.isfinite(row).all():
            total += row / max(1.0, float(np.linalg.norm(row)))
    return total / 256 + rng.normal(0, 2 * 6.037, (100, len(total)))


def jax_privacy_example(data_sets, seed):
    """Noise that is sized for a sum, on a mean."""
    return passes_over_lots(data_sets, np.random.default_rng(seed))


def jax_privacy_example_seed(data_sets, _seed):
    """The same with a seed that is written down."""
    return passes_over_lots(data_sets, np.random.default_rng(42))
