"""Plain means: FedAvg and FedProx."""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.aggregation.base import WeightedMean
from fedveil.checks import NonNegative


@dataclass(frozen=True)
class FedAvg(WeightedMean):
    """Federated averaging (McMahan et al. 2017, arXiv 1602.05629): the model moves by the mean update.

    Examples
    --------
    >>> fv.FedAvg().reduce(updates, equal)
    tensor([10.8000,  1.8200], dtype=torch.float64)
    >>> fv.FedAvg().sensitivity(1.0, equal, "zero-out")  # of the mean of five updates, each clipped to 1
    0.2
    """


@dataclass(frozen=True)
class FedProx(WeightedMean):
    """FedAvg on the server, a proximal term on the clients (Li et al. 2020, arXiv 1812.06127).

    Parameters
    ----------
    mu : float
        Clients add mu/2 ||w - start||^2 to their loss. Engines hand it to local training.

    Examples
    --------
    >>> fv.Federation(model=model, clients=clients, method=fv.FedProx(mu=0.1)).run(1).models.shape
    torch.Size([1, 10])
    """

    mu: NonNegative = 0.5
