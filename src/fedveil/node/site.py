"""Folder of a node: its policy, its ledger, and commands that Flower starts in place of its own."""

import json
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.accounting import Policy
from fedveil.engines.lifetime import begin_ledger, read_head
from fedveil.errors import FedVeilError, FieldError
from fedveil.files import private_folder, wait_for, write_atomic
from fedveil.node.bindings import Binding
from fedveil.node.guard import NodePolicy, private_folders, require_private
from fedveil.node.isolation import require_hidden, require_isolation
from fedveil.node.launch import CLIENT, OTHERS
from fedveil.reading import toml_of

POLICY, BIN = "policy.toml", "bin"
QUIET = ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION")


def begin_site(folder: str | Path, head: str | Path, dataset: str, by: str) -> Path:
    """Set up a node: make its folder, begin its ledger, write its commands; return the policy's path.

    Parameters
    ----------
    folder : str or Path
        New folder, or one without a policy.
    head, dataset, by
        As in `begin_ledger`.

    Raises
    ------
    FieldError
        If there is already a policy or a ledger.
    """
    site = Path(folder).resolve()
    policy = site / POLICY
    if policy.exists():
        raise FieldError("folder", str(site), f"holds a {POLICY}: what was decided there stays")
    private_folder(site)
    begin_ledger(site / "ledgers", dataset, by, head=Path(head).resolve())
    places = {
        "head": _quoted(Path(head).resolve()),
        "dataset": _quoted(dataset),
        "key": _quoted(site / "study.key"),
    }
    text = (files("fedveil.node") / POLICY).read_text(encoding="utf-8")
    write_atomic(policy, text.format(**places).encode())
    write_commands(site)
    return policy


def write_commands(site: Path) -> None:
    """Write the commands that Flower starts by name; repeat this after FedVeil or Python was moved."""
    private_folder(site / BIN)
    for name in (CLIENT, *OTHERS):
        words = (sys.executable, "-P", "-m", "fedveil.node.launch", str(site / POLICY), name)
        write_atomic(
            site / BIN / name, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'.encode(), mode=0o700
        )


