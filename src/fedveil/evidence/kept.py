"""Rounds that a server or federation stores on request, one file for each in the folder ``rounds``.

Three parts of a round can be stored. Models are released, so storing them costs no privacy. Updates are the models that
arrived, each with its partition; `fedveil audit --recorded` attacks them. Shares are the arrived values without a
sender, named by digests; `replay` computes the models from them again.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from fedveil.accounting import Release, digest, model_of
from fedveil.accounting.ledger import Kind
from fedveil.accounting.receipts import SHARED
from fedveil.engines.sealed import sealed, unsealed
from fedveil.engines.seams import Seen
from fedveil.errors import FieldError, damaged, require_choice
from fedveil.files import make_folder, write_atomic
from fedveil.methods import Broadcast, Method, Plain, PublicFacts, Releases

FOLDER = "rounds"
MODELS, UPDATES, SHARES = "models", "updates", "shares"
KEEPS = (MODELS, UPDATES, SHARES)
FIX = "restore the file, or move the folder rounds away: what needs it is then left out"
_STARTS = "starts"
_FROM = "from/"
_APART = " "  # between the kind of a share and its digest


@dataclass(frozen=True, eq=False)
class KeptRound:
    """Stored round: its broadcast, released models, and arrived models or shares.

    Attributes
    ----------
    broadcast : Broadcast
        Broadcast that opened the round.
    models : Tensor
        [k, d], models that the round released.
    replied : tuple of int
        Partitions that replied with a model; empty if only shares were stored.
    received : mapping of int to Tensor
        [d] each, models that arrived, by partition; empty unless updates were stored.
    shares : mapping of str to Release
        Arrived shares by digest; empty unless shares were stored.
    """

    broadcast: Broadcast
    models: Tensor
    replied: tuple[int, ...]
    received: Mapping[int, Tensor] = field(default_factory=dict)
    shares: Mapping[str, Release] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Number of the round, from 1."""
        return self.broadcast.public.round

    @property
    def starts(self) -> Tensor:
        """Broadcast models [k, d] of the round."""
        return self.broadcast.models


class KeptShares:
    """Probe that stores the shares of each round of a federation.

    A deployed server does the same with ``ServerFolder(..., keep=["shares"])``.

    Parameters
    ----------
    folder : str or Path
        Folder of the run; the files are in its folder ``rounds``.
    """

    name = "kept_shares"
    figures: Mapping[str, str] = {}

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Store the shares of a round; there are no figures.

        Raises
        ------
        FieldError
            If the round has no receipts.
        """
        write_round(self.folder, (SHARES,), seen.broadcast, seen.received, seen.models)
        return {}


def require_keeps(keep: Collection[str], field: str = "keep") -> frozenset[str]:
    """Return the parts of rounds to store, after checking their names.

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


def refuse_clear(method: Method, keep: Collection[str]) -> None:
    """Refuse to store answers if the promise relies on a receiver who forgets them.

    Storing is allowed in three cases. Under local trust each answer is a release. In a secure sum a masked share
    reveals nothing without its site's key. Without a promise nothing can be broken.

    Raises
    ------
    FieldError
        For updates or shares under a method whose trust model and promise do not allow it.
    """
    trust = method.client.trust
    unpromised = trust == "central" and isinstance(method.server, Plain)
    allowed = {UPDATES: trust == "local" or unpromised, SHARES: trust in ("local", "secure sum")}
    for name, may in allowed.items():
        if name in keep and not may:
            accepted = f"must not hold {name!r}: under {trust} trust the promise is about what the server releases, and a "
            accepted += f"kept answer would break it; keep {MODELS!r} alone"
            raise FieldError("keep", sorted(keep), accepted)


