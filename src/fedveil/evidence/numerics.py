"""What made a figure: the arithmetic of each path, and the versions that ran."""

import platform

import numpy as np
import torch

import fedveil

# Raised by any change of a default or of arithmetic on that path: runs of two versions are not the same run.
NUMERICS = {"sequential": 8, "stacked": 3, "record": 10, "person": 11, "noise": 3}
_COMMON = 3  # a run whose paths all have this number says it alone


def numerics_of(record: bool, trainer: str = "auto", *, person: bool = False) -> int | str:
    """The numbers of the paths that a run takes, out of `NUMERICS`.

    Parameters
    ----------
    record : bool
        Whether the noise goes inside training.
    trainer : {"auto", "batched", "sequential"}
        How it trains otherwise; what ``"auto"`` chooses is left open.
    person : bool
        Whether persons are clipped there, with all their records.
    """
    trained = {"auto": ("sequential", "stacked"), "batched": ("stacked",), "sequential": ("sequential",)}
    inside = ("person",) if person else ("record",)
    paths = (*(inside if record else trained[trainer]), "noise")
    raised = [f"{path} {NUMERICS[path]}" for path in paths if NUMERICS[path] != _COMMON]
    return ", ".join(raised) or _COMMON


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "fedveil": fedveil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
