"""Where a deployed server's run stands after a round, in one file: what the next server of the run goes on from.

It holds what was released and what follows from that, and no secret: no key, no seed, no noise.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedveil.engines.history import Best
from fedveil.engines.sealed import sealed, unsealed
from fedveil.engines.serving import Standing
from fedveil.engines.states import pack, unpack
from fedveil.errors import FieldError, damaged
from fedveil.files import make_folder, write_atomic

FOLDER, FILE = "checkpoint", "round.safetensors"
STATE, BEST = "state/", "best/"
FIX = "restore it, or begin another run in another folder; this folder stays, as its ledger says what was spent"


def write_standing(folder: Path, standing: Standing, bound: Mapping[str, Any], lines: int) -> None:
    """Replace a folder's checkpoint.

    Parameters
    ----------
    folder : Path
        Of the server.
    standing : Standing
        After a round whose ledger line is on the disk.
    bound : mapping
        What may not change when the run goes on.
    lines : int
        Of the server's ledger.
    """
    tensors: dict[str, Tensor] = {"models": standing.models}
    plain: dict[str, Any] = {"round": standing.round, "partitions": list(standing.partitions), "lines": lines}
    for prefix, value in ((STATE, standing.state), (BEST, standing.best)):
        inner, plain[prefix] = pack(value)
        tensors |= {f"{prefix}{name}": tensor for name, tensor in inner.items()}
    make_folder(folder / FOLDER)
    write_atomic(folder / FOLDER / FILE, sealed(tensors, {**plain, "bound": dict(bound)}))


def read_standing(folder: Path, state: Any, bound: Mapping[str, Any]) -> tuple[Standing, int] | None:
    """A folder's checkpoint, and how many lines the server's ledger had; None before the end of the first round.

    Parameters
    ----------
    folder : Path
        Of the server.
    state : object
        A fresh state of the method's server side.
    bound : mapping
        Of the run that is to go on.

    Raises
    ------
    FieldError
        If the file is damaged, or of another run than is to go on.
    """
    path = folder / FOLDER / FILE
    if not path.exists():
        return None
    try:
        tensors, plain = unsealed(path)
        known = dict(plain["bound"])
        if known == dict(bound):
            own = {prefix: unpack(fresh, _below(tensors, prefix), plain[prefix]) for prefix, fresh in _fresh(state)}
            standing = Standing(plain["round"], tensors["models"], own[STATE], own[BEST], tuple(plain["partitions"]))
            return standing, int(plain["lines"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged("folder", path, error, FIX) from error
    name = next(name for name in {**known, **bound} if known.get(name) != bound.get(name))
    accepted = f"the run in {folder} was begun with {known.get(name)}: go on with that, or give another folder"
    raise FieldError(name, bound.get(name), accepted)


def _fresh(state: Any) -> tuple[tuple[str, Any], ...]:
    return (STATE, state), (BEST, Best())


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
