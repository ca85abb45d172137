"""Plans of noise: the least noise for many steps, and the missing figure of a plan over rounds."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import scipy

from fedveil.accounting.composition import epsilon as epsilon_of
from fedveil.accounting.events import Event, Gaussian, Poisson, Relation, factor_of
from fedveil.accounting.filters import StepFilter
from fedveil.accounting.guarantee import VACUOUS
from fedveil.errors import FieldError, require_a, require_count, require_positive
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon, noise_of_epsilon, rounded_up
from fedveil.ranges import require_within

ENOUGH = 0.3  # signal-to-noise ratio of a run below which little or nothing was learned
_WIDEST = 1e6  # a noise multiplier with which nothing can be learned


def step_event(noise_multiplier: float, rate: float = 1.0) -> Event:
    """Return the accountant's event for one noisy step: Gaussian noise on a sum over all units, or over a Poisson sample."""
    noise = Gaussian(noise_multiplier)
    return noise if rate == 1 else Poisson(rate, noise)


@lru_cache(maxsize=256)
def least_places(examples: int, rate: float, chance: float) -> int:
    """Return the smallest batch size that a Poisson sample exceeds with at most this chance; at most `examples`."""
    low, high = -1, examples
    while high - low > 1:
        middle = (low + high) // 2
        if scipy.special.bdtrc(middle, examples, rate) <= chance:
            high = middle
        else:
            low = middle
    return max(high, 1)


def least_noise(
    epsilon: float,
    delta: float,
    steps: int,
    *,
    rate: float = 1.0,
    relation: Relation = "zero-out",
) -> float:
    """Find the least noise multiplier z = sigma / C with which all steps together stay within (epsilon, delta).

    Parameters
    ----------
    epsilon, delta : float
        Target of the total.
    steps : int
        Number of noisy steps, each with noise of deviation z * C on a sum of contributions clipped to C.
    rate : float
        Poisson sampling rate of each step, in (0, 1].
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.

    Returns
    -------
    float
        Noise multiplier, never below the exact one; accurate to 4 digits with sampling, to 12 without.

    Raises
    ------
    FieldError
        If no noise reaches epsilon, or it is not above delta.
    """
    epsilon, delta = (
        require_within("epsilon", "epsilon", epsilon),
        require_within("delta", "delta", delta),
    )
    if epsilon <= delta:
        accepted = f"says no more than its delta of {delta:g}, and leaves nothing to learn: raise it, or lower delta"
        raise FieldError("epsilon", epsilon, accepted)
    steps = require_count("steps", steps)
    require_a("rate", rate, (int, float), "must be a number")
    require_a("relation", relation, str, "must be the name of a relation")
    return _least_noise(epsilon, delta, steps, float(rate), relation)


@lru_cache(maxsize=64)
def _least_noise(
    epsilon: float,
    delta: float,
    steps: int,
    rate: float,
    relation: Relation,
) -> float:
    """Compute `least_noise` for checked arguments."""
    sampled = step_event(1.0, rate) != Gaussian(1.0)
    change = factor_of(relation) * math.sqrt(steps)
    most = noise_of_epsilon(epsilon, delta, change)
    if not most < _WIDEST:
        accepted = (
            f"no noise reaches it in {steps} steps: raise epsilon or delta, or take fewer steps"
        )
        raise FieldError("epsilon", epsilon, accepted)
    if not sampled:
        return most

    def excess(log_noise: float) -> float:
        event = step_event(math.exp(log_noise), rate)
        return epsilon_of([(event, steps)], delta, relation) - epsilon

    if (
        excess(math.log(most)) > 0
    ):  # the grid of the loss distribution is too coarse for such a small epsilon
        accepted = (
            "is below what the accountant resolves under sampling: raise it, or set the rate to 1"
        )
        raise FieldError("epsilon", epsilon, accepted)
    least = most
    while excess(math.log(least)) <= 0:  # sampling only lowers the cost of a noise
        least /= 2
    logarithm = scipy.optimize.brentq(excess, math.log(least), math.log(2 * least), xtol=2e-5)
    while excess(logarithm) > 0:
        logarithm += 2e-5
    return math.exp(logarithm)


