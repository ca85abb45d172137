"""Five mechanisms whose claims hold, for all data that a world can hold."""

import numpy as np

Z1 = 3.7307  # noise over sensitivity for epsilon 1 at delta 1e-5, one release
CASES = {
    "gaussian_sum": {
        "claim": "eps=1 delta=1e-5 zero-out client total central",
        "steps": "noise_multiplier=3.7307",
    },
    "randomised_response": {"claim": "eps=1 delta=0 replace-one client total local"},
    "geometric_count": {"claim": "eps=1 delta=0 zero-out client total central"},
    "poisson_steps": {
        "claim": "eps=1 delta=1e-5 add/remove record total central",
        "steps": "noise_multiplier=1.9 lots=poisson rate=0.125 steps=8",
    },
    "local_noise": {
        "claim": "eps=1 delta=1e-5 replace-one client total local",
        "steps": "noise_multiplier=7.4614",
    },
}


def clipped(vector, most=1.0):
    """A vector of at most this length; one that is not finite counts as nothing."""
    if not np.isfinite(vector).all():
        return np.zeros_like(vector)
    return vector * min(1.0, most / max(float(np.linalg.norm(vector)), 1e-300))


def gaussian_sum(data_sets, seed):
    """Clients are clipped and summed; the noise is for one of them."""
    total = sum(clipped(rows.sum(axis=0)) for rows in data_sets)
    return total + np.random.default_rng(seed).normal(0, Z1, total.shape)


def randomised_response(data_sets, seed):
    """Each client says whether its sum is positive, and lies with probability 1 / (1 + e)."""
    truth = np.array([float(np.nan_to_num(rows[:, 0].sum()) > 0) for rows in data_sets])
    lies = np.random.default_rng(seed).random(len(truth)) < 1 / (1 + np.e)
    return np.where(lies, 1 - truth, truth)


def geometric_count(data_sets, seed):
    """How many clients have a positive sum, with two-sided geometric noise."""
    rng = np.random.default_rng(seed)
    count = sum(np.nan_to_num(rows[:, 0].sum()) > 0 for rows in data_sets)
    return int(count) + int(rng.geometric(1 - np.exp(-1))) - int(rng.geometric(1 - np.exp(-1)))


def poisson_steps(data_sets, seed):
    """Eight steps; each record is in each of them with probability 1/8."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate(data_sets)
    sent = []
    for _ in range(8):
        lot = rows[rng.random(len(rows)) < 0.125]
        sent.append(
            sum((clipped(row) for row in lot), np.zeros(rows.shape[1]))
            + rng.normal(0, 1.9, rows.shape[1])
        )
    return np.array(sent)


def local_noise(data_sets, seed):
    """Each client adds noise of its own, for the two ends of what it may send."""
    rng = np.random.default_rng(seed)
    return np.array(
        [clipped(rows.sum(axis=0)) + rng.normal(0, 2 * Z1, rows.shape[1]) for rows in data_sets]
    )
