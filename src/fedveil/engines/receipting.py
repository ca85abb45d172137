"""Receipts in a round: the server's statement about the previous round, and a site's checks of it.

A site decides by the broadcast and its own ledger, which hold only released values. So a refusal reveals nothing about
its data.
"""

from collections.abc import Mapping, Sequence

from fedveil.accounting import Entry, Ledger, Receipt, ShareReceipt, Spend
from fedveil.accounting.receipts import SHARED, is_digest, leaf, question, share_digest
from fedveil.engines.party import COMBINE
from fedveil.errors import FieldError
from fedveil.methods import Broadcast, Method, PublicFacts, Releases

TRUSTS = ("local", "secure sum")  # trust models in which the server is not trusted
UNSEALED = "the reply lacks the seal of its receipt"
TWICE = "the reply is another client's, to the last bit of its seal"


def has_receipts(method: Method, broadcast: Broadcast) -> bool:
    """Whether a round has receipts: only if each share alone has a proven promise against the server."""
    if method.client.trust not in TRUSTS:
        return False
    quoted = method.client.quote(broadcast, method.client.init())
    return isinstance(quoted, Spend) and quoted.guarantee.proven


def receipt_before(ledger: Ledger, round_: int, run: str) -> Receipt:
    """Return the previous round's receipt from the server's ledger, or a run's first receipt if there is none."""
    known = ledger.find((round_ - 1, COMBINE))
    if known is None or not known.receipt:
        return Receipt(run=run, round=round_ - 1, asked=0)
    return Receipt.of(known.receipt)


def leaves_of(
    broadcast: Broadcast, replies: Mapping[int, Releases], seals: Mapping[int, str]
) -> tuple[dict[int, str], dict[int, str]]:
    """Compute the leaf of each reply for the round's receipt.

    Parameters
    ----------
    broadcast : Broadcast
        Broadcast that opened the round.
    replies : mapping of int to Releases
        Replies by partition.
    seals : mapping of int to str
        Seals by partition, as clients sent them.

    Returns
    -------
    tuple of dict
        Leaves by partition, and the reasons why other replies have no valid leaf.
    """
    asked = question(broadcast.facts, broadcast.opened)
    leaves: dict[int, str] = {}
    without: dict[int, str] = {}
    for partition in sorted(replies):
        sealed = seals.get(partition)
        if not is_digest(sealed):
            without[partition] = UNSEALED
            continue
        own = leaf(asked, share_digest(replies[partition]), str(sealed))
        if own in leaves.values():
            without[partition] = TWICE
        else:
            leaves[partition] = own
    return leaves, without


def receipt_of(
    broadcast: Broadcast, leaves: Sequence[str], asked: int, model: str, before: Receipt
) -> Receipt:
    """Make the receipt of a round; `model` is the digest of its released models."""
    return Receipt(
        run=before.run,
        round=broadcast.public.round,
        asked=max(asked, len(leaves)),
        facts=broadcast.facts,
        opened=broadcast.opened,
        model=model,
        previous=before.root,
        leaves=tuple(sorted(leaves)),
    )


def require_receipt(
    public: PublicFacts, entries: Sequence[Entry], required: bool = False
) -> tuple[Receipt | None, str]:
    """Check a broadcast's receipt against the site's own ledger, before data are touched.

    Parameters
    ----------
    public : PublicFacts
        Public facts of the broadcast.
    entries : sequence of Entry
        Ledger lines of the site in this run.
    required : bool
        Whether the site's policy declines a round after one of its shares was left out for any reason.

    Returns
    -------
    tuple of (Receipt or None, str)
        Receipt, or None if the run has no receipts; and a text if a share of this site was left out, else "".

    Raises
    ------
    FieldError
        If the receipt contradicts itself or this site's ledger; the text names the round.
    LedgerError
        If a line of that ledger has an invalid receipt.
    """
    own: list[tuple[int, ShareReceipt]] = []
    for entry in entries:
        held = ShareReceipt.of(entry)
        if held is not None:
            own.append((entry.key[0], held))
    if not public.receipt:
        if own:
            raise _wrong(
                None, f"round {own[-1][0]} had one: the server stopped to show what it accepts"
            )
        if required:
            raise _wrong(None, "the site's policy asks for one in each broadcast")
        return None, ""
    receipt = Receipt.parse(public.receipt)
    if receipt.round != public.round - 1:
        raise _wrong(receipt.round, f"must be of round {public.round - 1}")
    if receipt.first and any(round_ < public.round for round_, _ in own):
        raise _wrong(receipt.round, "begins anew, and this site answered a round before")
    for round_, held in own:
        if round_ == public.round and held.seen != receipt.root:
            raise _wrong(receipt.round, f"is another one than round {round_} showed before")
    mine = [held for round_, held in own if round_ == receipt.round]
    left_out = _left_out(receipt, mine, bool(public.roster))
    if left_out and required:
        raise _wrong(receipt.round, f"{left_out}; the site's policy asks that it is in it")
    return receipt, left_out


def _left_out(receipt: Receipt, mine: Sequence[ShareReceipt], again: bool) -> str:
    """Return a text if the receipt contains no share of the site, else ""; refuse an impossible receipt.

    `again` says whether one round may ask several questions, as in a secure sum.
    """
    for held in mine:
        if held.seen != receipt.previous:
            raise _wrong(receipt.round, "follows another receipt than this site was shown")
    counted = sum(held.leaf in receipt.leaves for held in mine)
    if counted > 1:
        raise _wrong(receipt.round, f"counts {counted} shares of this site")
    if counted or not mine:
        return ""
    if all(held.question != receipt.question for held in mine):
        if not again:
            raise _wrong(receipt.round, "answers another question than this site was asked")
        return "the accepted shares answer another question than this site was asked"
    if len(receipt.leaves) == receipt.asked:
        accepted = f"has a share of each of the {receipt.asked} sites that were asked, and not this site's: "
        raise _wrong(receipt.round, f"{accepted}it was left out, or altered")
    return (
        f"this site's share is not among the {len(receipt.leaves)} of {receipt.asked} accepted ones"
    )


def _wrong(round_: int | None, why: str) -> FieldError:
    """Return the error for an invalid receipt, with its round."""
    return FieldError("receipt", None if round_ is None else f"round {round_}", why)


def paid(
    broadcast: Broadcast, receipt: Receipt, entry: Entry, releases: Releases, salt: bytes
) -> dict[str, str]:
    """Make the receipt's values for a site's ledger line, before anything is sent.

    Parameters
    ----------
    broadcast : Broadcast
        Broadcast that asked for the release.
    receipt : Receipt
        Receipt in the broadcast.
    entry : Entry
        Ledger line without its receipt.
    releases : Releases
        Releases that are to leave.
    salt : bytes
        Fresh salt.
    """
    alone = all(release.kind in SHARED for release in releases)  # the line's digest is the share's
    held = ShareReceipt(
        leaf="",
        salt=salt.hex(),
        question=question(broadcast.facts, broadcast.opened),
        seen=receipt.root,
        share="" if alone else share_digest(releases),
    )
    values = held.values()
    values["leaf"] = held.leaf_of(entry)
    return values


def seal_of(entry: Entry | None) -> str:
    """Return the seal to send with the release of a ledger line; empty without a receipt."""
    if entry is None:
        return ""
    held = ShareReceipt.of(entry)
    return "" if held is None else held.seal_of(entry)
