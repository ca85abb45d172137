"""What a check of a site says of one thing: whether it binds here, and why."""

from dataclasses import dataclass
from typing import Literal

State = Literal["yes", "no", "not seen"]


@dataclass(frozen=True)
class Binding:
    """Finding about one thing that a policy's force depends on.

    Attributes
    ----------
    what : str
        Of what it is said.
    binds : {"yes", "no", "not seen"}
        Whether the policy binds there, or the thing is in order.
    why : str
        In words.
    needed : bool
        Whether nothing should start while this is "no".
    """

    what: str
    binds: State
    why: str
    needed: bool = True
