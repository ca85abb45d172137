"""Result of one check of a site: whether a policy is enforced there, and why."""

from dataclasses import dataclass
from typing import Literal

State = Literal["yes", "no", "not seen"]


@dataclass(frozen=True)
class Binding:
    """Result of a check of one thing on which a policy's enforcement depends.

    Attributes
    ----------
    what : str
        Thing that was checked.
    binds : {"yes", "no", "not seen"}
        Whether the policy is enforced there ("not seen": this cannot be checked from here).
    why : str
        Reason in words.
    needed : bool
        Whether the node should not start while `binds` is "no".
    """

    what: str
    binds: State
    why: str
    needed: bool = True