def write_round(
    folder: Path,
    keep: Collection[str],
    broadcast: Broadcast,
    replies: Mapping[int, Releases],
    models: Tensor,
) -> None:
    """Write a round's file; if a round is repeated, its file is replaced.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    keep : collection of str
        Parts to store, names in `KEEPS`; if empty, nothing is written.
    broadcast : Broadcast
        Broadcast that opened the round.
    replies : mapping of int to Releases
        Replies by partition.
    models : Tensor
        [k, d], models that the round released.

    Raises
    ------
    FieldError
        For shares of a round without receipts, as a trusted receiver must then forget them.
    """
    if not keep:
        return
    found = {partition: model_of(sent) for partition, sent in replies.items()}
    received = {partition: model for partition, model in found.items() if model is not None}
    tensors = {_STARTS: broadcast.models, MODELS: models}
    if UPDATES in keep:
        tensors |= {f"{_FROM}{partition}": model for partition, model in received.items()}
    if SHARES in keep:
        tensors |= _shares(broadcast, replies)
    public = asdict(broadcast.public)
    public["roster"] = [key.hex() for key in broadcast.public.roster]
    named = {MODELS, UPDATES} & set(keep)
    plain = {"public": public, "replied": sorted(received) if named else []}
    path = round_file(folder, broadcast.public.round)
    make_folder(path.parent)
    write_atomic(path, sealed(tensors, plain))


def _shares(broadcast: Broadcast, replies: Mapping[int, Releases]) -> dict[str, Tensor]:
    """Return the shares of a round by kind and digest."""
    if not broadcast.public.receipt:
        accepted = "are kept where rounds have receipts: without trust, and in secure sums; elsewhere a kept one would "
        accepted += "break the promise"
        raise FieldError("shares", "of a round without receipts", accepted)
    sent = [release for releases in replies.values() for release in releases]
    shared = [release for release in sent if release.kind in SHARED]
    return {f"{release.kind}{_APART}{digest((release,))}": release.value for release in shared}


def round_file(folder: Path, number: int) -> Path:
    """Return the path of a round's file."""
    return folder / FOLDER / f"round-{number:04d}.safetensors"


def kept_rounds(folder: Path) -> list[KeptRound]:
    """Read all stored rounds, in order.

    Raises
    ------
    FieldError
        If a file is damaged.
    """
    files = (folder / FOLDER).glob("round-*.safetensors")
    return sorted(map(read_round, files), key=lambda one: one.number)


def read_round(path: Path) -> KeptRound:
    """Read a round's file.

    Raises
    ------
    FieldError
        If the file is damaged, or a share does not match the digest in its name.
    """
    try:
        tensors, plain = unsealed(path)
        broadcast = Broadcast(models=tensors.pop(_STARTS), public=_public_of(plain["public"]))
        models = tensors.pop(MODELS)
        replied = tuple(int(partition) for partition in plain["replied"])
        received = {
            int(name.removeprefix(_FROM)): tensor
            for name, tensor in tensors.items()
            if name.startswith(_FROM)
        }
        shares = _named(tensors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged("RUN", path, error, FIX) from error
    return KeptRound(broadcast, models, replied, received, shares)


def _named(tensors: Mapping[str, Tensor]) -> dict[str, Release]:
    """Return shares by the digest in their names.

    Raises
    ------
    ValueError
        If a share does not match its digest.
    """
    shares = {}
    for name, value in tensors.items():
        kind, _, mark = name.partition(_APART)
        if not mark:
            continue
        release = Release(cast(Kind, kind), value)
        if digest((release,)) != mark:
            raise ValueError(f"the share {mark[:16]}... is another one")
        shares[mark] = release
    return shares


def _public_of(values: Mapping[str, Any]) -> PublicFacts:
    """Read public facts from plain values."""
    known = {field.name for field in fields(PublicFacts)}
    read = {name: value for name, value in values.items() if name in known}
    read["roster"] = tuple(bytes.fromhex(key) for key in read["roster"])
    if read["layer_scores"] is not None:
        read["layer_scores"] = tuple(read["layer_scores"])
    return PublicFacts(**read)
