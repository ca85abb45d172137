"""The folder of an audit: what was asked, and one line a finished replicate, so that nothing is played twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedveil.attacks.paper import MULTI_ROUND, SINGLE_SHOT
from fedveil.errors import FieldError, damaged
from fedveil.experiments.audit_results import attack_of
from fedveil.experiments.config import Config
from fedveil.experiments.folders import AUDIT, CONFIG, SPEC, refuse_others, unused, way_out
from fedveil.experiments.ledgers import append, make_folder, replace
from fedveil.experiments.loading import load
from fedveil.experiments.lock import FolderLock
from fedveil.experiments.replicates_record import Case, Replicate

LINES, PAPER = "replicates.jsonl", "paper.jsonl"
RESULT, FIGURE, EVIDENCE = "audit.json", "audit.png", "evidence.png"
Losses = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Earlier:
    """What the results in a folder are of.

    Attributes
    ----------
    attacks : frozenset of str
        By name, the paper's statistics among them.
    replicates : int
        Evaluated runs in each world; 0 where no attack needed any.
    """

    attacks: frozenset[str] = frozenset()
    replicates: int = 0


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
    paper : dict of (str, str) to pair of list of float, or str
        By the paper's statistic and setting, what it is computed from, or why there is nothing.

    Raises
    ------
    FieldError
        If the folder holds something else.
    """

    def __init__(self, path: Path | None, config: Config, question: dict[str, Any]) -> None:
        self.path = path
        self.done: dict[Case, Replicate] = {}
        self.paper: dict[tuple[str, str], Losses | str] = {}
        self._lock: FolderLock | None = None
        self._config = config
        self._spec = json.loads(json.dumps({"fingerprint": config.fingerprint(), **question}))
        if path is None:
            return
        refuse_others(path, AUDIT)
        if unused(path):
            return
        spec = path / SPEC
        try:
            stored = dict(json.loads(spec.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise damaged("--out", spec, error, way_out(path)) from error
        if (path / CONFIG).is_file():  # as this version reads it: an earlier one knew fewer options
            stored["fingerprint"] = load(path).fingerprint()
        if stored != self._spec:
            other = ", ".join(k for k in self._spec if stored.get(k) != self._spec[k]).replace(
                "fingerprint", "configuration"
            )
            raise FieldError("--out", str(path), f"holds an audit with another {other}; give another --out")
        self._take()
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def earlier(self) -> Earlier:
        """What a finished audit in this folder was of.

        Raises
        ------
        FieldError
            If its results are damaged.
        """
        file = None if self.path is None else self.path / RESULT
        if file is None or not file.is_file():
            return Earlier()
        try:
            values = json.loads(file.read_bytes())
            attacks = {attack_of(r["attack"]) for r in (*values["results"], *values["refused"])}
            paper = {SINGLE_SHOT: "single_shot", MULTI_ROUND: "multi_round"}
            attacks |= {name for name, key in paper.items() if values["paper"][key]}
            return Earlier(frozenset(attacks), int(values["replicates"]))
        except (ValueError, KeyError, TypeError) as error:
            raise damaged("--out", file, error, "delete it, and ask again; finished runs stay") from error

    def begin(self) -> None:
        """Make the folder; nothing is written before this."""
        if self.path is None:
            return
        make_folder(self.path)
        self._take()
        for name, content in ((SPEC, json.dumps(self._spec, indent=2)), (CONFIG, self._config.to_toml())):
            if not (self.path / name).exists():
                replace(self.path / name, content.encode())

    def add(self, replicates: Sequence[Replicate]) -> None:
        """Keep finished replicates."""
        self.done |= {r.case: r for r in replicates}
        if self.path is not None:
            append(self.path / LINES, "".join(json.dumps(asdict(r)) + "\n" for r in replicates))

    def add_paper(self, statistic: str, setting: str, losses: Losses | str) -> None:
        """Keep what one of the paper's statistics is computed from, or why there is nothing."""
        self.paper[statistic, setting] = losses
        if self.path is not None:
            append(self.path / PAPER, json.dumps([statistic, setting, losses]) + "\n")

    def finish(self, values: dict[str, Any]) -> None:
        """Write the results."""
        if self.path is not None:
            replace(self.path / RESULT, (json.dumps(values, indent=2) + "\n").encode())

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _take(self) -> None:
        if self.path is not None and self._lock is None:
            lock = FolderLock(self.path)
            lock.take()
            self._lock = lock

    def _read(self) -> None:
        """Take over what is finished; a line that was half-written when a process was killed is played again."""
        assert self.path is not None
        for number, values in _read(self.path / LINES):
            try:
                found = Replicate(**{**values, "case": Case(**values["case"])})
            except (TypeError, KeyError) as error:
                accepted = f"is of another version ({error}); continue with that one, or give another --out"
                raise FieldError("--out", f"{self.path / LINES}, line {number}", accepted) from error
            self.done[found.case] = found
        for _, (statistic, setting, losses) in _read(self.path / PAPER):
            self.paper[statistic, setting] = losses
        _rewrite(self.path / LINES, [asdict(r) for r in self.done.values()])
        _rewrite(self.path / PAPER, [[*key, losses] for key, losses in self.paper.items()])


def _read(path: Path) -> Iterator[tuple[int, Any]]:
    """Every whole line and its number."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        with suppress(ValueError):
            values = json.loads(line)
            yield number, values


def _rewrite(path: Path, values: Sequence[Any]) -> None:
    """Leave whole lines only, so that the next one does not continue a torn one."""
    content = "".join(json.dumps(value) + "\n" for value in values).encode()
    if path.exists() and path.read_bytes() != content:
        replace(path, content)
