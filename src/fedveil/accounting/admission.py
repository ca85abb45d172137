"""What may run on a node: apps by their content, who may start them, and whether they bring code of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from string import hexdigits
from typing import Any, Literal

from fedveil.errors import FieldError, require_choice

Foreign = Literal["isolated", "open"]


@dataclass(frozen=True, kw_only=True)
class Admission:
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

    client: str | None = None
    apps: Sequence[str] | None = None
    signers: Sequence[str] | None = None
    projects: Sequence[str] | None = None
    federations: Sequence[str] | None = None
    accounts: Sequence[str] | None = None
    runs: Sequence[str] | None = None
    foreign: Foreign = "isolated"
    ledger: str | None = None
    head: str | None = None
    dataset: str | None = None

    def __post_init__(self) -> None:
        for name in ("apps", "signers", "projects", "federations", "accounts", "runs"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, names_of(name, getattr(self, name)))
        for name in ("apps", "signers"):
            keys = tuple(key.removeprefix("sha256:").lower() for key in getattr(self, name) or ())
            for key in keys:
                if len(key) != 64 or not set(key) <= set(hexdigits):
                    raise FieldError(name, key, "must be 64 hexadecimal digits")
            if getattr(self, name) is not None:
                object.__setattr__(self, name, keys)
        for number in self.runs or ():
            if not number.isdecimal():
                raise FieldError("runs", number, 'must be the number of a run, in quotes, such as "8431"')
        for name in ("client", "ledger", "head", "dataset"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise FieldError(name, value, "must be a text in quotes")
        if self.client is not None and not all(self.client.partition(":")):
            raise FieldError("client", self.client, 'must be "module:attribute", such as "hospital.app:client"')
        require_choice("foreign", self.foreign, ("isolated", "open"))

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
            listed, found = getattr(self, field.name), run.get(field.name.removesuffix("s"))
            if field.name != "apps" and isinstance(listed, tuple) and found is not None and found not in listed:
                return f"the policy lists no {field.name.removesuffix('s')} {found!r} in policy.node.{field.name}"
        return None


def names_of(field: str, values: Any, known: Iterable[str] | None = None) -> tuple[str, ...]:
    """A list of names: a table whose keys are names, whatever it says of them, is none."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise FieldError(field, values, 'must be a list of names, such as ["local"]')
    if known is not None:
        for value in values:
            require_choice(field, value, known)
    return tuple(values)