def judged(noise_to_signal: float) -> Literal["possible", "hard", "hopeless"]:
    """Judge by a rule of thumb whether training can work.

    Parameters
    ----------
    noise_to_signal : float
        Expected length of the noise of all rounds, divided by the largest possible length of all their mean updates.
    """
    if noise_to_signal <= 1:
        return "possible"
    return "hard" if noise_to_signal <= 1 / ENOUGH else "hopeless"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a run under a trusted server: privacy budget, rounds, clients and noise.

    Attributes
    ----------
    epsilon, delta : float
        Total over all rounds for one client under `relation`, with a trusted server.
    rounds, clients : int
        Number of rounds; number of clients, all of whom take part in every round.
    relation : str
        Neighbouring inputs.
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
    update_norm : float, optional
        Typical length of an update before clipping; by default the clipping norm.
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
    update_norm: float | None = None

    @property
    def vacuous(self) -> bool:
        """Whether epsilon is so large that it excludes nothing in practice."""
        return self.epsilon > VACUOUS

    @property
    def signal_to_noise(self) -> float | None:
        """Largest length of all rounds' mean updates over the expected length of their noise; None without a dimension.

        Updates that point in one direction add up with the rounds, and noise with their square root.
        """
        if self.dimension is None:
            return None
        return self._signal / (self.sigma * math.sqrt(self.dimension / self.rounds))

    @property
    def _signal(self) -> float:
        """Typical length of an update after clipping."""
        return min(self.clip, self.update_norm or self.clip)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the plan, one text each."""
        doubts = delta_warning(self.delta, self.clients)
        if self.relation == "add/remove":
            doubts += (
                "add/remove holds only if the planned cohort stays the same, and unsampled, whoever belongs",
            )
        return doubts

    def advice(self) -> str:
        """Describe whether training can work, and what would help."""
        snr = self.signal_to_noise
        if self.vacuous:
            enough = self.noise_multiplier * self.mu / mu_of_epsilon(VACUOUS, self.delta)
            raised = f"raise the noise multiplier, to {rounded_up(enough, 3)} for an epsilon of {VACUOUS:g}"
            return f"vacuous: an epsilon of {rounded_up(self.epsilon, 3)} excludes nothing in practice; {raised}"
        if snr is None:
            most = self._largest_dimension()
            models = f"a model of at most {_counted(most, 'parameter')}" if most else "no model"
            asked = "give the number of parameters (dimension) to see noise/signal"
            return f"with this noise training can work for {models}; {asked}"
        times = f"{float(f'{1 / snr:.3g}'):,g} times as long as all updates together can be"
        verdict = judged(1 / snr)
        if verdict == "possible":
            return f"possible: training can work, as the noise is {times}"
        if verdict == "hard":
            return f"hard: the noise is {times}, and training can work up to about {1 / ENOUGH:.2g} times"
        ways = ", or ".join(
            [*self._changes(snr), "record-level privacy inside each client, which promises less"]
        )
        return f"hopeless as it stands: the noise is {times}. What would work instead: {ways}"

    def _largest_dimension(self) -> int:
        return int(self.rounds * (self._signal / (ENOUGH * self.sigma)) ** 2)

    def _changes(self, snr: float) -> list[str]:
        """List changes of one figure each that raise the signal-to-noise ratio to `ENOUGH`, all else equal."""
        clients = max(self.clients + 1, math.ceil(self.clients * ENOUGH / snr))
        ways = [f"{clients:,} clients in every round"]
        dimension = self._largest_dimension()
        if dimension:
            ways.append(_counted(dimension, "trainable parameter"))
        weaker = epsilon_of_mu(self.mu * ENOUGH / snr, self.delta)
        if weaker <= VACUOUS:
            ways.append(f"an epsilon of {rounded_up(weaker, 3)}")
        return ways


def _counted(number: int, thing: str) -> str:
    plural = "" if number == 1 else "s"
    return f"{number:,} {thing}{plural}"


def delta_warning(delta: float, units: int, unit: str = "client") -> tuple[str, ...]:
    """Return a warning if delta is so large that publishing some units outright would satisfy it; else nothing."""
    if delta <= 1 / units:
        return ()
    return (
        f"delta {delta:g} is above 1/n: it allows giving away one of the {units} {unit}s whole",
    )


def plan(
    *,
    delta: float,
    rounds: int | None = None,
    clients: int | None = 1,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clip: float | None = None,
    relation: Relation = "zero-out",
    dimension: int | None = None,
    update_norm: float | None = None,
    signal_to_noise: float = ENOUGH,
) -> Plan:
    """Compute the one figure of a plan that is left open, such as the noise for a target epsilon.

    Parameters
    ----------
    delta : float
        Failure probability of the total.
    rounds : int, optional
        Number of rounds. If left open: the most rounds that epsilon and the noise multiplier allow.
    clients : int, optional
        Clients of each round's cohort, with uniform weights and everybody in every round. None: the smallest cohort
        that reaches `signal_to_noise` with `dimension` parameters.
    epsilon : float, optional
        Target of the total over all rounds. If left open: the cost of the noise multiplier.
    noise_multiplier : float, optional
        z of global DP, sigma = z * C / clients. If left open: the least that meets epsilon.
    clip : float, optional
        C. If left open: the typical length of an update, or 1. A larger C only adds noise. A smaller C reduces signal
        and noise alike, and adds bias.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.
    dimension : int, optional
        Number of parameters, for the signal-to-noise ratio.
    update_norm : float, optional
        Typical length of an update before clipping, from public data or a guess.
    signal_to_noise : float
        Least signal-to-noise ratio, if the cohort is left open.

    Returns
    -------
    Plan
        All figures.

    Raises
    ------
    FieldError
        If a value is out of range, or not exactly one figure is left open.
    """
    delta = require_within("delta", "delta", delta)
    if update_norm is not None:
        require_positive("update_norm", update_norm)
    clip = require_within("clip", "clip", clip if clip is not None else update_norm or 1.0)
    if dimension is not None:
        dimension = require_count("dimension", dimension)
    factor = factor_of(relation)
    rounds, z = _rounds_and_noise(rounds, epsilon, noise_multiplier, delta, relation)
    if clients is None:
        if dimension is None:
            raise FieldError("clients", None, "leave it open only if the dimension is given")
        share = min(1.0, (update_norm or clip) / clip)
        wanted = require_positive("signal_to_noise", signal_to_noise)
        alone = wanted * z * math.sqrt(dimension / rounds) / share
        clients = math.ceil(require_positive("clients", alone))
    clients = require_count("clients", clients)
    mu = factor * math.sqrt(rounds) / z
    return Plan(
        epsilon=epsilon_of_mu(mu, delta),
        delta=delta,
        rounds=rounds,
        clients=clients,
        relation=relation,
        clip=clip,
        noise_multiplier=z,
        sigma=require_within("sigma", "sigma", z * clip / clients),
        mu=mu,
        dimension=dimension,
        update_norm=update_norm,
    )


def _rounds_and_noise(
    rounds: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    relation: Relation,
) -> tuple[int, float]:
    """Return rounds and noise multiplier; one of them may be left open if epsilon is given."""
    if rounds is None:
        if epsilon is None or noise_multiplier is None:
            raise FieldError(
                "rounds", None, "give the rounds, or both epsilon and noise_multiplier for the most"
            )
        z = require_within("noise multiplier", "noise_multiplier", noise_multiplier)
        most = StepFilter.within(Gaussian(z), epsilon, delta, relation).steps
        if not most:
            raise FieldError(
                "noise_multiplier", noise_multiplier, f"one round exceeds epsilon {epsilon:g}"
            )
        return most, z
    if (epsilon is None) == (noise_multiplier is None):
        raise FieldError(
            "epsilon", epsilon, "give either epsilon (to get the noise) or noise_multiplier"
        )
    rounds = require_count("rounds", rounds)
    if epsilon is None:
        return rounds, require_within("noise multiplier", "noise_multiplier", noise_multiplier)
    epsilon = require_within("epsilon", "epsilon", epsilon)
    return rounds, noise_of_epsilon(epsilon, delta, factor_of(relation) * math.sqrt(rounds))
