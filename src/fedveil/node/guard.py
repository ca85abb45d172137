"""Answers of a node to messages: the privacy mod's reply, or one of two constant texts."""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore.run import Run

from fedveil.accounting import Admission, Policy
from fedveil.engines.client import NO_PART
from fedveil.engines.decisions import decided, note_decision, why
from fedveil.engines.deployed import RUN
from fedveil.engines.flower.exchange import NOTHING
from fedveil.engines.flower.mod import (
    CLIENT_FAILED,
    PREFIX,
    method_from,
    privacy_keys,
    privacy_mod,
    protected_outside,
)
from fedveil.engines.flower.records import ARRAYS, BESIDE, FAILED, HELLO, REFUSED
from fedveil.engines.lifetime import read_policy
from fedveil.errors import FedVeilError, FieldError
from fedveil.files import append
from fedveil.layout import Layout
from fedveil.logs import logger
from fedveil.node.bundle import APPROVAL, Bundle, approved
from fedveil.node.worker import Worker, load_app

_LOG = logger("flwr")
WORDS = {
    REFUSED: "the node takes no part",
    FAILED: "the node failed",
}  # all that a server may read of a refusal or a failure
DECISIONS = "decisions.jsonl"
SLACK = 300.0  # seconds by which a file may appear newer than now


@dataclass(frozen=True)
class NodePolicy:
    """Policy of a node, read from its file.

    Attributes
    ----------
    path : Path
        Path of the file.
    costs : Policy
        Policy of releases, for the privacy mod.
    admission : Admission
        Code that may run (the table `[node]`), with absolute folders.
    """

    path: Path
    costs: Policy
    admission: Admission

    @classmethod
    def read(cls, path: str | Path) -> "NodePolicy":
        """Read a node's policy file.

        Raises
        ------
        FieldError
            If the file cannot be read, others can write it, or it has no table `[node]`.
        """
        file, writable = Path(path).resolve(), stat.S_IWGRP | stat.S_IWOTH
        require_private(file, writable, "policy")
        require_private(
            file.parent, writable, "policy's folder"
        )  # anybody who can write there can replace the file
        policy = read_policy(file)
        if policy is None or policy.node is None:
            raise FieldError(
                "policy",
                file.name,
                "has no table [node]; nothing runs: `fedveil node init` writes one",
            )
        rules = policy.node
        if rules.ledger is not None:
            rules = replace(rules, ledger=str(file.parent / rules.ledger))
        if rules.head is not None:
            rules = replace(rules, head=str(file.parent / rules.head))
        return cls(file, replace(policy, node=None), rules)

    def clock(self) -> str:
        """Return the reason why the clock must be wrong (a file of the node was written after now); "" if none is seen."""
        files = [self.path]
        for folder in self.folders():
            if folder.is_dir():
                files += folder.iterdir()
        written, latest = max((file.stat().st_mtime, file.name) for file in files)
        ahead = written - datetime.now(UTC).timestamp()
        if ahead <= SLACK:
            return ""
        return f"the clock is {ahead:.0f} s behind {latest}: set it"

    def folders(self) -> list[Path]:
        """Return the folders of the ledger and of its head, if the policy names them."""
        return [
            Path(place)
            for place in (self.admission.ledger, self.admission.head)
            if place is not None
        ]


def require_private(path: Path, closed: int, what: str) -> None:
    """Refuse a file that is missing, belongs to another user, or has a permission in the mask `closed`.

    Raises
    ------
    FieldError
        If it does; the text names the file by `what`.
    """
    try:
        about = path.stat()
    except OSError as error:
        raise FieldError(what, path.name, f"cannot be read: {error.strerror}") from error
    if os.name == "posix" and about.st_uid not in (os.geteuid(), 0):
        raise FieldError(what, path.name, "belongs to another user")
    if os.name == "posix" and about.st_mode & closed:
        mode = 700 if path.is_dir() else 600
        raise FieldError(what, path.name, f"is open to others: chmod {mode} {path}")


def answer(
    path: str | Path, message: Message, context: Context, run: Run, content: bytes
) -> Message:
    """Answer a message of a run with this app bundle; errors become a reply with a constant text.

    Parameters
    ----------
    path : str or Path
        The node's policy file.
    message, context, run
        Values from the SuperNode. `context.state` is updated.
    content : bytes
        Bytes of the bundle. They are hashed here; the hash from the SuperLink is ignored.

    Returns
    -------
    Message
        Reply of the privacy mod, or an error with one of `WORDS`. The reason is only in the node's log and in the file
        `DECISIONS` next to the policy. That file has a line of JSON for each message, with the rule that refused it. If
        the line cannot be written, nothing is sent.
    """
    bundle, code = Bundle(content), FAILED
    reason: str | None = ""
    with decided() as decision:
        try:
            reply = _answer(NodePolicy.read(path), message, context, run, bundle)
            if not reply.has_error():
                decision.setdefault("verdict", "answered")
                _record(Path(path), message, run, bundle.sha256, decision)
                return reply
            code, reason = reply.error.code, reply.error.reason
        except FedVeilError as error:
            reason = str(error)
        except Exception as error:
            _LOG.error(f"{NOTHING}: it failed", exc_info=error)
    if reason not in ("", CLIENT_FAILED, NO_PART):  # the mod has logged the reason of these two
        _LOG.error(f"{NOTHING}: %s", reason)
    code = REFUSED if code == REFUSED else FAILED
    said = {"verdict": "failed" if code == FAILED else "refused", "rule": "", "why": reason}
    with suppress(OSError):  # nothing leaves anyway
        _record(
            Path(path), message, run, bundle.sha256, {**decision, **said, **_refused_by(decision)}
        )
    return Message(Error(code, WORDS[code]), reply_to=message)


