"""Gate: limits for a comparison's setting, declared before its first run and checked after its last.

Privacy comes first: no score makes up for a failed promise, and a setting that was not attacked does not pass the
attack.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from fedveil.accounting import Trust
from fedveil.checks import require_unit
from fedveil.errors import (
    FieldError,
    nearest,
    require_choice,
    require_non_negative,
    require_number,
    require_positive,
)
from fedveil.files import CELLS, write_atomic
from fedveil.ranges import require_within
from fedveil.reading import json_of, toml_of
from fedveil.units import UNITS
from fedveil_lab.config import Config
from fedveil_lab.config.variants import variants_of
from fedveil_lab.runs import Summary

GATE = "gate.json"
AT_LEAST = ("accuracy", "balanced_accuracy", "auc", "sensitivity", "specificity")
AT_MOST = ("brier", "rmse")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Limits that one setting of a comparison has to meet.

    Attributes
    ----------
    setting : str
        Label of the setting.
    unit : str
        Unit that the promise has to cover: client, person or record.
    epsilon, delta : float
        The largest total epsilon, at this delta.
    trust : str
        Most trust that the promise may need; empty: any.
    measures : mapping of str to float
        Limits by figure. They are compared with the worse end of the 95% interval, averaged over seeds.
    attack : float or None
        Largest upper end of the strongest attack's AUC; needs ``--audit``.
    digest : str
        SHA-256 of the file.
    """

    setting: str
    unit: str
    epsilon: float
    delta: float
    trust: str
    measures: Mapping[str, float]
    attack: float | None
    digest: str

    @classmethod
    def read(cls, file: Path, config: Config) -> "Gate":
        """Read a gate file, and refuse limits that the comparison cannot check.

        Raises
        ------
        FieldError
            If a key is refused; the message names it.
        """
        try:
            content = file.read_bytes()
            values = toml_of(content.decode())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FieldError("--gate", str(file), f"cannot be read as TOML: {error}") from error
        _only(values, "", ("setting", "privacy", "measures", "attack"))
        for name in ("setting", "privacy", "measures"):
            if name not in values:
                raise FieldError(
                    f"gate: {name}", None, "setting, [privacy] and [measures] are needed"
                )
        labels = [variant.label for variant in variants_of(config)]
        setting = require_choice("gate: setting", str(values["setting"]), labels)
        privacy, measures = _table(values, "privacy"), _table(values, "measures")
        _only(privacy, "privacy.", ("unit", "epsilon", "delta", "trust"))
        for name in ("unit", "epsilon", "delta"):
            if name not in privacy:
                raise FieldError(
                    f"gate: privacy.{name}", None, "say unit, epsilon and delta: of the total"
                )
        trust = str(privacy.get("trust", ""))
        if trust:
            require_choice("gate: privacy.trust", trust, get_args(Trust))
        _only(measures, "measures.", (*AT_LEAST, *AT_MOST))
        limits = {}
        for name, value in measures.items():
            limits[name] = require_non_negative(f"gate: measures.{name}", value)
        most = None
        if "attack" in values:
            attack = _table(values, "attack")
            _only(attack, "attack.", ("auc",))
            most = require_number(
                "gate: attack.auc", attack.get("auc"), lambda n: 0.5 <= n <= 1, "must be .5 to 1"
            )
        return cls(
            setting=setting,
            unit=require_unit("gate: privacy.unit", str(privacy["unit"]), UNITS),
            epsilon=require_positive("gate: privacy.epsilon", privacy["epsilon"]),
            delta=require_within("delta", "gate: privacy.delta", privacy["delta"]),
            trust=trust,
            measures=limits,
            attack=most,
            digest=hashlib.sha256(content).hexdigest(),
        )

    def declare(self, folder: Path, seeds: int, *, config: Config, audit: int) -> None:
        """Write the limits to the folder before the first run; limits declared earlier must be equal.

        Raises
        ------
        FieldError
            If the folder has runs without a gate, or a different gate: limits must be set before the runs.
        """
        if self.attack is not None and not audit:
            raise FieldError("gate: attack.auc", self.attack, "needs an attack: --audit N")
        asked = {
            "gate": self.digest,
            "config": config.fingerprint(),
            "seeds": seeds,
            "audit": audit,
        }
        file = folder / GATE
        if file.exists():
            declared = json_of(file.read_bytes())["declared"]
            if declared != asked:
                changed = ", ".join(name for name in asked if declared.get(name) != asked[name])
                accepted = f"another {changed} was declared before the first run: give what was declared, or begin anew"
                raise FieldError("--gate", str(folder), accepted)
            return
        if (folder / CELLS).is_dir():
            accepted = "holds runs that began without a gate: a limit set afterwards is none. Begin anew, --out"
            raise FieldError("--gate", str(folder), accepted)
        write_atomic(
            file,
            (json.dumps({"declared": asked, "limits": self.limits()}, indent=1) + "\n").encode(),
        )

    def limits(self) -> dict[str, Any]:
        """Return the limits as plain values."""
        privacy = {
            "unit": self.unit,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "trust": self.trust,
        }
        return {
            "setting": self.setting,
            "privacy": privacy,
            "measures": dict(self.measures),
            "attack": self.attack,
        }

    def check(self, summaries: Sequence[Summary]) -> "Passed":
        """Check the runs of the gate's setting against the limits."""
        runs = [summary for summary in summaries if summary.setting == self.setting]
        if not runs:
            raise FieldError("gate: setting", self.setting, "has no finished run")
        failed: dict[str, None] = {}
        for run in runs:
            failed |= dict.fromkeys(self._private(run))
        short = [self._measured(runs, name, limit) for name, limit in self.measures.items()]
        for run in runs:
            if run.stopped:
                short.append(f"stopped early: {run.stopped}")
        return Passed(self, tuple(failed), self._attacked(runs), tuple(filter(None, short)))

    def _private(self, run: Summary) -> list[str]:
        promise: dict[str, Any] = dict(next(iter(run.values["guarantees"].values())))
        text = str(promise.get("text", "none"))
        if promise.get("status") not in ("formal", "conditional") or "epsilon" not in promise:
            return [f"nothing is proven: {text}"]
        why = []
        if promise["unit"] != self.unit or promise.get("group", 1) != 1:
            why.append(
                f"the promise is for one {promise['unit']}, and one {self.unit} was asked for: {text}"
            )
        if promise["epsilon"] > self.epsilon or promise["delta"] > self.delta:
            why.append(
                f"the promise is above epsilon {self.epsilon:g} at delta {self.delta:g}: {text}"
            )
        if self.trust and promise["trust"] != self.trust:
            why.append(f"trust {promise['trust']}, and {self.trust} was asked for: {text}")
        return why

    def _attacked(self, runs: Sequence[Summary]) -> tuple[str, ...]:
        if self.attack is None:
            return ()
        audits = [audit for run in runs for audit in run.values.get("audits", ())]
        if not audits:
            return ("no attack that works was played against it: nothing was withstood",)
        worst = max(audits, key=lambda audit: float(audit["high"]))
        said = (
            f"{worst['attack']}: AUC {worst['auc']:.3f} ({worst['low']:.3f} to {worst['high']:.3f})"
        )
        if worst["high"] <= self.attack:
            return ()
        return (f"{said}, at most {self.attack:g} was asked for",)

    @staticmethod
    def _measured(runs: Sequence[Summary], name: str, limit: float) -> str:
        what, end = "lower end", "low"
        if name in AT_MOST:
            what, end = "upper end", "high"
        if name == "rmse":
            what = "mean"
        values = []
        for run in runs:
            if name == "rmse":
                value = run.averaged("rmse")
            else:
                pooled = run.values.get("classified", {}).get("pooled", {})
                figure = pooled.get("figures", {}).get(name) or {}
                value = figure.get(end)
            if value is None:
                return f"{name} was not measured"
            values.append(value)
        reached = fmean(values)
        kept, asked = reached >= limit, "at least"
        if name in AT_MOST:
            kept, asked = reached <= limit, "at most"
        if kept:
            return ""
        return f"{name}: {what} {reached:.3f}, {asked} {limit:g} was asked for"


