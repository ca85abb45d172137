"""Test a claim of an NVIDIA FLARE job: the unchanged job runs in FLARE's simulator with canaries at every site."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.errors import FieldError, cleaned, damaged, nearest, require_count
from fedveil.registry import optional
from fedveil_lab.verify import zygote
from fedveil_lab.verify.aims import Floats
from fedveil_lab.verify.apps import epsilons_in
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.canary_runs import (
    LEAST_SITES,
    Design,
    Worlds,
    judge_by_canaries,
    run_settings,
    with_steps,
)
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps
from fedveil_lab.verify.flare_probe.flare_watch import CLOSED, LOADED, RESULT
from fedveil_lab.verify.isolation import ONE_THREAD, NoVerdict
from fedveil_lab.verify.judged import Judged
from fedveil_lab.verify.player import asks_for_network
from fedveil_lab.verify.playing import silent
from fedveil_lab.verify.screening import Say
from fedveil_lab.verify.sections import VerifySection, require_shown
from fedveil_lab.verify.transcripts import SiteTurn, Transcript

META = ("meta.json", "meta.conf", "meta.yml")
MODELS = (".pt", ".pth", ".npy", ".npz", ".safetensors")
CANARIES = 64
SITES = 8
TIMEOUT = 300.0  # of a run, where nobody says another
EXTERNAL = (  # words of a client's configuration that start training in a process of its own
    "external_process",
    "SubprocessLauncher",
    "ClientAPILauncherExecutor",
    "LauncherExecutor",
    "IPCExchanger",
)
LARGEST = 200_000_000  # bytes of a model file that is read


def is_flare_job(folder: Path) -> bool:
    """Whether a folder holds a FLARE job."""
    return any((folder / name).is_file() for name in META)


@dataclass(frozen=True, kw_only=True)
class FlareTable:
    """Table `[verify.flare]`: how the job is run, and how its data are replaced.

    Attributes
    ----------
    data : str
        Function that loads a site's data, as ``module:function``; the job imports the module.
    sites : int or list of str
        Number of sites, or their names if the job is deployed to named sites.
    neighbours : str
        Function ``(data, unit, relation)`` that returns a site's data in both worlds, as ``module:function``.
    rows : int
        Number of records per person.
    """

    data: str = ""
    sites: int | Sequence[str] = SITES
    neighbours: str = ""
    rows: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.sites, int):
            require_count("[verify.flare] sites", self.sites, least=LEAST_SITES, most=64)
        elif not isinstance(self.sites, list) or len(self.sites) < LEAST_SITES:
            accepted = f"must be a number, or at least {LEAST_SITES} names"
            raise FieldError("[verify.flare] sites", self.sites, accepted)
        require_count("[verify.flare] rows", self.rows)
        for name in ("data", "neighbours"):
            value = getattr(self, name)
            if not isinstance(value, str) or (value and ":" not in value):
                accepted = "must be module:function, as in task:load_data"
                raise FieldError(f"[verify.flare] {name}", value, accepted)
        if not self.data:
            accepted = "must name the function that loads a site's data, as in task:load_data"
            raise FieldError("[verify.flare] data", self.data, accepted)

    @classmethod
    def of(cls, values: Mapping[str, Any], folder: Path) -> "FlareTable":
        """Read the table from its TOML values; sites that the job names come from the job."""
        known = list(cls.__dataclass_fields__)
        for name in values:
            if name not in known:
                raise FieldError(f"[verify.flare] {name}", values[name], nearest(name, known))
        named = sites_of(folder)
        return cls(**{**({"sites": named} if named else {}), **values})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites."""
        if isinstance(self.sites, int):
            return tuple(f"site-{number}" for number in range(1, self.sites + 1))
        return tuple(self.sites)


def sites_of(folder: Path) -> list[str]:
    """List the sites that a job names; empty if the job is deployed to all sites."""
    file = folder / META[0]
    if not file.is_file():
        return []
    try:
        deployed = dict(json.loads(file.read_text(encoding="utf-8")).get("deploy_map", {}))
        names = [str(site) for sites in deployed.values() for site in sites]
    except (ValueError, TypeError, AttributeError) as error:
        raise damaged("SUBJECT", file, error, "a FLARE job says there where its apps go") from error
    return sorted({name for name in names if name not in ("server", "@ALL")})


