"""Check of a FLARE site's startup kit: what restricts a job there, and what does not.

Three files of the kit's folder ``local`` decide: ``privacy.json``, ``resources.json`` and ``authorization.json``. If
one is missing, FLARE reads its ``.default``. Nothing is written, and no job is started.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.engines.lifetime import read_head, read_ledger
from fedveil.engines.nvflare.kit import (
    ASKS,
    GUARD,
    SENDS,
    SITE_GUARD,
    SiteScope,
    components_of,
    is_ours,
    protection_of,
    scopes_of,
)
from fedveil.errors import FedVeilError, FieldError
from fedveil.node.bindings import Binding
from fedveil.reading import json_of

EXECUTOR = "fedveil.engines.nvflare.executor.FedVeilExecutor"
AUTHORIZER = "nvflare.app_common.widgets.component_path_authorizer"  # since FLARE 2.8
COMMANDS = "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"  # takes a command from the job
BYOC, SHELL, NONE = "byoc", "shell_commands", "none"
READING = ("cat", "head", "tail", "grep", "ls")  # FLARE's names of single shell commands


def is_kit(folder: str | Path) -> bool:
    """Whether a folder is the startup kit of a FLARE site."""
    site = Path(folder)
    return (site / "startup").is_dir() and (site / "local").is_dir()


def check_kit(folder: str | Path) -> list[Binding]:
    """Check a FLARE site's protection, and what a job could do besides; return a result for each check."""
    local = Path(folder).resolve() / "local"
    findings: list[Binding] = []
    for name, look in (
        ("privacy.json", _of_privacy),
        ("resources.json", _of_resources),
        ("authorization.json", _of_rights),
    ):
        try:
            findings += look(_read(local, name))
        except FedVeilError as error:
            findings.append(Binding(name, "no", str(error)))
        except ImportError as error:
            findings.append(
                Binding(name, "no", f"NVIDIA FLARE is not installed for this Python: {error}")
            )
    findings.append(
        Binding(
            "server", "not seen", "whoever may submit a job runs code at the server", needed=False
        )
    )
    return findings


def _read(local: Path, name: str) -> dict[str, Any]:
    """Read a file of the kit, or FLARE's default if it is missing."""
    for file in (local / name, local / f"{name}.default"):
        if file.exists():
            try:
                values = json_of(file.read_bytes())
            except ValueError as error:
                raise FieldError(name, str(file), f"is no JSON: {error}") from error
            if not isinstance(values, dict):
                raise FieldError(name, str(file), "must be a table")
            return values
    raise FieldError(name, str(local / name), "is missing: docs/nvflare.md shows it")


def _of_privacy(values: Mapping[str, Any]) -> Iterator[Binding]:
    scopes, default = scopes_of(values), values.get("default_scope")
    yield from _of_scopes(scopes, default)
    guarded = any(is_ours(part, GUARD) for part in components_of(values))
    why = "stops a job with a part that is on no list before it starts"
    missing = "is no component: such a job trains nothing, but its parts run"
    yield Binding(
        "privacy.json components: JobGuard", "yes" if guarded else "no", why if guarded else missing
    )
    try:
        arguments = protection_of(values)
    except FedVeilError as error:
        yield Binding("privacy.json PrivacyFilter", "no", str(error))
        return
    yield from _of_filter(arguments)
    for part in components_of(values):
        told = part.get("args") or {}
        if is_ours(part, GUARD) and bool(told.get("swarm")) != bool(arguments.get("swarm")):
            why = "differs from PrivacyFilter's: with one of them alone every job of a swarm is stopped"
            yield Binding("privacy.json JobGuard swarm", "no", why)


def _of_scopes(scopes: list[SiteScope], default: Any) -> Iterator[Binding]:
    names = [scope.name for scope in scopes]
    if default in names:
        yield Binding(
            "privacy.json default_scope", "yes", f"{default}: holds for jobs that name none"
        )
    else:
        why = f"{default!r} is none of {names}: a job that names no scope is not protected"
        yield Binding("privacy.json default_scope", "no", why)
    for scope in scopes:
        what = f"privacy.json scope {scope.name}"
        if scope.protects:
            yield Binding(what, "yes", f"begins with {ASKS} and ends with {SENDS}")
        else:
            why = f"does not begin with {ASKS} and end with {SENDS}, and a job may choose it: take it out"
            yield Binding(what, "no", why)


def _of_filter(arguments: Mapping[str, Any]) -> Iterator[Binding]:
    """Yield results on the filter's arguments (checked by the filter's own code) and on its ledger."""
    from fedveil.engines.nvflare.filters import PrivacyFilter  # needs FLARE, as the site does

    what = "privacy.json PrivacyFilter"
    try:
        made = PrivacyFilter(**arguments)
    except (FedVeilError, TypeError) as error:
        yield Binding(what, "no", str(error))
        return
    method = made._method
    unit = "as its method says" if method.may_promise else "no promise"
    yield Binding(what, "yes", f"{method.name}, {method.client.trust} trust, {unit}")
    if made.seed is not None:
        yield Binding(f"{what} seed", "no", "whoever knows it knows the noise: leave it out")
    rounds = (
        f"{made.rounds} and no other number"
        if made.rounds
        else "whatever the server plans: name rounds"
    )
    yield Binding(f"{what} rounds", "yes" if made.rounds else "no", rounds, needed=False)
    named = made.policy is not None
    yield Binding(
        f"{what} policy",
        "yes" if named else "no",
        made.policy or "no file: the ledger alone counts",
        False,
    )
    if made.allow:
        why = f"the site answers for {', '.join(made.allow)}"
        yield Binding(f"{what} allow", "not seen", why, needed=False)
    yield from _of_training(made.training or {})
    yield from _of_ledger(made.ledger, made.head, made.dataset)


