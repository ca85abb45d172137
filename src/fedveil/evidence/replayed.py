"""Shares of a run that are kept for an auditor, and the models that follow from them.

Without trust a share carries its whole noise: whoever sees it learns what the promise allows the server. In a secure sum
a share is masked. Whoever gets a site's key later could unmask it (docs/secure-sum.md), so keys end before shares are
handed on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedveil.accounting import Receipt, Release, digest
from fedveil.accounting.ledger import Kind
from fedveil.accounting.receipts import SHARED
from fedveil.engines.sealed import sealed, unsealed
from fedveil.engines.seams import Seen
from fedveil.errors import FedVeilError, FieldError, LedgerError
from fedveil.evidence.books import read_books
from fedveil.evidence.check import Checked
from fedveil.evidence.receipts import paid_lines, receipts_of, server_of
from fedveil.files import make_folder, write_atomic
from fedveil.layout import Layout
from fedveil.mechanisms import NoSource
from fedveil.methods import Broadcast, Method, PublicFacts, Releases, Replies, ServerFacts

OPENED, RELEASED = "opened", "released"
FILE = "round-{:04d}.safetensors"


class KeptShares:
    """Probe that keeps the shares of each round in a file, named by their digests and by nobody's name.

    Under Flower call `keep` from ``on_round``, with the strategy's ``broadcast``, ``received`` and ``models``.

    Parameters
    ----------
    folder : str or Path
        For the files; it is made.
    """

    name = "kept_shares"
    figures: Mapping[str, str] = {}

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Keep a round of a federation; no figure comes of it."""
        self.keep(seen.broadcast, seen.received, seen.models)
        return {}

    def keep(self, broadcast: Broadcast, received: Mapping[int, Releases], models: Tensor) -> None:
        """Write a round's file.

        Parameters
        ----------
        broadcast : Broadcast
            Opened the round.
        received : mapping of int to Releases
            What arrived, by partition.
        models : Tensor
            [k, d], released by the round.

        Raises
        ------
        FieldError
            If the round has no receipts: what arrives is then for a trusted receiver, who is to forget it.
        """
        if not broadcast.public.receipt:
            accepted = "are kept where rounds have receipts: without trust, and in secure sums; elsewhere a kept one "
            accepted += "would break the promise"
            raise FieldError("shares", "of a round without receipts", accepted)
        tensors = {OPENED: broadcast.models, RELEASED: models}
        for releases in received.values():
            for release in releases:
                if release.kind in SHARED:
                    tensors[f"{release.kind} {digest((release,))}"] = release.value
        public = asdict(broadcast.public)
        public["roster"] = [key.hex() for key in broadcast.public.roster]
        make_folder(self.folder)
        path = self.folder / FILE.format(broadcast.public.round)
        write_atomic(path, sealed(tensors, {"public": public}))


@dataclass(frozen=True, eq=False)
class SharesOfRound:
    """One round of `KeptShares`.

    Attributes
    ----------
    broadcast : Broadcast
        Opened the round.
    released : Tensor
        [k, d], models that it released.
    shares : mapping of str to Release
        By digest.
    """

    broadcast: Broadcast
    released: Tensor
    shares: Mapping[str, Release]


