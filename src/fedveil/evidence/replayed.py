"""Models of a run computed again from the stored shares of its rounds.

Under local trust a share has all its noise, so a reader learns only what the promise allows the server. In a secure sum
a share is masked. A later owner of a site's key could unmask it (docs/secure-sum.md), so destroy keys before you hand
on shares.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Receipt, Release, digest
from fedveil.errors import FedVeilError, FieldError, LedgerError
from fedveil.evidence.books import read_books
from fedveil.evidence.check import Checked
from fedveil.evidence.kept import KeptRound, read_round, round_file
from fedveil.evidence.receipts import paid_lines, receipts_of, server_of
from fedveil.layout import Layout
from fedveil.mechanisms import NoSource
from fedveil.methods import Broadcast, Method, Releases, Replies, ServerFacts


def replay(
    run: Path, ledgers: Sequence[Path], kept: Path, method: Method, layout: Layout
) -> list[Checked]:
    """Compute each round's models from its stored shares, and compare them with the released models.

    The server's order of shares would reveal their owners, so a mean is added in another order and agrees only to
    rounding. A secure sum adds integers, and agrees to the bit.

    Parameters
    ----------
    run, ledgers
        As for `check_receipts`, which should be called before.
    kept : Path
        Folder with the stored rounds: that of `KeptShares`, or the server's own.
    method : Method
        Method of the run.
    layout : Layout
        Layout of the model.

    Raises
    ------
    FieldError
        If the aggregation rule needs public data, as these are not stored.
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
            one = _round(kept, receipt)
            replies = _accepted(receipt, one, marks)
            models, state = _combined(method, layout, one.broadcast, replies, state)
        except FieldError as error:  # of a rule that draws at random, for one
            return [*checks, Checked(what, None, str(error))]
        except FedVeilError as error:
            return [*checks, Checked(what, False, str(error))]
        checks.append(_compared(what, models, one, replies))
    return checks


def _round(folder: Path, receipt: Receipt) -> KeptRound:
    """Read the stored round that belongs to a receipt.

    Raises
    ------
    LedgerError
        If the round was not stored, or its file is damaged.
    """
    try:
        return read_round(round_file(folder, receipt.round))
    except FieldError as error:
        raise LedgerError(str(error)) from error


def _accepted(receipt: Receipt, kept: KeptRound, marks: Mapping[str, str]) -> list[Releases]:
    """Return the accepted shares in the order of their leaves.

    Raises
    ------
    LedgerError
        If the file belongs to another question or model, or lacks a share.
    """
    asked = (kept.broadcast.facts, kept.broadcast.opened)
    if asked != (receipt.facts, receipt.opened):
        raise LedgerError("the kept round is of another question than its receipt")
    if digest((Release("model", kept.models),)) != receipt.model:
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


def _compared(what: str, models: Tensor, kept: KeptRound, shares: Sequence[Releases]) -> Checked:
    """Compare models with the released ones; a sum in another order may differ by rounding."""
    if torch.equal(models, kept.models):
        return Checked(what, True)
    values = [kept.broadcast.models.double(), kept.models.double()]
    values += [release.value.double() for (release,) in shares if release.kind == "model"]
    largest = max(float(value.abs().max()) for value in values)
    allowed = 4 * (len(shares) + 4) * torch.finfo(models.dtype).eps * largest
    apart = float((models.double() - kept.models.double()).abs().max())
    why = f"they differ by {apart:.3g}, and rounding explains {allowed:.3g}"
    return Checked(what, apart <= allowed, "" if apart <= allowed else why)
