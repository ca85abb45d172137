"""Thirteen mechanisms whose claims are wrong, each as it was found in public code, in a few lines.

Try one: ``fedveil verify examples/verify/wrong.py:divided_late --clients 8 --claim "eps=1 delta=1e-5 zero-out client
total central"``. Every mechanism takes data sets, one array [examples, columns] a client, and a seed.
"""

import numpy as np

Z1, Z2 = 3.7307, 1.9939  # noise over sensitivity for epsilon 1 and 2 at delta 1e-5, one release
CLIENT = "zero-out client total central"
RECORD = "zero-out record total central"  # the command refuses it, as in most functions a row of zeros counts

# what is claimed, how much data the worlds have, what the code does where a claim can be composed, who catches it
CASES = {
    "divided_late": {"claim": f"eps=1 delta=1e-5 {CLIENT}", "clients": 8, "by": "worst-case world"},
    "clipped_by_parameter": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "columns": 64,
        "by": "worst-case world",
    },
    "small_sensitivity": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "steps": "noise_multiplier=3.7307 sensitivity=1e-4 clip=1",
        "by": "worst-case world, inspection",
    },
    "private_counts": {
        "claim": "eps=1 delta=1e-5 add/remove record total central",
        "clients": 2,
        "columns": 16,
        "steps": "noise_multiplier=3.7307 denominator=private",
        "by": "worst-case world, inspection",
    },
    "weighted_by_examples": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "clients": 8,
        "steps": "noise_multiplier=3.7307 weights=examples",
        "by": "worst-case world, inspection",
    },
    "small_seed": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "steps": "noise_multiplier=3.7307 seed=guessable",
        "by": "worst-case world, inspection",
    },
    "clipped_by_record": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "steps": "noise_multiplier=3.7307 per_unit=128",
        "by": "worst-case world, inspection",
    },
    "one_coordinate_bare": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "steps": "noise_multiplier=3.7307 noised=some",
        "by": "worst-case world, inspection",
    },
    "clipped_once": {
        "claim": f"eps=2 delta=1e-5 {CLIENT}",
        "steps": "noise_multiplier=3.4535 rounds=3 clipped=first_round",
        "by": "worst-case world, inspection",
    },
    "noise_reused": {
        "claim": f"eps=2 delta=1e-5 {CLIENT}",
        "steps": "noise_multiplier=3.9878 rounds=4 noise_drawn=reused",
        "by": "worst-case world, inspection",
    },
    "fresh_accountant": {
        "claim": f"eps=2 delta=1e-5 {CLIENT}",
        "columns": 2,
        "steps": "noise_multiplier=1.9939 rounds=30",
        "by": "composition, worst-case world",
    },
    "shuffled_lots": {
        "claim": f"eps=1 delta=1e-5 {RECORD}",
        "steps": "noise_multiplier=2.48 lots=shuffled epochs=1",
        "by": "inspection",
    },
    "private_standardising": {
        "claim": f"eps=1 delta=1e-5 {CLIENT}",
        "clients": 8,
        "columns": 2,
        "steps": "noise_multiplier=3.7307 normaliser=private",
        "by": "worst-case world, inspection",
    },
}


def clipped(vector, most=1.0):
    """A vector of at most this length; one that is not finite counts as nothing."""
    if not np.isfinite(vector).all():
        return np.zeros_like(vector)
    return vector * min(1.0, most / max(float(np.linalg.norm(vector)), 1e-300))


def of_clients(data_sets):
    """The sum of each client's rows."""
    return [rows.sum(axis=0) for rows in data_sets]


def divided_late(data_sets, seed):
    """Noise that is enough for the mean, added to the sum; then both are divided."""
    total = sum(clipped(one) for one in of_clients(data_sets))
    noise = np.random.default_rng(seed).normal(0, Z1 / len(data_sets), total.shape)
    return (total + noise) / len(data_sets)


def clipped_by_parameter(data_sets, seed):
    """Each parameter is clipped to 1, and noise is sized as if the whole vector was."""
    total = sum(np.clip(np.nan_to_num(one), -1, 1) for one in of_clients(data_sets))
    return total + np.random.default_rng(seed).normal(0, Z1, total.shape)


