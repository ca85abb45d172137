"""Plan: the noise for a target budget, or the budget of a noise, for unsubsampled Gaussian rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.accounting.guarantee import VACUOUS, Relation
from fedveil.errors import FieldError, require_choice, require_count, require_delta, require_positive
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon

# Largest change of the sum of updates clipped to C, in units of C, when one client changes.
FACTOR: dict[Relation, float] = {"zero-out": 1.0, "add/remove": 1.0, "replace-one": 2.0}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A budget and the noise that goes with it.

    Attributes
    ----------
    epsilon, delta : float
        Total over all rounds, for one client, under `relation`, trusting the server.
    rounds, clients : int
        Rounds composed; clients of the cohort, which all take part in every round.
    relation : str
        Which inputs are neighbours.
    clip : float
        Clipping norm C of a client's update.
    noise_multiplier : float
        z; the noise's deviation is z * C / clients.
    sigma : float
        Standard deviation per coordinate of the noise on the mean.
    mu : float
        Gaussian-DP parameter of all rounds.
    dimension : int, optional
        Number of parameters.
    """

    epsilon: float
    delta: float
    rounds: int
    clients: int
    relation: Relation
    clip: float
    noise_multiplier: float
    sigma: float
    mu: float
    dimension: int | None = None

    @property
    def vacuous(self) -> bool:
        """Whether epsilon excludes nothing in practice."""
        return self.epsilon > VACUOUS

    @property
    def signal_to_noise(self) -> float | None:
        """Clipping norm over the expected norm of the noise on the mean; None without a dimension."""
        return None if self.dimension is None else self.clip / (self.sigma * math.sqrt(self.dimension))

    def advice(self) -> str:
        """What to expect, and what would help."""
        snr = self.signal_to_noise
        if self.vacuous:
            return f"vacuous: an epsilon of {self.epsilon:.3g} excludes nothing in practice; raise the noise multiplier"
        if snr is None:
            return "give the number of parameters to see the signal-to-noise ratio"
        if snr >= 0.3:
            return "the noise is of the size of the signal or smaller: training can work"
        wanted = max(self.clients + 1, math.ceil(self.clients * 0.3 / snr))
        smaller = max(1, int((self.dimension or 1) * (snr / 0.3) ** 2))
        return (
            f"hopeless as it stands: the noise is {1 / snr:.3g} times a full-length update. What would work: "
            f"{wanted} clients, or {smaller} trainable parameters, or record-level privacy inside each client"
        )


def plan(
    *,
    rounds: int,
    clients: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clip: float = 1.0,
    relation: Relation = "zero-out",
    dimension: int | None = None,
) -> Plan:
    """Noise for a target epsilon, or epsilon for a noise multiplier (exactly one of the two is given).

    Parameters
    ----------
    rounds, clients : int
        Rounds; clients of each round's cohort (uniform weights, everybody in every round).
    delta : float
        Failure probability of the total.
    epsilon : float, optional
        Target for the total over all rounds; the plan never ends above it.
    noise_multiplier : float, optional
        z of global DP: sigma = z * C / clients.
    clip : float
        C.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.
    dimension : int, optional
        Number of parameters, for the signal-to-noise ratio.

    Raises
    ------
    FieldError
        If a value is out of range, or both or neither of epsilon and noise_multiplier are given.
    """
    rounds, clients = require_count("rounds", rounds), require_count("clients", clients)
    delta, clip = require_delta("delta", delta), require_positive("clip", clip)
    if dimension is not None:
        dimension = require_count("dimension", dimension)
    factor = FACTOR[require_choice("relation", relation, FACTOR)]  # type: ignore[index]
    if (epsilon is None) == (noise_multiplier is None):
        raise FieldError("epsilon", epsilon, "give either epsilon (to get the noise) or noise_multiplier")
    if epsilon is not None:
        mu = mu_of_epsilon(require_positive("epsilon", epsilon), delta)
        noise_multiplier = factor * math.sqrt(rounds) / mu
        while epsilon_of_mu(factor * math.sqrt(rounds) / noise_multiplier, delta) > epsilon:
            noise_multiplier *= 1 + 1e-12
    z = require_positive("noise_multiplier", noise_multiplier)
    mu = factor * math.sqrt(rounds) / z
    return Plan(
        epsilon=epsilon_of_mu(mu, delta),
        delta=delta,
        rounds=rounds,
        clients=clients,
        relation=relation,
        clip=clip,
        noise_multiplier=z,
        sigma=z * clip / clients,
        mu=mu,
        dimension=dimension,
    )
