"""Receipts: a Merkle root over the shares that a round accepted, and over the terms of each share.

A *seal* hides a site's terms under a salt that stays at the site. A *leaf* is a hash over the round's question, the
digest of the share as it left the site, and the seal. The tree is that of RFC 6962: leaves and nodes are hashed under
different prefixes, and no leaf is ever doubled to make the number even. The *root* also covers the number of leaves and
the previous round's root. What a receipt proves, and what not, is in docs/receipts.md.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedveil.accounting.ledger import Entry, Release, Spend, digest
from fedveil.errors import FieldError, LedgerError
from fedveil.reading import json_of

SALT = 32  # bytes
EMPTY = ""  # in place of a digest that the first receipt of a run lacks
SHARED = ("model", "share")  # kinds of releases that a server combines
_HEX = re.compile("[0-9a-f]{64}")
_LEAF, _NODE = b"\x00", b"\x01"  # prefixes of RFC 6962


def is_digest(value: object) -> bool:
    """Whether a value is a SHA-256 digest as text: 64 hexadecimal digits."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def seal(salt: bytes, spend: Spend) -> str:
    """Compute a hash that hides the terms of a release; only the ledger's line can open it.

    Parameters
    ----------
    salt : bytes
        `SALT` random bytes, which stay in the site's ledger.
    spend : Spend
        Cost of the release, as its line has it.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    promise = spend.guarantee
    terms = {
        "unit": promise.unit,
        "relation": promise.relation,
        "trust": promise.trust,
        "mechanism": spend.mechanism,
        "scale": list(spend.scale),
        "sensitivity": spend.sensitivity,
        "draws": [vars(draw) for draw in spend.draws],
    }
    text = json.dumps(terms, sort_keys=True)
    return hashlib.sha256(b"fedveil receipt seal 1\x00" + (salt + text.encode())).hexdigest()


def share_digest(releases: Iterable[Release]) -> str:
    """Return the digest of the part of a reply that a server combines: the model or share."""
    return digest(tuple(release for release in releases if release.kind in SHARED))


def question(facts: str, opened: str) -> str:
    """Compute the digest of a round's question, from the digests of its public facts and of its models."""
    text = f"fedveil receipt question 1\x00{facts}{opened}"
    return hashlib.sha256(text.encode()).hexdigest()


def leaf(asked: str, share: str, sealed: str) -> str:
    """Compute the leaf of a share, from the digests of question and share, and the seal."""
    bound = b"".join(bytes.fromhex(part) for part in (asked, share, sealed))
    return hashlib.sha256(b"fedveil receipt leaf 1\x00" + bound).hexdigest()


def tree(leaves: Sequence[str]) -> bytes:
    """Compute the Merkle tree hash of leaves, in this order (RFC 6962, section 2.1).

    Parameters
    ----------
    leaves : sequence of str
        Leaves, 64 hexadecimal digits each.
    """
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(_LEAF + bytes.fromhex(leaves[0])).digest()
    cut = _cut(len(leaves))
    return hashlib.sha256(_NODE + tree(leaves[:cut]) + tree(leaves[cut:])).digest()


def path(leaves: Sequence[str], place: int) -> list[tuple[bool, str]]:
    """List the neighbours on the way from a leaf to the tree's hash, each with whether it stands to the left.

    The path proves that a leaf is in the tree without showing the other leaves (`tree_of_path`).
    """
    if len(leaves) == 1:
        return []
    cut = _cut(len(leaves))
    if place < cut:
        return [*path(leaves[:cut], place), (False, tree(leaves[cut:]).hex())]
    return [*path(leaves[cut:], place - cut), (True, tree(leaves[:cut]).hex())]


def tree_of_path(one: str, neighbours: Iterable[tuple[bool, str]]) -> bytes:
    """Return the tree's hash, computed from one leaf and its path."""
    value = tree([one])
    for left, neighbour in neighbours:
        other = bytes.fromhex(neighbour)
        pair = other + value if left else value + other
        value = hashlib.sha256(_NODE + pair).digest()
    return value


