"""Synthetic data of the group-privacy paper: users of two kinds, each kind with its own regression line."""

import torch

from fedveil.data import DataSet
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import keyed_seed

OPTIMA = ((5.0, 6.0), (4.0, -4.5))  # theta* of each kind of users


def load_mixture(
    *, users: int = 200, samples: int = 10, features: int = 2, noise: float = 1.0, seed: int = 0
) -> DataSet:
    """Make data y = x . theta_i + u with u uniform on [0, noise]; a user's kind i is drawn with equal chances.

    Source: Galli et al. 2023, section 4 and appendix B.1. The paper does not give the distribution of x; here it is
    standard normal. Features beyond the second have no influence.

    Parameters
    ----------
    users, samples : int
        Number of natural clients, and of examples per client.
    features : int
        Number n of features, at least 2.
    noise : float
        Upper end of u's range.
    seed : int
        Seed of the whole data set.
    """
    require_count("data.users", users)
    require_count("data.samples", samples)
    if require_count("data.features", features) < 2:
        raise FieldError("data.features", features, "must be at least 2")
    if not 0 <= noise < float("inf"):
        raise FieldError("data.noise", noise, "must be at least 0 and finite")
    generator = torch.Generator().manual_seed(keyed_seed("mixture", seed))
    kind = torch.randint(2, (users,), generator=generator)
    x = torch.randn(users * samples, features, generator=generator)
    theta = torch.zeros(2, features)
    theta[:, :2] = torch.tensor(OPTIMA)
    owner = torch.arange(users).repeat_interleave(samples)
    y = (x * theta[kind][owner]).sum(1) + noise * torch.rand(len(x), generator=generator)
    return DataSet(
        name="mixture",
        x=x,
        y=y,
        owner=owner,
        owners=tuple(f"{int(k)}-{i}" for i, k in enumerate(kind.tolist())),
        attributes={"kind": kind.to(torch.float64)},
        note=f"Made up: {users} users of two kinds, {samples} examples each.",
        licence="none needed",
    )
