"""Malicious clients that send something else than their trained model, without knowing other updates.

Two attack SGA-LDP, after the limits that its paper names (a client works out its own budget), built here: one lies
about its budget, one pulls the similarity's reference.

    lie       sent = start + clip(update) + N(0, sigma^2 I)        sigma as if the similarity were 1, or 0
    pull      sent = start + C u                              u the same direction for all fellows, kept over rounds

Pulling: the reference is the last global change, mean of all that was sent. Honest clients send noise of norm about
sigma sqrt(d), which averages out; f fellows that agree add f C / n along u in every round. The cosine of an honest
update with the reference falls, and so does its budget, while u's own rises. Both are malicious clients with modified
software, so that no method protects what they send (`bypass`).
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedveil.checks import NonNegative, Positive
from fedveil.clipping import clip
from fedveil.engines import Behaviour, Turn
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks.poisoning.data import BEHAVIOURS, Around


@BEHAVIOURS.register("sign-flip")
@dataclass(frozen=True, eq=False, kw_only=True)
class SignFlip(Behaviour):
    """Malicious client that sends its trained update with reversed sign, times `factor`.

    Sign flip: send the trained update turned round.

    Source: Li et al. 2019 (arXiv 1811.03761) and others.

        sent = start - factor (trained - start)

    Threat model: malicious clients that know nothing of the others.
    """

    factor: Positive = 1.0
    bypass: bool = False

    def model(self, turn: Turn) -> Tensor:
        """Return the start less the update."""
        return turn.start + turn.update * -self.factor


@BEHAVIOURS.register("scaling")
@dataclass(frozen=True, eq=False, kw_only=True)
class Scaling(Around):
    """Malicious client that sends a multiple of another behaviour's update.

    Scaling: send a multiple of the trained update, up to replacing the whole mean.

    Source: model replacement (Bagdasaryan et al. 2020, arXiv 1807.00459, equation 3).

        sent = start + factor (trained - start)        factor n / f: f malicious of n replace a uniform mean

    Threat model: malicious clients that train (mostly on poisoned data) and scale what they send.

    Parameters
    ----------
    of : Behaviour
        Behaviour that trains. Default: an honest client.
    factor : float, optional
        Factor of the update. Default: cohort size / number of malicious clients.
    bypass : bool
        Whether the method's protection (its clipping) is left out.
    """

    factor: Positive | None = None
    bypass: bool = False

    def model(self, turn: Turn) -> Tensor:
        """Return the start plus a multiple of the other behaviour's update."""
        if self.factor is None:
            factor = turn.broadcast.public.cohort / len(turn.fellows)
        else:
            factor = self.factor
        return turn.start + self.update(turn) * factor


