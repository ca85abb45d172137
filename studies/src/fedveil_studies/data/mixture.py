"""The synthetic data of the group-privacy paper: users of two kinds, each with its own line."""

import torch

from fedveil.data import DataSet
from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import keyed_seed

OPTIMA = ((5.0, 6.0), (4.0, -4.5))  # theta* of each kind of users


def load_mixture(
    *, users: int = 200, samples: int = 10, features: int = 2, noise: float = 1.0, seed: int = 0
) -> DataSet:
    """Make y = x . theta_i + u, u uniform on [0, noise], where a user's kind i is drawn with equal chances.

    Source: Galli et al. 2023, section 4 and appendix B.1. How x is distributed the paper does not say: standard normal
    here. With more than two features the others have no influence.

    Parameters
    ----------
    users, samples : int
        Natural clients, and examples of each.
    features : int
        n, at least 2.
    noise : float
        Range of u.
    seed : int
        Of everything.
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