def small_sensitivity(data_sets, seed):
    """A clip of 1 beside a sensitivity of 1e-4."""
    total = sum(clipped(one) for one in of_clients(data_sets))
    return total + np.random.default_rng(seed).normal(0, Z1 * 1e-4, total.shape)


def private_counts(data_sets, seed):
    """A mean over as many records as there are, with noise for that many."""
    rows = np.concatenate(data_sets)
    count = max(1, len(rows))
    mean = sum((clipped(row) for row in rows), np.zeros(rows.shape[1])) / count
    return mean + np.random.default_rng(seed).normal(0, Z1 / count, mean.shape)


def weighted_by_examples(data_sets, seed):
    """Clients weigh as much as they have examples; the noise is that of equal weights."""
    counts = np.array([len(rows) for rows in data_sets])
    means = [
        clipped(rows.mean(axis=0)) if len(rows) else np.zeros(rows.shape[1]) for rows in data_sets
    ]
    mean = np.average(means, axis=0, weights=counts) if counts.any() else means[0]
    return mean + np.random.default_rng(seed).normal(0, Z1 / len(data_sets), mean.shape)


def small_seed(data_sets, seed):
    """A seed of four bits: whoever tries all sixteen subtracts the noise."""
    total = sum(clipped(one) for one in of_clients(data_sets))
    return total + np.random.default_rng(seed % 16).normal(0, Z1, total.shape)


def clipped_by_record(data_sets, seed):
    """Each record is clipped, and a client's promise is made of it."""
    rows = np.concatenate(data_sets)
    total = sum((clipped(row) for row in rows), np.zeros(rows.shape[1]))
    return total + np.random.default_rng(seed).normal(0, Z1, total.shape)


def one_coordinate_bare(data_sets, seed):
    """Noise on all coordinates but the last."""
    total = sum(clipped(one) for one in of_clients(data_sets))
    noise = np.random.default_rng(seed).normal(0, Z1, total.shape)
    noise[-1] = 0
    return total + noise


def clipped_once(data_sets, seed):
    """Three rounds towards the clients' data, of which the first clips."""
    rng, model, sent = np.random.default_rng(seed), np.zeros(data_sets[0].shape[1]), []
    for number in range(3):
        steps = [np.nan_to_num(one) - model * bool(one.any()) for one in of_clients(data_sets)]
        total = sum(clipped(step) if number == 0 else step for step in steps)
        model = model + 0.5 * (total + rng.normal(0, Z2 * 3**0.5, model.shape))
        sent.append(model)
    return np.array(sent)


def noise_reused(data_sets, seed):
    """Four rounds of smaller and smaller steps; every second one takes the noise of the one before."""
    rng, sent, noise = np.random.default_rng(seed), [], np.zeros(data_sets[0].shape[1])
    for number in range(4):
        if number % 2 == 0:
            noise = rng.normal(0, 2 * Z2, noise.shape)
        total = sum(clipped(one / 2**number) for one in of_clients(data_sets))
        sent.append(total + noise)
    return np.array(sent)


def fresh_accountant(data_sets, seed):
    """Thirty rounds, each with the noise of epsilon 2, and the accountant begins anew in each."""
    rng = np.random.default_rng(seed)
    total = sum(clipped(one) for one in of_clients(data_sets))
    return np.array([total + rng.normal(0, Z2, total.shape) for _ in range(30)])


def shuffled_lots(data_sets, seed):
    """One pass over shuffled lots, with noise that is enough for Poisson lots of that size."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.concatenate(data_sets))
    lots = np.array_split(rows, 4)
    zero = np.zeros(rows.shape[1])
    return np.array(
        [sum((clipped(row) for row in lot), zero) + rng.normal(0, 2.48, zero.shape) for lot in lots]
    )


def private_standardising(data_sets, seed):
    """Mean and spread come from everybody's data; then each client is clipped."""
    rows = np.nan_to_num(np.concatenate(data_sets), posinf=0, neginf=0).clip(-1e6, 1e6)
    if len(rows) == 0:
        rows = np.zeros((1, rows.shape[1]))
    middle, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-12
    total = sum(
        clipped(((np.nan_to_num(one).clip(-1e6, 1e6) - middle) / spread).sum(axis=0))
        for one in data_sets
    )
    return total + np.random.default_rng(seed).normal(0, Z1, total.shape)
