"""Keys for secure sums: key files, keys of all clients in one process, and the key of a deployed node."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedveil.accounting import Policy, SumPolicy
from fedveil.engines.deployed import RUN
from fedveil.engines.lifetime import ledger_id
from fedveil.errors import FieldError, kind_of
from fedveil.files import LEDGER, read_private, write_private
from fedveil.mechanisms import Source
from fedveil.secure import PublicKey, Site, SiteKey, roster

FIRST = "fedveil site key 1"
DIGEST = 64  # digits of a ledger's id


def make_key(path: str | Path) -> SiteKey:
    """Make a site's key for secure sums, and write it to a new file of mode 0600.

    Raises
    ------
    FieldError
        As in `write_private`.
    """
    key, secret = SiteKey.new()
    write_private(path, FIRST, secret)
    return key


def read_key(path: str | Path) -> SiteKey:
    """Read a site's key from its file.

    Raises
    ------
    FieldError
        As in `read_private`.
    """
    return SiteKey(read_private(path, FIRST, 64))


def bind_key(path: str | Path, ledger: str) -> None:
    """Bind a key to one ledger: at its first use the ledger's id is written into the key's file.

    A second ledger would not contain the first one's answers. So the key could mask two answers to the same question
    with the same masks.

    Raises
    ------
    FieldError
        If the key is bound to another ledger, or its file cannot be written.
    """
    file, line = Path(path).expanduser(), f"{LEDGER}{ledger}"
    try:
        text = file.read_text("ascii")
        if not _bound(text):
            torn = (
                "" if text.endswith("\n") else "\n"
            )  # half a line of a process that died before it answered anything
            with file.open(
                "ab", buffering=0
            ) as stream:  # if two processes write at once, the first line counts
                stream.write(f"{torn}{line}\n".encode())
                os.fsync(stream.fileno())
        bound = _bound(file.read_text("ascii"))[0]
    except OSError as error:
        raise FieldError(
            "key", str(file), "cannot be written: chmod 600, since it names its ledger"
        ) from error
    if bound != line:
        accepted = (
            "answers from another ledger: a data set, and a ledger begun anew, has a key of its own"
        )
        raise FieldError("key", str(file), f"{accepted} (fedveil keys new)")


def _bound(text: str) -> list[str]:
    """Return the complete lines in a key's file that bind it to a ledger."""
    return [
        line
        for line in text.splitlines()
        if line.startswith(LEDGER) and len(line) == len(LEDGER) + DIGEST
    ]


def end_key(path: str | Path) -> SiteKey:
    """Destroy a key: overwrite its file and remove it. Copies and backups are left to its owner.

    Raises
    ------
    FieldError
        As in `read_key`.
    """
    file, key = Path(path).expanduser(), read_key(path)
    with file.open("r+b") as stream:
        stream.write(os.urandom(file.stat().st_size))
        stream.flush()
        os.fsync(stream.fileno())
    file.unlink()
    return key


@dataclass(frozen=True, eq=False)
class SiteKeys:
    """Keys of all clients of a process, by partition; empty for methods without a secure sum.

    Parameters
    ----------
    keys : sequence of SiteKey
        One key for each client, or none at all.
    """

    keys: Sequence[SiteKey] = ()

    @classmethod
    def of(cls, given: Sequence[SiteKey], clients: int, source: Source, seed: int) -> "SiteKeys":
        """Use the given keys, or make them: fresh ones with a secure source, else reproducible ones from the seed.

        Raises
        ------
        FieldError
            If the numbers of keys and clients differ, a value is not a key, or two clients share one.
        """
        for key in given:
            if not isinstance(key, SiteKey):
                raise FieldError(
                    "keys", kind_of(key), "must be site keys: fedveil.SiteKey.new()[0]"
                )
        roster([key.public for key in given], "keys")
        if given and len(given) != clients:
            raise FieldError("keys", len(given), f"must be one for each of the {clients} clients")
        keys = list(given)
        for partition in range(len(given), clients):
            if source.deployable:
                keys.append(SiteKey.new()[0])
            else:
                keys.append(SiteKey(hashlib.sha512(f"site {seed} {partition}".encode()).digest()))
        return cls(tuple(keys))

    def __bool__(self) -> bool:
        """Whether there are keys, and so secure sums."""
        return bool(self.keys)

    def roster(self, cohort: Iterable[int]) -> list[PublicKey]:
        """Return the public keys of a cohort."""
        if not self.keys:
            return []
        return [self.keys[partition].public for partition in cohort]

    def site(self, partition: int) -> Site | None:
        """Return a client's key and terms for secure sums, with all other clients as its peers; None without keys."""
        if not self.keys:
            return None
        peers = [key.public.hex() for i, key in enumerate(self.keys) if i != partition]
        return Site(self.keys[partition], SumPolicy(peers=peers))


def site_of(
    key: str | Path | None, policy: Policy | None, ledger: str | Path | None, dataset: str
) -> Site:
    """Return a deployed node's key and terms for secure sums, after binding the key to the node's ledger.

    Raises
    ------
    FieldError
        If something is missing or unusable; the text names it and the fix, for the node's own log only.
    """
    if key is None:
        raise FieldError(
            "privacy.key", None, "names the site's key file: make one by `fedveil keys new FILE`"
        )
    if policy is None or policy.sum is None:
        accepted = "it is needed for a secure sum: the policy's table [sum] pins the keys of the other sites as peers"
        raise FieldError("policy.sum", None, accepted)
    site = Site(read_key(key), policy.sum)
    if ledger is None or ledger == RUN:
        accepted = (
            "must be a lifetime ledger: one that begins anew would let a question be answered twice"
        )
        raise FieldError("privacy.ledger", ledger, accepted)
    bind_key(key, ledger_id(ledger, dataset))
    return site
