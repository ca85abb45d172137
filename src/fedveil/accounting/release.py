"""Release: whatever crosses the trust boundary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedveil.errors import FieldError, require_choice

if TYPE_CHECKING:  # whoever only plans does not wait for PyTorch
    from torch import Tensor

Kind = Literal["model", "update", "gradient", "index", "metric", "count", "sum", "share"]
KINDS: tuple[Kind, ...] = ("model", "update", "gradient", "index", "metric", "count", "sum", "share")


@dataclass(frozen=True)
class Release:
    """One value on its way out of a party.

    Parameters
    ----------
    kind : {"model", "update", "gradient", "index", "metric", "count", "sum", "share"}
        What it is. A client's model is [d]; a server's is [k, d]; a sum on a grid, and a share of a secure one, are
        int64 [d]; the others are 0-d.
    value : Tensor
        The value itself.
    name : str
        Tells several metrics apart.
    """

    kind: Kind
    value: Tensor
    name: str = ""

    def __post_init__(self) -> None:
        """Check the kind."""
        from torch import Tensor

        require_choice("kind", self.kind, KINDS)
        if not isinstance(self.value, Tensor):
            raise FieldError("value", type(self.value).__name__, "must be a tensor")


def digest(releases: tuple[Release, ...]) -> str:
    """SHA-256 over kinds, names, types, shapes and bits of releases that leave together."""
    import torch

    h = hashlib.sha256()
    for r in releases:
        value = r.value.detach().cpu().contiguous()
        h.update(f"{r.kind}\x1f{r.name}\x1f{value.dtype}\x1f{tuple(value.shape)}\x1e".encode())
        common = value.dtype in (torch.float32, torch.float64)  # NumPy does not know all others
        h.update((value if common else value.reshape(-1).view(torch.uint8)).numpy().data)
    return h.hexdigest()


def model_of(releases: tuple[Release, ...]) -> Tensor | None:
    """The model among releases, or None."""
    found = [r.value for r in releases if r.kind == "model"]
    if len(found) > 1:
        raise FieldError("releases", len(found), "a party releases at most one model a round")
    return found[0] if found else None


def count_of(releases: tuple[Release, ...]) -> float | None:
    """The example count among releases, or None."""
    found = [r.value for r in releases if r.kind == "count"]
    if len(found) > 1 or any(v.numel() != 1 or v.is_complex() for v in found):
        raise FieldError("releases", [tuple(v.shape) for v in found], "a party releases at most one count, one number")
    return float(found[0]) if found else None
