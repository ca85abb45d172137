"""Finding of a site's check: whether one thing is enforced there, and why."""

from dataclasses import dataclass
from typing import Literal

State = Literal["yes", "no", "not seen"]


@dataclass(frozen=True)
class Binding:
    """Finding about one thing on which the enforcement of a policy depends.

    Attributes
    ----------
    what : str
        Thing that was checked.
    binds : {"yes", "no", "not seen"}
        Whether the policy is enforced there, or the thing is in order.
    why : str
        Reason in words.
    needed : bool
        Whether the node should not start while `binds` is "no".
    """

    what: str
    binds: State
    why: str
    needed: bool = True