def _of_training(training: Mapping[str, Any]) -> Iterator[Binding]:
    """Yield whether the modules that the site names for its own training can be found; none of them runs."""
    from fedveil.engines.nvflare.presence import require_present

    for field in ("data", "trainer"):
        name = training.get(field)
        if not name:
            continue
        what = f"privacy.json PrivacyFilter training.{field}"
        try:
            require_present(field, name)
        except FedVeilError as error:
            why = f"{error}; the site would decline each task"
            yield Binding(what, "no", why, needed=False)
        else:
            yield Binding(what, "yes", f"{name} is found from this folder", needed=False)


def _of_ledger(ledger: str | None, head: str | None, dataset: str | None) -> Iterator[Binding]:
    what = "privacy.json PrivacyFilter ledger"
    if ledger is None or head is None:
        yield Binding(what, "not seen", "none is named: central trust needs none", needed=False)
        return
    found = (
        sorted(Path(ledger).glob("*.jsonl"))
        if dataset is None
        else [Path(ledger) / f"{dataset}.jsonl"]
    )
    if not found:
        yield Binding(what, "no", f"{ledger} holds none: fedveil ledger begin")
    for path in found:
        try:
            _, lines, _ = read_ledger(path)
            read_head(path, head)
            yield Binding(what, "yes", f"{path}: {len(lines)} lines, and its head agrees")
        except (FedVeilError, OSError) as error:
            yield Binding(what, "no", str(error))


def _of_resources(values: Mapping[str, Any]) -> Iterator[Binding]:
    from fedveil.engines.nvflare.quiet import SITE, STREAMER, SWITCH

    off = values.get(SWITCH) is False
    why = (
        "no log leaves"
        if off
        else f"{values.get(SWITCH)!r}: logs of jobs go to the server, and tracebacks quote data"
    )
    yield Binding(f"resources.json {SWITCH}", "yes" if off else "no", why)
    guarded = any(is_ours(part, SITE_GUARD) for part in components_of(values))
    why = "the server gives only the commands by which jobs come and go"
    missing = "is no component: code in the server's processes reads any file that this account reads, and can empty this folder"
    yield Binding(
        "resources.json components: SiteGuard",
        "yes" if guarded else "no",
        why if guarded else missing,
    )
    for part in components_of(values):
        path = str(part.get("path", part.get("name")))
        known = path in SITE or (path == STREAMER and off)
        if not known:
            yield Binding(
                f"resources.json components {path}", "no", "is on no list: it may send logs or data"
            )
    yield from _of_classes(
        values.get("class_allow_list"), values.get("class_list_enforcement_mode", "enforce")
    )


def _of_classes(listed: Any, mode: Any) -> Iterator[Binding]:
    what = "resources.json class_allow_list"
    if find_spec(AUTHORIZER) is None:
        why = "this FLARE reads no list: a job without code may build any installed class; use 2.8 or 2.9"
        yield Binding(what, "no", why)
        return
    if mode != "enforce":
        yield Binding(
            "resources.json class_list_enforcement_mode",
            "no",
            f"{mode!r}: unlisted classes are built",
        )
    if not isinstance(listed, list):
        yield Binding(
            what,
            "not seen",
            "none: FLARE's own list holds, without FedVeil's classes",
            needed=False,
        )
        return
    if "*" in listed:
        yield Binding(what, "no", "'*': a job may build any class")
        return
    if _listed(COMMANDS, listed):
        yield Binding(
            what, "no", f"{COMMANDS} takes a command from the job: take it out", needed=False
        )
    ours = _listed(EXECUTOR, listed)
    why = (
        "a job without code may name it"
        if ours
        else f"{EXECUTOR} is not on it: no job without code trains by it"
    )
    yield Binding(f"{what} FedVeilExecutor", "yes" if ours else "no", why, needed=False)


def _listed(path: str, listed: list[Any]) -> bool:
    for entry in listed:
        prefix = str(entry).rstrip(".")
        if path == prefix or path.startswith(f"{prefix}."):
            return True
    return False


def _of_rights(values: Mapping[str, Any]) -> Iterator[Binding]:
    """Yield results on who may bring code to the site, or read its files; no filter can restrict either."""
    roles = values.get("permissions")
    if not isinstance(roles, Mapping):
        raise FieldError("authorization.json permissions", roles, "must be a table of roles")
    for role, rights in roles.items():
        what = f"authorization.json {role} {BYOC}"
        given = _given(rights, BYOC)
        if given == NONE:
            yield Binding(what, "yes", "brings no code")
        else:
            yield Binding(what, "no", f"{given!r}: its jobs' code runs here, past any filter")
        what = f"authorization.json {role} {SHELL}"
        reading = [_given(rights, name) for name in (SHELL, *READING)]
        reading = [given for given in reading if given != NONE]
        if not reading:
            yield Binding(what, "yes", "reads no file")
        else:
            why = f"{reading[0]!r}: reads any file here by FLARE's cat, where SiteGuard is missing"
            yield Binding(what, "no", why, needed=False)


def _given(rights: Any, name: str) -> Any:
    """Return to whom a role's rights give one of them."""
    if not isinstance(rights, Mapping):
        return rights
    return rights.get(name, rights.get("*", NONE))