def _cut(count: int) -> int:
    """Return the largest power of two below the number of leaves."""
    return 1 << ((count - 1).bit_length() - 1)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Public receipt of one round, which is part of the next round's broadcast.

    Attributes
    ----------
    run : str
        Name of the run, the same in all its receipts.
    round : int
        Number of the round; in the first receipt of a run, one less than the first round.
    asked : int
        Number of sites that were asked; 0 in the first receipt.
    facts, opened : str
        Digests of the round's public facts, and of its broadcast models.
    model : str
        Digest of the round's released models, as in the server's ledger.
    previous : str
        Root of the previous receipt.
    leaves : tuple of str
        Leaf of each accepted share, sorted so that their order reveals nothing.

    Raises
    ------
    FieldError
        For values that no honest server sends: a repeated leaf, a wrong order, or more leaves than asked sites.
    """

    run: str
    round: int
    asked: int
    facts: str = EMPTY
    opened: str = EMPTY
    model: str = EMPTY
    previous: str = EMPTY
    leaves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that contradict each other."""
        object.__setattr__(self, "leaves", tuple(self.leaves))
        _require("run", isinstance(self.run, str), self.run, "must be text")
        for name, least in (("round", 0), ("asked", 0)):
            value = getattr(self, name)
            _require(name, type(value) is int and value >= least, value, "must be a whole number")
        digests = (self.facts, self.opened, self.model, self.previous)
        for value in (*self.leaves, *(digests if self.asked else ())):
            _require("digest", is_digest(value), value, "must be 64 hexadecimal letters")
        if not self.asked and any((*digests, *self.leaves)):
            _require("asked", False, 0, "was asked, and yet there are shares")
        pairs = zip(self.leaves, self.leaves[1:], strict=False)
        ascending = all(first < second for first, second in pairs)
        _require("leaves", ascending, len(self.leaves), "must be ascending, each leaf once")
        few = len(self.leaves) <= self.asked
        _require(
            "leaves", few, len(self.leaves), f"must be at most the {self.asked} that were asked"
        )
        some = bool(self.leaves) or not self.asked
        _require("leaves", some, 0, "must be one at least: a round combines something")

    @property
    def first(self) -> bool:
        """Whether this is the first receipt of a run; it covers no share."""
        return self.asked == 0

    @property
    def question(self) -> str:
        """Digest of the question that the accepted shares answer."""
        return question(self.facts, self.opened)

    @property
    def root(self) -> str:
        """Root over the shares, their number, and all other values of the receipt; 64 hexadecimal digits."""
        bound = self.values()
        bound["leaves"] = len(self.leaves)
        bound["tree"] = tree(self.leaves).hex()
        text = json.dumps(bound, sort_keys=True)
        return hashlib.sha256(b"fedveil receipt root 1\x00" + text.encode()).hexdigest()

    @property
    def text(self) -> str:
        """Receipt as a text, in the form in which a broadcast carries it."""
        return json.dumps(self.values(), sort_keys=True)

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["leaves"] = list(self.leaves)
        return values

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Receipt":
        """Read a receipt from plain values.

        Raises
        ------
        FieldError
            For a missing, unknown or invalid value.
        """
        names = {field.name for field in fields(cls)}
        known = isinstance(values, Mapping) and values.keys() == names
        _require("receipt", known, sorted(values) if known else None, f"must have {sorted(names)}")
        _require("leaves", isinstance(values["leaves"], list | tuple), None, "must be a list")
        return cls(**{**values, "leaves": tuple(values["leaves"])})

    @classmethod
    def parse(cls, text: str) -> "Receipt":
        """Read the receipt in a broadcast.

        Raises
        ------
        FieldError
            If the values are not those of a receipt.
        """
        try:
            values = json_of(text)
        except ValueError as error:
            raise FieldError("receipt", len(text), f"cannot be read: {error}") from error
        return cls.of(values)


@dataclass(frozen=True, kw_only=True)
class ShareReceipt:
    """A site's own receipt in its ledger line, by which its share can be found in the round's public receipt.

    Attributes
    ----------
    leaf : str
        Leaf of the share.
    salt : str
        Salt of the seal, hexadecimal; it never leaves the site.
    question : str
        Digest of the question that the share answers.
    seen : str
        Root of the receipt in the broadcast with the question.
    share : str
        Digest of the share that the server combines; empty if it equals the line's own digest.
    """

    leaf: str
    salt: str
    question: str
    seen: str
    share: str = ""

    @classmethod
    def of(cls, entry: Entry) -> "ShareReceipt | None":
        """Read the receipt in a client's line; None without one, or if it is a server's.

        Raises
        ------
        LedgerError
            If its values are not those of a receipt.
        """
        values = entry.receipt
        if not values or "leaves" in values:
            return None
        known = {field.name for field in fields(cls)}
        whole = {"leaf", "salt", "question", "seen"}
        plain = all(isinstance(value, str) for value in values.values())
        if not (whole <= values.keys() <= known and plain):
            raise LedgerError(
                f"the receipt of round {entry.key[0]} has other values than {sorted(known)}"
            )
        return cls(**values)

    def values(self) -> dict[str, str]:
        """Return plain values for a ledger's line."""
        return {name: value for name, value in vars(self).items() if value}

    def seal_of(self, entry: Entry) -> str:
        """Return the seal that was sent with this line's share.

        Raises
        ------
        LedgerError
            If the line's salt is not valid.
        """
        if not is_digest(self.salt):
            raise LedgerError(f"the salt of round {entry.key[0]} is not {SALT} bytes")
        return seal(bytes.fromhex(self.salt), entry.spend)

    def leaf_of(self, entry: Entry) -> str:
        """Compute the leaf from the line alone: from its digest, terms and salt.

        Raises
        ------
        LedgerError
            If one of them is not valid.
        """
        parts = (self.question, self.share or entry.digest, self.seal_of(entry))
        if not all(map(is_digest, parts)):
            raise LedgerError(
                f"the receipt of round {entry.key[0]} is over values that are no digests"
            )
        return leaf(*parts)


def _require(name: str, holds: bool, value: Any, accepted: str) -> None:
    """Refuse a value of a receipt unless `holds`."""
    if not holds:
        raise FieldError(f"receipt.{name}", value, accepted)
