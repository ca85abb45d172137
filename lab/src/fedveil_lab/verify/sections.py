"""Read the section `[verify]` of verify.toml or pyproject.toml, which describes a subject."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError, damaged, nearest, require_a
from fedveil.reading import toml_of
from fedveil_lab.verify.claim import PrivacyClaim

KEYS = (
    "claim",
    "clients",
    "examples",
    "columns",
    "without",
    "timeout",
    "canaries",
    "steps",
    "app",
    "flare",
)
TABLES = ("steps", "app", "flare")
FILES = ("verify.toml", "pyproject.toml")


@dataclass(frozen=True)
class VerifySection:
    """Section `[verify]` of a configuration file.

    Attributes
    ----------
    values : dict
        Keys of the section that are not tables.
    steps, app, flare : dict
        Tables `[verify.steps]`, `[verify.app]` and `[verify.flare]`.
    source : str
        Path of the file; empty if there is none.
    """

    values: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)
    app: dict[str, Any] = field(default_factory=dict)
    flare: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    def get(self, name: str, given: Any, otherwise: Any = None) -> Any:
        """Return the value from the command line, else from the file, else the default."""
        return given if given is not None else self.values.get(name, otherwise)


def section_beside(folder: Path) -> VerifySection:
    """Read `[verify]` from a folder's verify.toml, or `[tool.fedveil.verify]` from its pyproject.toml; empty without both.

    Raises
    ------
    FieldError
        If a file cannot be read, or a key is unknown.
    """
    for name in FILES:
        file = folder / name
        if not file.is_file():
            continue
        try:
            values = toml_of(file.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise damaged("[verify]", file, error, "mend it, or move it away") from error
        if name == "pyproject.toml":
            values = _inside(values, "tool", "fedveil")
        own = _inside(values, "verify")
        if own:
            return _section(own, name)
    return VerifySection()


def require_shown(claim: PrivacyClaim, table: str, rows: int) -> None:
    """Refuse a claim that cannot be tested on an app with its own data loading, or with so many rows of a person."""
    if claim.unit == "person" and rows < 2:
        accepted = (
            "say how many rows a person has, at least 2: with one a person is tested as a record"
        )
        raise FieldError(f"{table} rows", rows, accepted)
    if claim.unit == "client" and claim.relation == "add/remove":
        accepted = (
            "of a client changes how an app deals data to all others: claim zero-out or replace-one"
        )
        raise FieldError("--claim", claim.describe(), accepted)
    if claim.relation == "zero-out" and (claim.unit != "client" or claim.trust == "local"):
        accepted = "an app cannot be told to count it as nothing: claim replace-one (records: add/remove), or name "
        raise FieldError("--claim", claim.describe(), f"{accepted}a function neighbours in {table}")


def _section(values: Mapping[str, Any], source: str) -> VerifySection:
    """Make a section; unknown keys are refused."""
    for key in values:
        if key not in KEYS:
            raise FieldError(f"[verify] {key} of {source}", values[key], nearest(key, KEYS))
    tables = {}
    for name in TABLES:
        table = values.get(name, {})
        require_a(f"[verify.{name}] of {source}", table, dict, "must be a table")
        tables[name] = dict(table)
    plain = {key: value for key, value in values.items() if key not in tables}
    return VerifySection(plain, source=source, **tables)


def _inside(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a table within nested tables; empty if there is none."""
    found: Any = values
    for name in names:
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return dict(found) if isinstance(found, Mapping) else {}
