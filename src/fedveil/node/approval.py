"""Approvals of an app bundle: an Ed25519 signature of its hash and of the day on which the approval ends.

The approval is a line of text, which travels in the run's configuration (`APPROVAL`); nothing else in it is trusted.
"""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.engines.keyfile import read_private, write_private
from fedveil.errors import FieldError

APPROVAL = "fedveil.approval"  # key of the run's configuration
FIRST = "fedveil approval key 1"
_FORM = re.compile(r"(\d{4}-\d\d-\d\d):([0-9a-f]{128})")


def make_signer(path: str | Path) -> str:
    """Make a key that approves bundles, in a new file of mode 0600; its public half."""
    key = Ed25519PrivateKey.generate()
    write_private(path, FIRST, key.private_bytes_raw())
    return key.public_key().public_bytes_raw().hex()


def approve(path: str | Path, sha256: str, until: date) -> str:
    """The approval of a bundle, to the end of a day (UTC).

    Raises
    ------
    FieldError
        If the key cannot be used, or the day is over.
    """
    if until < datetime.now(UTC).date():
        raise FieldError("until", until.isoformat(), "is over")
    key = Ed25519PrivateKey.from_private_bytes(read_private(path, FIRST, 32))
    return f"{until.isoformat()}:{key.sign(_signed(sha256, until.isoformat())).hex()}"


def approved(signers: Sequence[str], sha256: str, approval: object, now: datetime) -> bool:
    """Whether one of the public keys approved a bundle, and the approval holds."""
    form = _FORM.fullmatch(approval) if isinstance(approval, str) else None
    if form is None:
        return False
    until, signature = form.groups()
    try:
        if now.astimezone(UTC).date() > date.fromisoformat(until):
            return False
    except ValueError:
        return False
    for signer in signers:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer)).verify(
                bytes.fromhex(signature), _signed(sha256, until)
            )
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def _signed(sha256: str, until: str) -> bytes:
    return f"fedveil approves an app\n{sha256}\n{until}\n".encode()