@dataclass(frozen=True)
class Passed:
    """Verdict of a gate.

    Attributes
    ----------
    gate : Gate
        The limits.
    privacy, attack, measures : tuple of str
        Why each part failed; empty where it passed.
    """

    gate: Gate
    privacy: tuple[str, ...]
    attack: tuple[str, ...]
    measures: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether every part passed."""
        return not (self.privacy or self.attack or self.measures)

    @property
    def verdict(self) -> str:
        """Say the verdict in one sentence."""
        if self:
            return f"{self.gate.setting}: passes the gate that was declared before the first run"
        if self.privacy or self.attack:
            return f"{self.gate.setting}: fails on privacy, which no score offsets"
        return f"{self.gate.setting}: keeps its promise, and falls short of what was to be measured"

    def keep(self, folder: Path) -> None:
        """Write the result to a folder, beside the declared limits."""
        file = folder / GATE
        values = json_of(file.read_bytes())
        values["result"] = {
            "passed": bool(self),
            "verdict": self.verdict,
            "privacy": list(self.privacy),
            "attack": list(self.attack),
            "measures": list(self.measures),
        }
        write_atomic(file, (json.dumps(values, indent=1) + "\n").encode())


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values[name]
    if not isinstance(table, Mapping):
        raise FieldError(f"gate: {name}", table, f"must be a table: [{name}]")
    return table


def _only(table: Mapping[str, Any], prefix: str, known: Sequence[str]) -> None:
    for name in table:
        if name not in known:
            raise FieldError(f"gate: {prefix}{name}", table[name], nearest(str(name), known))
