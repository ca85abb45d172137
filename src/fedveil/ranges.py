"""Allowed range of each kind of number on which a promise relies, with the reason.

Within these limits the arithmetic is accurate enough for the promise, with a margin. Numbers outside are refused in a
file, Python, a policy, a ledger and a message alike. A number that is merely absurd is accepted.
"""

from dataclasses import dataclass
from typing import Any

from fedveil.errors import require_count, require_number


@dataclass(frozen=True)
class Range:
    """Allowed range of one kind of number.

    Attributes
    ----------
    least, most : float
        Smallest and largest accepted value.
    why : str
        Reason for the limits, for refusals.
    whole : bool
        Whether only integers are accepted.
    open : bool
        Whether `most` itself is refused.
    zero : bool
        Whether 0 is accepted, too.
    """

    least: float
    most: float
    why: str
    whole: bool = False
    open: bool = False
    zero: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number lies within the limits."""
        below = value < self.most if self.open else value <= self.most
        return (self.least <= value and below) or (self.zero and value == 0)

    def require(self, field: str, value: Any) -> float:
        """Return a number as a float (or int), after refusing values outside the range."""
        if self.whole:
            return require_count(field, value, least=int(self.least), most=int(self.most))
        either = "must be 0, or" if self.zero else "must be"
        least = "of at least 0" if self.least == 0 else f"above 0, of at least {self.least:g}"
        accepted = f"{either} a finite number {least} and at most {self.most:g}: {self.why}"
        if self.open:
            accepted = f"must be a number strictly between 0 and {self.most:g}, of at least {self.least:g}: {self.why}"
        return require_number(field, value, self.holds, accepted)


_LENGTH = "gradients and updates are float32, from 1e-38 to 3e38, and coordinates of long vectors are far smaller"
RANGES = {
    # float32 keeps a clipped vector's length to 1e-6 as long as its coordinates are no subnormals; factors (C over a
    # length of up to 1e42) are normal float64s, and a million contributions add up below 1e38
    "clip": Range(1e-30, 1e30, _LENGTH),
    "radius": Range(1e-30, 1e30, _LENGTH),
    # sums of up to 1e9 contributions are rounded to 1e-7 C in float64: quieter noise is lost in their last bits, and
    # ten thousand contributions leave the noise's own grid (2^-20 of its deviation) whole
    "noise multiplier": Range(
        1e-6, 1e9, "sums of quieter noise lose it, or overflow on a grid; louder drowns all"
    ),
    # one number of moderate size, with 1e-16 of it between floats
    "noise of one number": Range(
        1e-12, 1e9, "quieter noise is lost in the last bits of the number"
    ),
    # noise of a seed is drawn in float32, whose smallest normal number is 1.2e-38; ten deviations stay below 3e38
    "sigma": Range(
        1e-37,
        1e37,
        "noise is drawn in float32 where it can be repeated, and has to have all of its digits",
    ),
    # a unit joins where a multiple of 2^-53 lies below the rate: 1e-7 of 1e-9
    "rate": Range(
        1e-9, 1.0, "a unit is drawn by 53 random bits, and a smaller rate would be rounded"
    ),
    "epsilon": Range(
        1e-9, 1e10, "below it rounding decides; above it noise is quieter than a sum's last bits"
    ),
    # normal draws end at 9.35 deviations, which 2^-63 of a coordinate's mass exceeds; four digits are left
    "delta": Range(1e-15, 1.0, "noise has no tails below some 1e-19 a coordinate", open=True),
    # of an event: of a person in a thousand sums, of groups of them, of other mechanisms' mu; down to the largest mu
    "noise of an event": Range(
        1e-40, 1e40, "its mu is one over it, and the square of a larger one has no epsilon"
    ),
    "shift of an event": Range(5e-324, 1e40, "a larger one has no epsilon"),
    "mu": Range(0.0, 1e40, "the square of a larger one has no epsilon"),
    "mu per distance": Range(0.0, 1e40, "the square of a larger one has no epsilon"),
    "limit": Range(5e-324, 1e30, "no cost is larger, so that it would limit nothing"),
    # of a trusted sum alone: there a share is rounded, and may overflow, before it is summed
    "learning rate of a sum": Range(
        1e-12, 1e12, "a share that rounds or overflows alone has not the noise of the sum"
    ),
    "planned units": Range(1e-3, 1e12, "a step is divided by it, and has to stay a float32"),
    "range of a metric": Range(
        1e-12, 1e12, "noise and metric have to be added in float64 without loss"
    ),
    # z C over 409,605 steps and the root of the sites
    "grid": Range(1e-44, 1e34, "contributions are divided by it, and sums are 64-bit integers"),
    "steps": Range(1, 1_000_000, "nobody trains more in a round", whole=True),
    "silos of a person": Range(1, 1000, "no sum has more sites", whole=True),
    "records of a person": Range(
        1, 100_000, "every person has so many places in a step, taken or not", whole=True
    ),
}


def require_within(kind: str, field: str, value: Any) -> float:
    """Return a number, after refusing values outside the range of its kind in `RANGES`."""
    return RANGES[kind].require(field, value)