def environment(site: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Flower's processes, in which the node's commands come before Flower's."""
    path = os.pathsep.join(
        [str(site / BIN), str(Path(sys.executable).parent), given.get("PATH", os.defpath)]
    )
    return {**given, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", **dict.fromkeys(QUIET, "1")}


def start(folder: str | Path, command: Sequence[str]) -> None:
    """Replace this process by Flower's command (flower-supernode, or flower-superexec under isolation "process").

    Raises
    ------
    FedVeilError
        If the policy is unusable, the command is not installed, or it already runs for this node.
    """
    site = Path(folder).resolve()
    NodePolicy.read(site / POLICY)
    write_commands(site)
    own = environment(site, os.environ)
    program = shutil.which(command[0], path=own["PATH"])
    if program is None:
        raise FieldError(
            "command",
            command[0],
            "is not installed beside this Python: flower-supernode comes with flwr",
        )
    handle = os.open(site / f"{Path(program).name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not wait_for(handle, time.monotonic()):
        raise FedVeilError(f"{Path(program).name} runs for this node already: a site starts once")
    os.set_inheritable(handle, True)  # the lock is the process's, and ends with it
    os.execve(program, [program, *command[1:]], own)


def check_site(folder: str | Path) -> list[Binding]:
    """Check everything visible on which the policy's enforcement depends, without writing; return a result for each check."""
    site = Path(folder).resolve()
    try:
        node = NodePolicy.read(site / POLICY)
    except FedVeilError as error:
        return [Binding("policy", "no", str(error))]
    late = node.clock()
    return [
        Binding("policy", "yes", str(node.path)),
        *_of_files(node),
        Binding("clock", "no" if late else "yes", late or "no file of the node is newer than now"),
        *_of_commands(site),
        *_of_costs(node.costs),
        *_of_code(node),
    ]


def rehearsed(folder: str | Path, node_config: str, train_config: str) -> Binding:
    """Rehearse the operator's own client on the site's data (`rehearse`), and return the result as a check.

    Parameters
    ----------
    folder : str or Path
        Folder of the node.
    node_config, train_config : str
        Text such as ``"partition-id=0 data='/srv/ward.csv'"``: configuration of the node, and of a server's messages.
    """
    from fedveil.node.rehearsal import rehearse

    try:
        given = (_pairs("--node-config", node_config), _pairs("--train-config", train_config))
        return Binding("rehearsal", "yes", rehearse(Path(folder).resolve() / POLICY, *given))
    except FedVeilError as error:
        return Binding("rehearsal", "no", str(error))


def _pairs(option: str, text: str) -> dict[str, Any]:
    """Parse ``key=value`` pairs with values in TOML's form."""
    values: dict[str, Any] = {}
    for pair in shlex.split(text, posix=False):
        name, _, value = pair.partition("=")
        try:
            values[name] = toml_of(f"value = {value}")["value"]
        except ValueError as error:
            accepted = (
                "must be key=value pairs, texts in quotes: partition-id=0 data='/srv/ward.csv'"
            )
            raise FieldError(option, pair, accepted) from error
    return values


def _of_files(node: NodePolicy) -> Iterator[Binding]:
    rules, closed = node.admission, stat.S_IRWXG | stat.S_IRWXO
    if rules.ledger is None or rules.head is None or rules.dataset is None:
        yield Binding(
            "ledger", "not seen", "policy.node names none: the SuperNode has to", needed=False
        )
        return
    ledger = Path(rules.ledger) / f"{rules.dataset}.jsonl"
    try:
        for file in (
            ledger,
            Path(rules.head) / f"{rules.dataset}.head",
            Path(rules.head) / f"{rules.dataset}.key",
        ):
            require_private(file, closed, "file")
        head = read_head(ledger, rules.head)
        yield Binding("ledger", "yes", f"{ledger}: {head.count} lines, and its head agrees")
    except (FedVeilError, OSError) as error:
        yield Binding("ledger", "no", str(error))
        return
    if os.stat(rules.ledger).st_dev == os.stat(rules.head).st_dev:
        yield Binding("second place", "no", f"on the same disk: {rules.head}", needed=False)
    else:
        yield Binding("second place", "yes", str(rules.head), needed=False)


def _of_commands(site: Path) -> Iterator[Binding]:
    for name in (CLIENT, *OTHERS):
        if not os.access(site / BIN / name, os.X_OK):
            yield Binding(
                name, "no", f"{site / BIN / name} is missing: `fedveil node start` writes it"
            )
    how = (
        f"`fedveil node start {site} flower-supernode ...` puts {site / BIN} before everything else"
    )
    yield Binding("isolation subprocess", "yes", how)
    plain = shutil.which(CLIENT) or ""
    bound = Path(plain).parent == site / BIN
    shown = f"by this shell's PATH it would run {plain or 'nothing'}"
    yield Binding("a SuperNode started without it", "yes" if bound else "no", shown, needed=False)
    how = "start flower-superexec, too, by `fedveil node start`: it is what runs commands"
    yield Binding("isolation process", "not seen", how, needed=False)
    stock = Path(sys.executable).parent / CLIENT
    why = (
        f"{stock} is Flower's own, and asks no policy"
        if stock.exists()
        else "none beside this Python"
    )
    yield Binding(
        "Flower's command by its absolute path",
        "no" if stock.exists() else "yes",
        why,
        needed=False,
    )
    why = f"pods run commands by name from their image: there, too, {site / BIN} has to come first in PATH"
    yield Binding("Kubernetes", "not seen", why, needed=False)
    why = "agents, connectors and models start as Python modules, not by name: leave warm pools out"
    yield Binding("warm executors", "no", why, needed=False)


def _of_costs(costs: Policy) -> Iterator[Binding]:
    named = [
        field.name for field in fields(costs.total) if getattr(costs.total, field.name) is not None
    ]
    if not costs.trust or costs.methods == ():
        yield Binding("trust", "no", "trust, or methods, is an empty list: nothing leaves")
    if named or "central" not in costs.trust:  # no total counts what a trusted server protects
        shown = f"[total] counts {', '.join(named) or 'no kind of cost: nothing leaves'}"
        yield Binding("total", "yes" if named else "no", shown)
    if "secure sum" in costs.trust and costs.sum is None:
        yield Binding(
            "secure sum", "no", "there is no table [sum]: it pins the keys of the other sites"
        )
    elif "secure sum" in costs.trust:
        yield Binding(
            "secure sum",
            "not seen",
            "the SuperNode's privacy.key names this site's key",
            needed=False,
        )


def _of_code(node: NodePolicy) -> Iterator[Binding]:
    rules, costs = node.admission, node.costs
    inside = set(costs.trust) <= {"trusted sum", "secure sum"} or set(costs.methods or ("",)) <= {
        "record"
    }
    empty = [
        name
        for name in ("projects", "federations", "accounts", "runs")
        if getattr(rules, name) == ()
    ]
    package = None if rules.client is None else rules.client.partition(":")[0].partition(".")[0]
    if empty:
        yield Binding(
            "runs",
            "no",
            f"{', '.join(empty)}: an empty list allows no run; leave it out to ask nothing",
        )
    if (
        not rules.apps
        and not rules.signers
        and (rules.client is None or (rules.apps, rules.signers) != (None, None))
    ):
        yield Binding(
            "code", "no", "no app is listed, and no key that may approve one: nothing runs"
        )
    elif inside and package is None:
        yield Binding(
            "code",
            "no",
            "record level's noise is drawn by the training code: it must be your own (client)",
        )
    elif package is not None and not _installed(package):
        yield Binding(
            "code",
            "no",
            f"{package!r} is not installed for {sys.executable}: {rules.client} cannot run",
        )
    elif package is not None:
        yield Binding("code", "yes", f"{rules.client} alone runs")
    elif rules.foreign == "open":
        why = "a bundle's code may do all that this user may: open a socket, edit ledger and policy"
        yield Binding("code", "no", why, needed=False)
    else:
        try:
            hidden = require_hidden(private_folders(node, {}))
            require_isolation(Path(os.devnull), hidden)
            kept = "no network, no disk, no process but its own, and sees no file in"
            yield Binding(
                "code", "yes", f"a bundle's code has {kept} {', '.join(map(str, hidden))}"
            )
        except FedVeilError as error:
            yield Binding("code", "no", str(error))
    open_lists = [
        name
        for name in ("projects", "federations", "accounts", "runs")
        if getattr(rules, name) is None
    ]
    if open_lists:
        yield Binding("runs", "no", f"not asked for: {', '.join(open_lists)}", needed=False)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # no name of one
        return False


def _quoted(text: object) -> str:
    return json.dumps(str(text))
