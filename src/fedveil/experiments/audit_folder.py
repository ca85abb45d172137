"""The folder of an audit: what was asked, and one line a finished replicate, so that nothing is played twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError
from fedveil.experiments.config import Config
from fedveil.experiments.ledgers import append, make_folder, replace
from fedveil.experiments.replicates_record import Case, Replicate

SPEC, LINES, RESULT, FIGURE = "spec.json", "replicates.jsonl", "audit.json", "audit.png"


class AuditFolder:
    """Finished replicates of an audit, in memory or in a folder.

    Parameters
    ----------
    path : Path, optional
        New, empty, or that of the same audit, which is then continued.
    config : Config
        What is audited.
    question : dict
        What else makes two audits the same: target, attacker, shadow, world.

    Attributes
    ----------
    done : dict of Case to Replicate
        The finished ones.

    Raises
    ------
    FieldError
        If the folder holds something else.
    """

    def __init__(self, path: Path | None, config: Config, question: dict[str, Any]) -> None:
        self.path = path
        self.done: dict[Case, Replicate] = {}
        self._config = config
        self._spec = json.loads(json.dumps({"fingerprint": config.fingerprint(), **question}))
        if path is None or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        spec = path / SPEC
        if not path.is_dir() or not spec.is_file():
            raise FieldError("--out", str(path), "holds something else than an audit; give another --out")
        try:
            stored = json.loads(spec.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FieldError("--out", str(spec), f"cannot be read ({error}); give another --out") from error
        if stored != self._spec:
            other = ", ".join(k for k in self._spec if stored.get(k) != self._spec[k])
            raise FieldError("--out", str(path), f"holds another audit (see {other}); give another --out")
        self._read(path / LINES)

    def begin(self) -> None:
        """Make the folder; nothing is written before this."""
        if self.path is None:
            return
        make_folder(self.path)
        if not (self.path / SPEC).exists():
            replace(self.path / "config.toml", self._config.to_toml().encode())
            replace(self.path / SPEC, json.dumps(self._spec, indent=2).encode())

    def add(self, replicates: Sequence[Replicate]) -> None:
        """Keep finished replicates."""
        self.done |= {r.case: r for r in replicates}
        if self.path is not None:
            append(self.path / LINES, "".join(json.dumps(asdict(r)) + "\n" for r in replicates))

    def finish(self, values: dict[str, Any]) -> None:
        """Write the results."""
        if self.path is not None:
            replace(self.path / RESULT, (json.dumps(values, indent=2) + "\n").encode())

    def _read(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # the last one may be half-written: it is played again
                values = json.loads(line)
                found = Replicate(**{**values, "case": Case(**values["case"])})
                self.done[found.case] = found
        if path.exists() and len(self.done) < len(lines):
            replace(path, "".join(json.dumps(asdict(r)) + "\n" for r in self.done.values()).encode())