def read_round(path: Path) -> SharesOfRound:
    """Read a round's file.

    Raises
    ------
    LedgerError
        If it is none, or a share is not the one that its name says.
    """
    try:
        tensors, plain = unsealed(path)
        opened, released = tensors.pop(OPENED), tensors.pop(RELEASED)
        public = _public_of(plain["public"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} holds no round's shares: {error}") from error
    shares = {}
    for name, value in tensors.items():
        kind, _, mark = name.partition(" ")
        release = Release(cast(Kind, kind), value)
        if digest((release,)) != mark:
            raise LedgerError(f"{path}: the share {mark[:16]}... is another one")
        shares[mark] = release
    return SharesOfRound(Broadcast(models=opened, public=public), released, shares)


def _public_of(values: Mapping[str, Any]) -> PublicFacts:
    """Read public facts from plain values."""
    known = {field.name for field in fields(PublicFacts)}
    read = {name: value for name, value in values.items() if name in known}
    read["roster"] = tuple(bytes.fromhex(key) for key in read["roster"])
    if read["layer_scores"] is not None:
        read["layer_scores"] = tuple(read["layer_scores"])
    return PublicFacts(**read)


def replay(
    run: Path, ledgers: Sequence[Path], shares: Path, method: Method, layout: Layout
) -> list[Checked]:
    """Compute each round's models from its kept shares, and compare them with those that were released.

    A mean is added up in another order than the server's, as the order of shares would tell whose they are. So it agrees
    to rounding; a secure sum is of integers, and agrees to the bit.

    Parameters
    ----------
    run, ledgers
        As for `check_receipts`, which should be called before.
    shares : Path
        Folder of `KeptShares`.
    method : Method
        Of the run.
    layout : Layout
        Of its model.

    Raises
    ------
    FieldError
        If the rule needs public data, which are not kept.
    """
    if method.server.needs:
        accepted = f"its server needs {sorted(method.server.needs)}, which no file of shares has"
        raise FieldError("method", method.name, accepted)
    place = run / "ledger" if (run / "ledger").is_dir() else run
    server, names = server_of(read_books([place]), run)
    lines, _ = paid_lines(read_books([place, *ledgers]), names, server)
    marks = {paid.held.leaf: paid.held.share or paid.entry.digest for paid in lines}
    state = method.server.init(layout.size, layout.dtype)
    checks: list[Checked] = []
    for _, receipt in receipts_of(server):
        what = f"round {receipt.round}: the model follows from {len(receipt.leaves)} shares"
        try:
            kept = read_round(shares / FILE.format(receipt.round))
            replies = _accepted(receipt, kept, marks)
            models, state = _combined(method, layout, kept.broadcast, replies, state)
        except FieldError as error:  # of a rule that draws at random, for one
            return [*checks, Checked(what, None, str(error))]
        except FedVeilError as error:
            return [*checks, Checked(what, False, str(error))]
        checks.append(_compared(what, models, kept, replies))
    return checks


def _accepted(receipt: Receipt, kept: SharesOfRound, marks: Mapping[str, str]) -> list[Releases]:
    """Return the accepted shares in the order of their leaves.

    Raises
    ------
    LedgerError
        If the file is of another question or model, or lacks a share.
    """
    asked = (kept.broadcast.facts, kept.broadcast.opened)
    if asked != (receipt.facts, receipt.opened):
        raise LedgerError("the kept round is of another question than its receipt")
    if digest((Release("model", kept.released),)) != receipt.model:
        raise LedgerError("the kept models are not those that the receipt names")
    found: list[Releases] = []
    for leaf in receipt.leaves:
        mark = marks.get(leaf)
        if mark is None or mark not in kept.shares:
            raise LedgerError("an accepted share is not kept, or no ledger given pays for it")
        found.append((kept.shares[mark],))
    return found


def _combined(
    method: Method, layout: Layout, broadcast: Broadcast, shares: Sequence[Releases], state: Any
) -> tuple[Tensor, Any]:
    """Combine shares as the server does; return models [k, d] and the next state."""
    asked = None if method.noisy is None else method.noisy.question(broadcast, layout)
    facts = ServerFacts(
        broadcast=broadcast,
        layout=layout,
        partitions=tuple(range(len(shares))),
        question=asked,
    )
    combined = method.server.combine(Replies(shares), facts, state, NoSource())
    return combined.models, combined.state


def _compared(
    what: str, models: Tensor, kept: SharesOfRound, shares: Sequence[Releases]
) -> Checked:
    """Compare models with those that were released, up to the rounding of a sum in another order."""
    if torch.equal(models, kept.released):
        return Checked(what, True)
    values = [kept.broadcast.models.double(), kept.released.double()]
    values += [release.value.double() for (release,) in shares if release.kind == "model"]
    largest = max(float(value.abs().max()) for value in values)
    allowed = 4 * (len(shares) + 4) * torch.finfo(models.dtype).eps * largest
    apart = float((models.double() - kept.released.double()).abs().max())
    why = f"they differ by {apart:.3g}, and rounding explains {allowed:.3g}"
    return Checked(what, apart <= allowed, "" if apart <= allowed else why)