class Simulations:
    """Make runs of one job, each in a copy of a process that has imported FLARE.

    Parameters
    ----------
    job : path
        Folder of the job.
    table : FlareTable
        Settings of the runs.
    claim : PrivacyClaim
        The claim, which gives unit and relation.
    timeout : float
        Seconds that one run may take.
    """

    def __init__(self, job: Path, table: FlareTable, claim: PrivacyClaim, timeout: float) -> None:
        self.job, self.table, self.claim, self.timeout = job.resolve(), table, claim, timeout
        self.said = ""
        self._root = Path(tempfile.mkdtemp(prefix="fedveil-flare-"))
        self._number = 0
        environment = {**os.environ, **ONE_THREAD, "MPLBACKEND": "Agg"}
        source = str(Path(__file__).parents[2])  # where it runs from a checkout
        paths = [source, *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(one for one in paths if one)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedveil_lab.verify.flare_side"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=self._root,
        )

    def __enter__(self) -> "Simulations":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def run(self, worlds: Worlds, shared: bool) -> Transcript:
        """Run the job once in the given worlds, and return what left each site.

        Raises
        ------
        NoVerdict
            If the job fails or hangs, or no site answers anything.
        """
        self._number += 1
        folder = self._root / f"run-{self._number}"
        base = str(self._root / "shared.pkl") if shared else ""
        settings = run_settings(
            self.claim, worlds, base, self.table.data, self.table.neighbours, self.table.rows
        )
        places = {"job": str(self.job), "folder": str(folder), "workspace": str(folder / "ws")}
        request = {**settings, **places, "sites": list(self.table.names), "timeout": self.timeout}
        found = self._ask(request)
        said = str(found["said"])
        if found["status"] is None:
            raise NoVerdict(f"the job hangs: no end within {self.timeout:g} s")
        transcript = transcript_of(folder, self.table.names, said)
        self._require_whole(transcript, said, found["status"])
        require_loaded(folder, self.table)
        self.said = said
        shutil.rmtree(folder, ignore_errors=True)
        return transcript

    def _require_whole(self, transcript: Transcript, said: str, status: int) -> None:
        """Refuse a run in which a site failed."""
        if CLOSED in said:
            raise NoVerdict(f"the job {asks_for_network()}")
        answered = sum(any(map(_result, turns)) for turns in transcript.sites.values())
        if status > 0 or not answered:
            why = failure_in(said) or f"ends with status {status}"
            raise NoVerdict(f"the job fails: {cleaned(why, 300)}")
        if answered < len(self.table.names):
            few = f"{answered} of {len(self.table.names)} sites answered"
            raise NoVerdict(f"{few}: let [verify.flare] sites be the number that the job asks for")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        found = zygote.ask(self._process, request)
        if found is None:
            raise NoVerdict("the process that the simulator is copied from ended")
        return found


def require_loaded(folder: Path, table: FlareTable) -> None:
    """Refuse a run in which a site's data were not replaced, since no canary was in it.

    Raises
    ------
    NoVerdict
        If a site did not call the function that `[verify.flare]` names.
    """
    for site in table.names:
        if not (folder / site / LOADED).is_file():
            raise NoVerdict(
                f"{site} never called {table.data}, which [verify.flare] data says loads its data"
            )


def require_in_process(folder: Path) -> None:
    """Refuse a job whose sites train in processes of their own, before anything runs.

    Raises
    ------
    FieldError
        If a configuration of the job starts external processes: what these read and send is not watched.
    """
    for file in sorted(folder.rglob("config_fed_client*")):
        text = file.read_text(encoding="utf-8", errors="replace")
        found = next((word for word in EXTERNAL if word in text), None)
        if found is not None:
            accepted = (
                f"its {file.name} has {found!r}: training in a process of its own is not watched, "
                "so nothing would be found; export the job with launch_external_process=False"
            )
            raise FieldError("SUBJECT", folder.resolve().name, accepted)


def _result(turn: SiteTurn) -> bool:
    return any(f"{RESULT}/" in name for name in turn.left)


def failure_in(said: str) -> str:
    """Find the first error in a log, as later ones follow from it; else the first line that is marked as an error."""
    errors = [line for line in said.splitlines() if line[:1].isalpha() and "Error: " in line]
    marked = [line for line in said.splitlines() if " - ERROR - " in line]
    return (errors or marked or [""])[0]


