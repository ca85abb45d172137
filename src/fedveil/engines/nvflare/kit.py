"""FedVeil's part of a FLARE site's ``privacy.json``: its scopes, and the arguments of `PrivacyFilter`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError, require_a
from fedveil.reading import json_of

ASKS, SENDS, GUARD = "PrivacyFilter", "ReleaseFilter", "JobGuard"
SITE_GUARD = "SiteGuard"
ROOMS = ("fedveil.nvflare.", "fedveil.engines.nvflare.")


@dataclass(frozen=True)
class SiteScope:
    """Scope of a site's ``privacy.json``: a name and two chains of filters.

    Attributes
    ----------
    name : str
        Name by which a job may select the scope.
    asks : list of dict
        Filters of incoming task data, in order.
    sends : list of dict
        Filters of outgoing task results, in order.
    """

    name: str
    asks: list[Mapping[str, Any]]
    sends: list[Mapping[str, Any]]

    @property
    def protects(self) -> bool:
        """Whether FedVeil's filter is the first for incoming data and the last for outgoing results."""
        if not self.asks or not self.sends:
            return False
        return is_ours(self.asks[0], ASKS) and is_ours(self.sends[-1], SENDS)


def is_ours(part: Mapping[str, Any], name: str) -> bool:
    """Whether a component of a FLARE configuration is FedVeil's class of that name."""
    path = str(part.get("path", ""))
    return path.startswith(ROOMS) and path.rpartition(".")[2] == name


def read_privacy(path: str | Path) -> dict[str, Any]:
    """Return the contents of a ``privacy.json``.

    Raises
    ------
    FieldError
        If the file cannot be read, or holds no table.
    """
    try:
        values = json_of(Path(path).expanduser().read_bytes())
    except (OSError, ValueError) as error:
        accepted = f"cannot be read ({error}): write one as docs/nvflare.md shows it"
        raise FieldError("site", str(path), accepted) from error
    require_a("site", values, dict, "must be a table, as docs/nvflare.md shows it")
    return dict(values)


def scopes_of(values: Mapping[str, Any]) -> list[SiteScope]:
    """Read the scopes in the contents of a ``privacy.json``."""
    scopes = []
    for scope in _tables(values, "scopes"):
        asks = _towards(_tables(scope, "task_data_filters"), "in")
        sends = _towards(_tables(scope, "task_result_filters"), "out")
        scopes.append(SiteScope(str(scope.get("name", "")), asks, sends))
    return scopes


def protection_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the arguments of the `PrivacyFilter` in a site's default scope, from the contents of ``privacy.json``.

    Raises
    ------
    FieldError
        If the default scope is not protected by FedVeil.
    """
    default = values.get("default_scope")
    for scope in scopes_of(values):
        if scope.name == default and scope.protects:
            arguments = scope.asks[0].get("args", {})
            require_a("site", arguments, Mapping, "the args of PrivacyFilter must be a table")
            return dict(arguments)
    accepted = (
        f"must be a scope whose first data filter is {ASKS} and whose last result filter is {SENDS}"
    )
    raise FieldError("default_scope", default, accepted)


def components_of(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the components of a FLARE configuration."""
    return list(_tables(values, "components"))


def _tables(values: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    found = values.get(name, ())
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise FieldError(name, found, "must be a list of tables")
    for table in found:
        require_a(name, table, Mapping, "must be a list of tables")
        yield table


def _towards(filters: Iterator[Mapping[str, Any]], direction: str) -> list[Mapping[str, Any]]:
    found = []
    for one in filters:
        if one.get("direction", direction) in (direction, "inout"):
            found.append(one)
    return found
