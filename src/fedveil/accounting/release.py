"""Release: whatever crosses the trust boundary. Spend: what it cost."""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedveil.accounting.guarantee import Guarantee, unprotected
from fedveil.errors import FieldError, require_choice

if TYPE_CHECKING:  # whoever only plans does not wait for PyTorch
    from torch import Tensor

Kind = Literal["model", "update", "gradient", "index", "metric", "count", "sum", "share"]


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
    value: "Tensor"
    name: str = ""

    def __post_init__(self) -> None:
        from torch import Tensor

        require_choice("kind", self.kind, get_args(Kind))
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


def model_of(releases: tuple[Release, ...]) -> "Tensor | None":
    """The model among releases, or None."""
    models = [r.value for r in releases if r.kind == "model"]
    if len(models) > 1:
        raise FieldError("releases", len(models), "a party releases at most one model a round")
    return models[0] if models else None


def count_of(releases: tuple[Release, ...]) -> float | None:
    """The example count among releases, or None."""
    counts = [r.value for r in releases if r.kind == "count"]
    if len(counts) > 1 or any(v.numel() != 1 or v.is_complex() for v in counts):
        raise FieldError("releases", [tuple(v.shape) for v in counts], "a party releases at most one count, one number")
    return float(counts[0]) if counts else None


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The cost of one party's releases of one round.

    Parameters
    ----------
    guarantee : Guarantee
        What that round's release promises by itself.
    mechanism : str
        ``"gaussian"``, ``"discrete gaussian"``, ``"euclidean-laplace"`` or ``"none"``.
    scale : tuple of float
        The noise's scale: standard deviation per coordinate (one entry, or one a layer); epsilon per unit of distance
        for Euclidean Laplace. Empty without noise.
    sensitivity : float, optional
        Euclidean sensitivity that the guarantee rests on.
    charge : float, optional
        Mu of this very round where it followed earlier releases: what a filter charges. The guarantee then holds the
        public worst case, since a sum of such charges is a random number and no promise.
    leakage : float, optional
        Heuristic neighbourhood leakage n / nu of this participation (group privacy as printed), or what the reported
        index of one of k hypotheses tells at most, ln k (IFCA): no guarantee, but it is public and adds up.

    Examples
    --------
    >>> federation = fv.Federation(model=model, clients=clients, method=fv.GlobalDP(noise_multiplier=2.0), seed=1)
    >>> spend = federation.run(1).rounds[0].round.spend
    >>> spend.mechanism, spend.guarantee.scope
    ('gaussian', 'round')
    """

    guarantee: Guarantee
    mechanism: str = "none"
    scale: tuple[float, ...] = ()
    sensitivity: float | None = None
    charge: float | None = None
    leakage: float | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Spend":
        """From plain values, as a ledger's line has them."""
        guarantee = Guarantee.from_dict(values["guarantee"])
        return cls(**{**values, "guarantee": guarantee, "scale": tuple(values["scale"])})


@cache
def nothing(trust: str = "central") -> Spend:
    """The spend of a release without noise, or of a declared identity."""
    return Spend(guarantee=unprotected("local" if trust == "local" else "central"))