def transcript_of(folder: Path, sites: Sequence[str], said: str) -> Transcript:
    """Read from the probe's files what each site sent and received. A turn begins when a model arrives."""
    found = {}
    for site in sites:
        turns: list[SiteTurn] = []
        sent: dict[str, Floats] = {}
        left: dict[str, Floats] = {}
        for file in sorted((folder / site).glob("*.pkl")):
            message = pickle.loads(file.read_bytes())
            values = message["values"]
            if message["kind"] == "in":
                if any(name.startswith(f"{RESULT}/data") for name in values):
                    turns.append(SiteTurn(sent, left))
                    sent, left = values, {}
            else:
                for name, value in values.items():
                    left[_free(name, left)] = value
        found[site] = [*turns[1:], SiteTurn(sent, left)] if turns else [SiteTurn(sent, left)]
    return Transcript(found, final_model(folder / "ws" / "server"), said)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Choose a name that is not yet taken in a turn: the second message with a name becomes ``name (2)``."""
    number, found = 1, name
    while found in taken:
        number += 1
        head, slash, last = name.rpartition("/")
        found = f"{head} ({number}){slash}{last}"
    return found


def final_model(folder: Path) -> dict[str, Floats]:
    """Read the arrays of the last model that the server wrote; empty if it wrote none."""
    files = [file for file in folder.rglob("*") if file.suffix in MODELS and file.is_file()]
    for file in sorted(files, key=lambda one: one.stat().st_mtime, reverse=True):
        if file.stat().st_size > LARGEST:
            continue
        try:
            return {name: np.asarray(value) for name, value in _arrays_in(file).items()}
        except Exception:  # a file of the job that is no model
            continue
    return {}


def _arrays_in(file: Path) -> dict[str, Any]:
    """Read the arrays of one file, by name."""
    if file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return dict(load_file(file))
    if file.suffix in (".npy", ".npz"):
        loaded = np.load(file, allow_pickle=False)
        return {"0": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    import torch

    values = torch.load(file, weights_only=True, map_location="cpu")
    inner = values.get("model", values)
    return {name: value.double().numpy() for name, value in inner.items()}


def verify_flare(
    folder: Path,
    claim: str | None,
    section: VerifySection,
    *,
    effort: Effort,
    canaries: int,
    steps: MechanismSteps | None = None,
    say: Say = silent,
) -> Judged:
    """Run an unchanged FLARE job in FLARE's simulator with canaries, and judge its claim by what the adversary sees.

    Parameters
    ----------
    folder : path
        Folder of the job, with its meta.json.
    claim : str, optional
        The claim, such as ``"eps=1 delta=1e-5 zero-out client total local"``. Default: the claim in `section`.
    section : VerifySection
        Section `[verify]` with its tables.
    effort : Effort
        Seed, error, and time limit of a run.
    canaries : int
        Smallest number of canaries to judge.
    steps : MechanismSteps, optional
        Steps of the job, from which epsilon is also computed.
    say : callable
        Receives progress messages, the budget first.

    Raises
    ------
    NoVerdict
        If the job fails, hangs or asks for the network.
    FieldError
        For a claim or a table that cannot be read, or a job that trains in external processes.
    """
    optional("nvflare.apis", "a FLARE job needs NVIDIA FLARE", '"fedveil[nvflare]"')
    own = PrivacyClaim.given(claim)
    own.require_total("a job")
    table = FlareTable.of(section.flare, folder)
    require_in_process(folder)
    if not table.neighbours:
        require_shown(own, "[verify.flare]", table.rows)
    design = Design.of(table.names, own, bool(table.neighbours))
    with Simulations(folder, table, own, effort.timeout) as simulations:
        judged = judge_by_canaries(
            lambda worlds, _seed: simulations.run(worlds, design.shared),
            design,
            canaries or CANARIES,
            effort,
            say,
        )
        printed = ", ".join(epsilons_in(simulations.said))
    note = "the job ran unchanged in FLARE's simulator, its network closed but to itself"
    return with_steps(
        judged,
        steps,
        subject=folder.resolve().name,
        printed=printed,
        notes=(*judged.notes, note),
    )
