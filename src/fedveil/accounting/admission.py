"""Two tables of a policy: code that may run on a node, and a site's terms for secure sums."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from string import hexdigits
from typing import Annotated, Literal

from fedveil.checks import Check, Names, Parameters, SilosOfPerson, Text, Whole, require_whole
from fedveil.errors import FieldError


class Denied(str):
    """Reason of a refusal as a text, with the policy's key that caused it.

    Parameters
    ----------
    rule : str
        Key of the policy, as ``"total.record_epsilon"``.
    reason : str
        Text of the refusal.

    Attributes
    ----------
    rule : str
        Key of the policy.

    Examples
    --------
    >>> policy = fv.Policy(trust=("local",))
    >>> policy.forbids("global", "central").rule
    'trust'
    """

    rule: str

    def __new__(cls, rule: str, reason: str) -> "Denied":
        """Make the text of the reason, and store the key with it."""
        made = super().__new__(cls, reason)
        made.rule = rule
        return made


@dataclass(frozen=True, kw_only=True)
class Admission(Parameters):
    """Code that may run on a node: the table `[node]` of a policy.

    A list refuses everything that it does not name; an absent list refuses nothing. The node itself computes a bundle's
    hash. Runs, federations and accounts are those that the SuperLink reports.

    Parameters
    ----------
    client : str, optional
        ``"module:attribute"``, a ClientApp that the node's operator installed. A bundle's client code is then ignored.
    apps : sequence of str, optional
        SHA-256 of app bundles, 64 hexadecimal digits each. Without `client`, a bundle has to be listed here or signed.
    signers : sequence of str, optional
        Ed25519 public keys, 64 hexadecimal digits each. An approval of a bundle by one of them holds until it expires.
    projects : sequence of str, optional
        Allowed projects as ``"publisher/name"``; a bundle states its own.
    federations, accounts, runs : sequence of str, optional
        Allowed federations, accounts and runs, by the names and numbers that Flower shows.
    foreign : {"isolated", "open"}
        Confinement of a bundle's own code. Isolated: no network, and write access only to a folder that is deleted
        afterwards (Linux, user namespaces). Open: everything that the node's user may do; no policy can limit that.
    ledger, head : str, optional
        Folders of the lifetime ledger and of its head. Relative paths begin at the policy's folder.
    dataset : str, optional
        Name of the ledger.

    Raises
    ------
    FieldError
        For an invalid value, or values that contradict each other.
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
            names = getattr(self, name)
            if names is None:
                continue
            if name in ("apps", "signers"):
                names = require_keys(name, names)
            object.__setattr__(self, name, tuple(names))
        for number in self.runs or ():
            if not number.isdecimal():
                raise FieldError(
                    "runs", number, 'must be the number of a run, in quotes, such as "8431"'
                )
        if self.client is not None and not all(self.client.partition(":")):
            raise FieldError(
                "client", self.client, 'must be "module:attribute", such as "hospital.app:client"'
            )

    def refusal(self, signed: bool, **run: str) -> Denied | None:
        """Return the reason why a run may not use this node; None if it may.

        Parameters
        ----------
        signed : bool
            Whether a listed key approved its bundle.
        **run
            Description of the run, by the names of the lists in the singular: `app` (its hash), `project`,
            `federation`, `account`, `run`.
        """
        any_bundle = self.client is not None and self.apps is None and self.signers is None
        if not any_bundle and not signed and run["app"] not in (self.apps or ()):
            reason = f"the policy lists no app {run['app']}, and no key that it lists approved it"
            return Denied("node.apps", reason)
        for field in fields(self):
            kind = field.name.removesuffix("s")
            listed, given = getattr(self, field.name), run.get(kind)
            if field.name == "apps" or not isinstance(listed, tuple) or given is None:
                continue
            if given not in listed:
                reason = f"the policy lists no {kind} {given!r} in policy.node.{field.name}"
                return Denied(f"node.{field.name}", reason)
        return None


@dataclass(frozen=True, kw_only=True)
class SumPolicy(Parameters):
    """Terms on which a site takes part in secure sums, as in the contract of a study.

    Parameters
    ----------
    peers : sequence of str
        Public keys of the other sites, 64 hexadecimal digits each, as `fedveil keys show` prints them. A server cannot
        add any.
    least_sites : int
        Least number of sites in a sum that the site joins, even if the method allows fewer; at least 3.
    colluding : int
        The noise must suffice even if this many sites collude.
    attempts : int
        Most questions in one round that the site answers; each answer costs a full release.
    silos_per_person : int
        Largest number of sites at which one person may have records. A method for persons with a smaller number is
        refused.
    """

    peers: Names = ()
    least_sites: Annotated[int, Check(partial(require_whole, least=3))] = 3
    colluding: Whole = 1
    attempts: Whole = 3
    silos_per_person: SilosOfPerson = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "peers", require_keys("peers", self.peers, " (fedveil keys show)"))
        distinct = len(set(self.peers))
        if distinct < 2 or distinct != len(self.peers):
            raise FieldError(
                "peers",
                len(self.peers),
                "must be at least 2 other sites, each once: two have no sum",
            )
        named = len(self.peers) + 1
        for name, most in (
            ("least_sites", named),
            ("colluding", named - 2),
            ("silos_per_person", named),
        ):
            if getattr(self, name) > most:
                accepted = f"must be at most {most}: with this site the contract names {named}"
                raise FieldError(name, getattr(self, name), accepted)


def require_keys(field: str, keys: Iterable[str], fix: str = "") -> tuple[str, ...]:
    """Return public keys or hashes in lower case, without a prefix ``sha256:``; refuse invalid ones."""
    hashes = tuple(key.removeprefix("sha256:").lower() for key in keys)
    for key in hashes:
        if len(key) != 64 or not set(key) <= set(hexdigits):
            raise FieldError(field, key, f"must be 64 hexadecimal digits{fix}")
    return hashes
