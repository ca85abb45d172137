"""What may run on a node, and on what terms it takes part in secure sums: the tables of a policy."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from string import hexdigits
from typing import Annotated, Literal

from fedveil.checks import Check, Names, Parameters, SilosOfPerson, Text, Whole, require_whole
from fedveil.errors import FieldError


@dataclass(frozen=True, kw_only=True)
class Admission(Parameters):
    """The table `[node]` of a policy. What no list names is refused; a list that is left out asks nothing.

    A bundle's hash is computed on the node. Runs, federations and accounts are what the SuperLink says they are.

    Parameters
    ----------
    client : str, optional
        ``"module:attribute"``, a ClientApp that the node's operator installed. A bundle's client code is then ignored.
    apps : sequence of str, optional
        SHA-256 of the app bundles that may run (64 hexadecimal digits). Without `client`, a bundle runs that is listed
        here or signed, and no other.
    signers : sequence of str, optional
        Ed25519 public keys (64 hexadecimal digits) whose approvals of a bundle are taken, until they expire.
    projects : sequence of str, optional
        ``"publisher/name"``, read from the bundle.
    federations, accounts, runs : sequence of str, optional
        By the names and numbers that Flower shows.
    foreign : {"isolated", "open"}
        How a bundle's own code runs: without network, writing nothing but a folder that is gone afterwards (Linux, user
        namespaces); or with everything that the node's user may do, which no policy can hold.
    ledger, head : str, optional
        Folders of the lifetime ledger and of its head. Relative paths begin at the policy's folder.
    dataset : str, optional
        Names the ledger.

    Raises
    ------
    FieldError
        For anything that cannot be meant.
    """

    client: Text | None = None
    apps: Names | None = None
    signers: Names | None = None
    projects: Names | None = None
    federations: Names | None = None
    accounts: Names | None = None
    runs: Names | None = None
    foreign: Literal["isolated", "open"] = "isolated"
    ledger: Text | None = None
    head: Text | None = None
    dataset: Text | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("apps", "signers", "projects", "federations", "accounts", "runs"):
            if (names := getattr(self, name)) is not None:
                keys = name in ("apps", "signers")
                object.__setattr__(self, name, require_keys(name, names) if keys else tuple(names))
        for number in self.runs or ():
            if not number.isdecimal():
                raise FieldError("runs", number, 'must be the number of a run, in quotes, such as "8431"')
        if self.client is not None and not all(self.client.partition(":")):
            raise FieldError("client", self.client, 'must be "module:attribute", such as "hospital.app:client"')

    def refusal(self, signed: bool, **run: str) -> str | None:
        """Why a run may not use this node, or None if it may.

        Parameters
        ----------
        signed : bool
            Whether a listed key approved its bundle.
        **run
            By the names of the lists, in the singular: `app` (its hash), `project`, `federation`, `account`, `run`.
        """
        any_bundle = self.client is not None and self.apps is None and self.signers is None
        if not any_bundle and not signed and run["app"] not in (self.apps or ()):
            return f"the policy lists no app {run['app']}, and no key that it lists approved it"
        for field in fields(self):
            listed, given = getattr(self, field.name), run.get(field.name.removesuffix("s"))
            if field.name != "apps" and isinstance(listed, tuple) and given is not None and given not in listed:
                return f"the policy lists no {field.name.removesuffix('s')} {given!r} in policy.node.{field.name}"
        return None


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Parameters):
    """On what terms a site takes part in secure sums; what the contract of a study says.

    Parameters
    ----------
    peers : sequence of str
        Public keys of the other sites, 64 hexadecimal digits each, as `fedveil keys show` prints them. No server adds
        one.
    least_sites : int
        The smallest roster that is answered, whatever the method says; at least 3.
    colluding : int
        The fewest sites that the noise has to allow for.
    attempts : int
        The most questions of one round that are answered; each costs a full release.
    silos_per_person : int
        The most sites at which one person may have records; a method for persons that allows for fewer is refused.
    """

    peers: Names = ()
    least_sites: Annotated[int, Check(partial(require_whole, least=3))] = 3
    colluding: Whole = 1
    attempts: Whole = 3
    silos_per_person: SilosOfPerson = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "peers", require_keys("peers", self.peers, " (fedveil keys show)"))
        if len(set(self.peers)) < 2 or len(set(self.peers)) != len(self.peers):
            raise FieldError("peers", len(self.peers), "must be at least 2 other sites, each once: two have no sum")
        named = len(self.peers) + 1
        for name, most in (("least_sites", named), ("colluding", named - 2), ("silos_per_person", named)):
            if getattr(self, name) > most:
                accepted = f"must be at most {most}: with this site the contract names {named}"
                raise FieldError(name, getattr(self, name), accepted)


def require_keys(field: str, keys: Iterable[str], fix: str = "") -> tuple[str, ...]:
    """Public keys or hashes, in small letters and without what names the hash."""
    hashes = tuple(key.removeprefix("sha256:").lower() for key in keys)
    for key in hashes:
        if len(key) != 64 or not set(key) <= set(hexdigits):
            raise FieldError(field, key, f"must be 64 hexadecimal digits{fix}")
    return hashes
