"""Rounds that a deployed server kept on request: a file a round, with its models and perhaps each site's answer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fedveil.accounting import model_of
from fedveil.engines.sealed import sealed, unsealed
from fedveil.errors import FieldError, damaged, require_choice
from fedveil.files import make_folder, write_atomic
from fedveil.methods import Broadcast, Method, Plain, Releases

FOLDER = "rounds"
MODELS, UPDATES = "models", "updates"
KEEPS = (MODELS, UPDATES)
FIX = "restore the file, or move the folder rounds away: what needs it is then left out"
_FROM = "from/"


@dataclass(frozen=True, eq=False)
class KeptRound:
    """One round as its server kept it.

    Attributes
    ----------
    number : int
        Number of the round, from 1.
    starts : Tensor
        [k, d], the broadcast that opened it.
    models : Tensor
        [k, d], what was released after it.
    replied : tuple of int
        Partitions whose models came back.
    received : mapping of int to Tensor
        [d] each: models that arrived, by partition; empty unless updates were kept.
    """

    number: int
    starts: Tensor
    models: Tensor
    replied: tuple[int, ...]
    received: Mapping[int, Tensor] = field(default_factory=dict)


def require_keeps(keep: Collection[str], field: str = "keep") -> frozenset[str]:
    """Return what is to be kept of each round.

    Raises
    ------
    FieldError
        For one text in place of a list, and for a name that is not in `KEEPS`.
    """
    if isinstance(keep, str):
        raise FieldError(field, keep, f"is one text: write the names in a list, [{keep!r}]")
    for name in keep:
        require_choice(field, name, KEEPS)
    return frozenset(keep)


def refuse_clear_updates(method: Method, keep: Collection[str]) -> None:
    """Refuse to keep answers that the promise leaves to a trusted receiver, who is to forget them.

    Each answer is a release of its own under local trust. Without a promise there is none to break.

    Raises
    ------
    FieldError
        For updates under a method with another trust model and a promise.
    """
    local = method.client.trust == "local"
    unpromised = method.client.trust == "central" and isinstance(method.server, Plain)
    if UPDATES in keep and not local and not unpromised:
        accepted = f"must not hold {UPDATES!r}: under {method.client.trust} trust the promise is about what the server "
        accepted += f"releases, and a kept answer would break it; keep {MODELS!r} alone"
        raise FieldError("keep", sorted(keep), accepted)


def write_round(
    folder: Path,
    keep: Collection[str],
    broadcast: Broadcast,
    replies: Mapping[int, Releases],
    models: Tensor,
) -> None:
    """Write a round's file; a round that is done anew replaces it.

    Parameters
    ----------
    folder : Path
        Folder of the server.
    keep : collection of str
        Of `KEEPS`; without any nothing is written.
    broadcast : Broadcast
        What opened the round.
    replies : mapping of int to Releases
        What arrived, by partition.
    models : Tensor
        [k, d], what the round released.
    """
    if not keep:
        return
    found = {partition: model_of(sent) for partition, sent in replies.items()}
    received = {partition: model for partition, model in found.items() if model is not None}
    tensors = {"starts": broadcast.models, "models": models}
    if UPDATES in keep:
        tensors |= {f"{_FROM}{partition}": model for partition, model in received.items()}
    number = broadcast.public.round
    plain = {"round": number, "replied": sorted(received)}
    make_folder(folder / FOLDER)
    write_atomic(_file(folder, number), sealed(tensors, plain))


def kept_rounds(folder: Path) -> list[KeptRound]:
    """Read the rounds that a server kept, in their order; none where it kept none.

    Raises
    ------
    FieldError
        If a file is damaged.
    """
    found: list[KeptRound] = []
    for path in sorted((folder / FOLDER).glob("round-*.safetensors")):
        try:
            tensors, plain = unsealed(path)
            received = {
                int(name.removeprefix(_FROM)): tensor
                for name, tensor in tensors.items()
                if name.startswith(_FROM)
            }
            replied = tuple(int(partition) for partition in plain["replied"])
            models = tensors["starts"], tensors["models"]
            found.append(KeptRound(int(plain["round"]), *models, replied, received))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged("RUN", path, error, FIX) from error
    return sorted(found, key=lambda one: one.number)


def _file(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"round-{number:04d}.safetensors"
