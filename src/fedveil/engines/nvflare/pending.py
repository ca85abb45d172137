"""A site's part in a FLARE job: its memory of the job, and an admitted task while the executor works on it."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.accounting import Ledger
from fedveil.engines.assembly import client_facts, client_releases
from fedveil.engines.client import ClientParty
from fedveil.engines.deployed import ClientMemory, answer
from fedveil.engines.nvflare.shareables import read_trained, write_reply
from fedveil.engines.warning import Warnings
from fedveil.errors import FedVeilError, FieldError
from fedveil.learning.learner import Learned
from fedveil.methods import Broadcast, ClientFacts, Releases


class RunMemory(ClientMemory):
    """Memory of one site for one job; FLARE keeps one process with its filters until the job ends.

    Parameters
    ----------
    marker : Path
        File in the job's folder. If it exists, another process had a ledger of the run, and that ledger is lost.

    Raises
    ------
    FieldError
        If the marker exists.
    """

    def __init__(self, marker: Path) -> None:
        if marker.exists():
            accepted = "the job's process was replaced, its ledger is lost: give PrivacyFilter a ledger folder, or the"
            raise FieldError("run", marker.name, f"{accepted} simulator a thread for each client")
        self._marker = marker
        self.lines = []
        self.warnings: Warnings | None = None  # warnings for this site only
        self._partition: int | None = None
        self._state: Any = None
        self._kept: tuple[int, Releases] = (0, ())

    def ledger(self, run: str, partition: int) -> Ledger:
        """Return the ledger of this run; a site keeps its partition."""
        if self._partition not in (None, partition):
            raise FieldError(
                "partition", partition, f"this site was partition {self._partition} before"
            )
        self._partition = partition
        return super().ledger(run, partition)

    def store(self, line: str) -> None:
        self._marker.touch()
        super().store(line)

    def load(self, fresh: Any) -> Any:
        return fresh if self._state is None else self._state

    def kept(self) -> tuple[int, Releases]:
        return self._kept

    def save(self, state: Any, kept: tuple[int, Releases] = (0, ())) -> None:
        self._state, self._kept = state, kept


def known_code(result: Shareable) -> str:
    """Return a result's code if it is one of FLARE's return codes, else the code of an exception."""
    code = str(result.get_return_code())
    return code if code in vars(ReturnCode).values() else str(ReturnCode.EXECUTION_EXCEPTION)


def marker_of(fl_ctx: FLContext, site: str) -> Path:
    """Return the path of a marker file in the job's folder: it exists if a site keeps its ledger only for this job."""
    folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"fedveil-{site}"


@dataclass(frozen=True)
class Beside:
    """What FLARE sends beside a task's result: cookies, and the public part of the context, as before training."""

    task: Shareable
    cookies: Mapping[str, Any]
    public: Mapping[str, Any]

    @classmethod
    def of(cls, task: Shareable, fl_ctx: FLContext) -> "Beside":
        """Copy both from a task that has just arrived."""
        cookies = dict(task.get_cookie_jar() or {})
        return cls(task, *deepcopy((cookies, fl_ctx.get_all_public_props())))

    def restore(self, fl_ctx: FLContext, data: Shareable | None = None) -> None:
        """Undo training code's changes to both.

        A filter behind the site's own may have replaced the task's `data`; their cookies are sent, too.
        """
        for sent in (self.task, data):
            if sent is not None:
                sent.set_cookie_jar(deepcopy(dict(self.cookies)))
        manager = fl_ctx.get_prop(ReservedKey.MANAGER)
        for name in fl_ctx.get_all_public_props():
            if name in self.public:
                sticky = bool((fl_ctx.get_prop_detail(name) or {}).get("sticky"))
                fl_ctx.set_prop(name, self.public[name], private=False, sticky=sticky)
            else:  # even its name may reveal something
                fl_ctx.remove_prop(name, force_removal=True)
                getattr(manager, "public_stickers", {}).pop(name, None)


@dataclass(frozen=True)
class Pending:
    """Admitted task while the executor works on it. `teach` is the site's own training function, if it has one."""

    party: ClientParty
    broadcast: Broadcast
    memory: RunMemory
    open: ExitStack
    beside: Beside
    admitted: (
        Releases | None
    )  # releases that left in this round before; a newly trained result is dropped
    teach: Callable[[ClientParty, Broadcast], Learned] | None = None
    learned: list[Learned] = field(default_factory=list)

    def train(self) -> None:
        """Train by the site's own function, unless the round was answered before."""
        if self.teach is not None and self.admitted is None:
            self.learned[:] = [self.teach(self.party, self.broadcast)]

    def answer(self, result: Shareable) -> Shareable:
        """Make the result to send: the protected releases. Under central trust a failure is only FLARE's return code."""
        party, client, code = self.party, self.party.method.client, result.get_return_code()
        if client.trust == "central" and code != ReturnCode.OK:
            return make_reply(known_code(result))

        def trained() -> tuple[Releases, ClientFacts]:
            if code != ReturnCode.OK:
                raise FedVeilError(f"the executor answered {code}")
            if self.teach is not None:
                if not self.learned:
                    raise FedVeilError("the executor trained nothing")
                [learned] = self.learned
                return client_releases(learned), client_facts(self.broadcast, party.layout, learned)
            releases = read_trained(result, party.layout, self.broadcast)
            return releases, ClientFacts(broadcast=self.broadcast, layout=party.layout)

        memory = self.memory
        released = answer(party, memory, self.broadcast, self.admitted, trained, memory.warnings)
        return write_reply(released, party.layout, client, party.seal(self.broadcast.public.round))

    def restore(self, fl_ctx: FLContext, data: Shareable | None = None) -> None:
        """See `Beside.restore`."""
        self.beside.restore(fl_ctx, data)
