"""Free riding: want the model without data or work, and send what looks like an update.

Sources: Fraboni, Vidal and Lorenzi 2021 (arXiv 2006.11901, section 3: plain and disguised); Lin, Du and Liu 2019 (arXiv
1911.12560: the last global change sent back).

    sent = start + factor (start - previous start), or noise of that length

That it goes unnoticed is its success, not an error rate.

Threat model: malicious clients that know nothing but the broadcasts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedveil.attacks.poisoning.noise import generator_of, random_vector
from fedveil.engines.behaviour import Behaviour, Turn
from fedveil.errors import require_choice, require_non_negative


@dataclass(frozen=True, eq=False, kw_only=True)
class FreeRider(Behaviour):
    """Send what looks like an update without having trained.

    Parameters
    ----------
    disguise : {"none", "delta", "noise"}
        Nothing (the start itself), the last global change, or noise of that change's length.
    factor : float
        Of the disguise.
    """

    disguise: str = "delta"
    factor: float = 1.0
    seed: int = 0
    bypass: bool = False
    _starts: dict[int, tuple[int, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check both."""
        require_choice("disguise", self.disguise, ("none", "delta", "noise"))
        require_non_negative("factor", self.factor)

    def model(self, turn: Turn) -> Tensor:
        """The start, disguised; in the first round, and after a missed one, undisguised."""
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