def _refused_by(decision: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a decision if it is a refusal or failure; else an empty one, as the failure came later."""
    return decision if decision.get("verdict") in ("refused", "failed") else {}


def _record(
    policy: Path, message: Message, run: Run, app: str, decision: Mapping[str, Any]
) -> None:
    """Append a decision to the file `DECISIONS` next to the policy, for the node's operator."""
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": str(run.run_id),
        "app": app,
    }
    line = {**about, "message": message.metadata.message_type, **decision}
    append(policy.resolve().parent / DECISIONS, json.dumps(line) + "\n")


def _answer(
    node: NodePolicy, message: Message, context: Context, run: Run, bundle: Bundle
) -> Message:
    rules = node.admission
    kind = message.metadata.message_type.partition(".")[0]
    refused: str | None = node.clock()
    if kind not in ("train", "evaluate"):
        refused = f"messages of type {kind!r} are not answered"
    refused = refused or rules.refusal(
        approved(
            rules.signers or (), bundle.sha256, context.run_config.get(APPROVAL), datetime.now(UTC)
        ),
        app=bundle.sha256,
        project=bundle.project,
        federation=run.federation_id,
        account=run.account_name,
        run=str(run.run_id),
    )
    if refused:
        note_decision(verdict="refused", **why(refused))
        return Message(Error(REFUSED, refused), reply_to=message)
    config, dataset = dict(context.node_config), f"{PREFIX}dataset"
    if rules.dataset is not None:
        if dataset in config:
            raise FieldError(
                dataset, rules.dataset, "is in the policy and the configuration: give it once"
            )
        config[dataset] = rules.dataset
    seen = Context(
        context.run_id,
        context.node_id,
        config,
        context.state,
        context.run_config,
        context.series_id,
    )
    if rules.client is not None:
        call, given = own_client(rules.client)
    else:
        call, given = _foreign(bundle, node, seen)
    given.setdefault("layout", _layout_of(message.content))
    for name, place in (("ledger", rules.ledger), ("head", rules.head)):
        if place is not None:
            given[name] = place
    if given.get("ledger") == RUN:
        raise FieldError(
            "ledger", RUN, "is for simulations: name the lifetime ledger in policy.node.ledger"
        )
    return privacy_mod(**{**given, "policy": node.costs})(message, seen, call)


def own_client(reference: str) -> tuple[ClientAppCallable, dict[str, Any]]:
    """Load the operator's own client app; return it with the options that its code passes to the privacy mod."""
    with protected_outside() as calls:
        app = load_app(reference)
    if any(call != calls[0] for call in calls):
        accepted = "builds mods that differ, in layout, method, trainer or site: one is for all handlers of the app"
        raise FieldError("client", reference, accepted)
    return app, dict(calls[0]) if calls else {}


def _foreign(
    bundle: Bundle, node: NodePolicy, context: Context
) -> tuple[ClientAppCallable, dict[str, Any]]:
    """Prepare a bundle's client, which will run in its own process; return it with the mod's options."""
    if not any("method" in keys for keys in privacy_keys(context)):
        accepted = "is in neither the node's configuration nor the run's, and what a bundle's code says (as "
        accepted += "privacy_mod(layout, method)) is not asked: write it into the SuperNode's --node-config, or let "
        accepted += "the run's configuration propose it, which the policy judges"
        raise FieldError(f"{PREFIX}method", None, accepted)
    method = method_from(context)
    if method.noisy is not None:
        accepted = "its noise is drawn by the training code: that must be the operator's own (policy.node.client)"
        raise FieldError("privacy.method", method.name, accepted)
    isolated = node.admission.foreign == "isolated"
    hidden = private_folders(node, context.node_config)
    if isolated:
        _require_seen(context.node_config, hidden)
    return Worker(bundle, isolated, node.costs.deadline, hidden), {}


def private_folders(node: NodePolicy, config: Mapping[str, Any]) -> list[Path]:
    """List the folders of all ledgers, heads, keys and policies named in a node's policy and configuration."""
    folders = [node.path.parent, *node.folders()]
    for name in ("ledger", "head"):
        if f"{PREFIX}{name}" in config:
            folders.append(Path(str(config[f"{PREFIX}{name}"])))
    for name in ("key", "policy"):
        if f"{PREFIX}{name}" in config:
            folders.append(Path(str(config[f"{PREFIX}{name}"])).resolve().parent)
    return folders


def _require_seen(config: Mapping[str, Any], hidden: Sequence[Path]) -> None:
    """Refuse a configuration whose data are in a folder hidden from the bundle's code: it could only answer zeros."""
    for key, value in config.items():
        if key.startswith(PREFIX) or not isinstance(value, str) or os.sep not in value:
            continue
        for folder in hidden:
            if Path(value).resolve().is_relative_to(folder.resolve()):
                accepted = (
                    f"lies in {folder}, which a bundle's code sees empty: keep data elsewhere"
                )
                raise FieldError(key, value, accepted)


def _layout_of(content: RecordDict) -> Layout:
    """Return a layout that shares and protects every array of a request, independent of the app's claims."""
    arrays = content.get(ARRAYS)
    if HELLO in content or not isinstance(arrays, ArrayRecord):
        return Layout.from_shapes({"greeting": (1,)})
    import torch

    shapes = {name: array.shape for name, array in arrays.items()}
    kinds = {array.dtype for array in arrays.values()}
    layout = Layout.from_shapes(shapes, torch.float64 if "float64" in kinds else torch.float32)
    more = content.get(BESIDE)
    return replace(layout, kept=tuple(more)) if isinstance(more, ArrayRecord) else layout