def random_vector(length: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a vector [d] of norm `length`, uniform on the sphere, with the type and device of `like`."""
    draw = torch.randn(len(like), generator=generator, dtype=torch.float64)
    return (draw * (length / float(draw.norm()))).to(like.dtype)


def generator_of(name: str, seed: int, turn: Turn) -> torch.Generator:
    """Make the random generator of a client in a round."""
    return torch.Generator().manual_seed(
        keyed_seed(name, seed, turn.broadcast.public.round, turn.partition)
    )


@BEHAVIOURS.register("noise")
@dataclass(frozen=True, eq=False, kw_only=True)
class NoiseAttack(Behaviour):
    """Malicious client that sends a fresh random vector, `factor` times as long as its trained update.

    Source: Blanchard et al. 2017, "Machine learning with adversaries" (the Gaussian attack).

        sent = start + factor |trained - start| g        g uniform on the sphere, another for every client and round

    Threat model: malicious clients that know nothing of the others.
    """

    factor: Positive = 1.0
    seed: int = 0
    bypass: bool = False

    def model(self, turn: Turn) -> Tensor:
        """Return the start plus noise."""
        length = self.factor * float(turn.update.norm())
        return turn.start + random_vector(
            length, turn.start, generator_of("noise attack", self.seed, turn)
        )


@BEHAVIOURS.register("free-rider")
@dataclass(frozen=True, eq=False, kw_only=True)
class FreeRider(Behaviour):
    """Malicious client that sends a plausible update without training.

    Free riding: want the model without data or work, and send what looks like an update.

    Sources: Fraboni, Vidal and Lorenzi 2021 (arXiv 2006.11901, section 3: plain and disguised); Lin, Du and Liu 2019
    (arXiv 1911.12560: the last global change sent back).

        sent = start + factor (start - previous start), or noise of that length

    That it goes unnoticed is its success, not an error rate.

    Threat model: malicious clients that know nothing but the broadcasts.

    Parameters
    ----------
    disguise : {"none", "delta", "noise"}
        What is added to the start: nothing, the last global change, or noise of the same norm.
    factor : float
        Factor of the disguise.
    """

    disguise: Literal["none", "delta", "noise"] = "delta"
    factor: NonNegative = 1.0
    seed: int = 0
    bypass: bool = False
    _starts: dict[int, tuple[int, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def model(self, turn: Turn) -> Tensor:
        """Return the disguised start; it is undisguised in the first round and after a missed one."""
        now = turn.broadcast.public.round
        last, before = self._starts.get(turn.partition, (0, turn.start))
        self._starts[turn.partition] = (now, turn.start.clone())
        if self.disguise == "none" or last != now - 1 or last == 0:
            return turn.start.clone()
        change = turn.start - before
        if self.disguise == "noise":
            length = float(change.norm())
            change = random_vector(length, change, generator_of("free rider", self.seed, turn))
        return turn.start + self.factor * change


def pulled(update: Tensor, kept: Tensor, bound: float) -> Tensor:
    """Return a vector [d] of norm `bound` along the sum of two unit vectors: fellows' earlier updates and own update."""
    total = sum(
        (v / v.norm() for v in (update, kept) if float(v.norm()) > 0), torch.zeros_like(update)
    )
    length = float(total.norm())
    if length > 0:
        return total * (bound / length)
    return total


@BEHAVIOURS.register("lying-budget")
@dataclass(frozen=True, eq=False, kw_only=True)
class LyingBudget(Around):
    """Malicious client that sends a clipped update with less noise than its method requires.

    Parameters
    ----------
    clip : float
        Clip C, which the server could check.
    sigma : float
        Deviation of the noise that the client really adds; 0: none. It claims the noise for a similarity of 1.
    of : Behaviour
        Behaviour that trains the sent update.
    """

    clip: Positive
    sigma: NonNegative = 0.0
    seed: int = 0
    bypass: bool = True

    def model(self, turn: Turn) -> Tensor:
        """Return the start plus the other behaviour's clipped update and the noise."""
        update = clip(self.update(turn), self.clip)
        noise = torch.randn(
            len(update), generator=generator_of("lying", self.seed, turn), dtype=update.dtype
        )
        return turn.start + update + self.sigma * noise


@BEHAVIOURS.register("pull-reference")
@dataclass(frozen=True, eq=False, kw_only=True)
class PullReference(Around):
    """Malicious client that pulls the last global change into a direction agreed with its fellows; all share one instance.

    Parameters
    ----------
    clip : float
        C.
    of : Behaviour
        Behaviour that trains; the direction is that of the fellows' updates so far.
    """

    clip: Positive
    bypass: bool = True
    _last: dict[int, Tensor] = field(
        default_factory=dict, init=False, repr=False
    )  # by round, of the last one alone

    def model(self, turn: Turn) -> Tensor:
        """Return the start plus C along the agreed direction; the first fellow of a round adds its own update to it."""
        now = turn.broadcast.public.round
        if now not in self._last:
            then, kept = self._last.popitem() if self._last else (now, turn.start)
            self._last[now] = pulled(
                turn.update, kept if then < now else torch.zeros_like(kept), self.clip
            )
        return turn.start + self._last[now]
