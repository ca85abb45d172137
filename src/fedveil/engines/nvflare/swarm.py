"""Swarm: FLARE's peers take turns as the aggregator, and no peer is trusted with the others' results.

Each peer trains by `FedVeilExecutor`, so its result is protected at its own site before FLARE's swarm controller gets
it. The aggregator of a round sees the same as a server: in a secure sum, one share of each site. The c sites that may
collude include the aggregator.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import (
    ModelLearnable,
    ModelLearnableKey,
    make_model_learnable,
)
from nvflare.app_common.abstract.shareable_generator import ShareableGenerator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.ccwf.common import Constant
from nvflare.app_common.ccwf.swarm_client_ctl import SwarmClientController
from safetensors.torch import save_file

from fedveil.aggregation import NoState
from fedveil.engines import messages
from fedveil.engines.answers import RoundAnswers
from fedveil.engines.nvflare.filters import require_swarm
from fedveil.engines.nvflare.late import OpenRounds
from fedveil.engines.nvflare.rules import require_cut
from fedveil.engines.nvflare.shareables import (
    method_of,
    model_of_name,
    read_broadcast,
    read_reply,
    write_broadcast,
)
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.site_keys import SiteKeys
from fedveil.errors import FieldError, NoReplyError, cleaned, require_count, require_rounds
from fedveil.layout import Buffers, Layout
from fedveil.logs import escaping
from fedveil.mechanisms import source_of
from fedveil.methods import Broadcast, PublicFacts, Releases, SecureSum
from fedveil.secure import PublicKey, public_key

ANSWERED = "fedveil.answered"  # sites that answered the previous question, in the meta of a task
ATTEMPTS = 3  # most questions of one round of a secure sum
FOLDER = "fedveil"
SEAMS = (
    "_end_gather",
    "_scatter",
    "_try_broadcast_final_result",
    "record_last_result",
    "send_learn_task",
)


class SwarmRound(ServerParty):
    """Server side of one round at the aggregating peer; other peers combined the earlier rounds."""

    def require_rounds(self, done: int, field: str = "ledgers") -> None:
        """Do nothing, as the cost of each round is in each site's own ledger."""


class SwarmServer(Aggregator, ShareableGenerator, LearnablePersistor):  # type: ignore[misc]
    """Server's half of a method at each peer of a swarm: initial model, questions, combination, and saving.

    Parameters
    ----------
    model, method, parameters, aggregator, model_options, buffers
        As for `FedVeilController`.
    rounds : int
        Planned number of rounds.
    sites : list of str
        Names of all peers.
    least : int
        Least number of usable replies; with fewer the job ends without combining the round.
    keys : dict of str to str, optional
        Public key of each site for secure sums. Default: keys from `seed`, for experiments.
    seed : int, optional
        Seed of a reproducible first model, for experiments.

    Raises
    ------
    FieldError
        For a method or rule that does not work in a swarm, with the reason.
    """

    def __init__(
        self,
        model: str,
        method: str,
        rounds: int,
        sites: list[str],
        parameters: dict[str, Any] | None = None,
        aggregator: str | dict[str, Any] | None = None,
        model_options: dict[str, Any] | None = None,
        buffers: Buffers = "refuse",
        least: int = 2,
        keys: dict[str, str] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.method, self.parameters, self.aggregator = (
            model,
            method,
            parameters,
            aggregator,
        )
        self.model_options, self.buffers, self.keys, self.seed = model_options, buffers, keys, seed
        self.rounds, self.least = require_rounds("rounds", rounds), require_count("least", least)
        self.sites = sorted(sites)
        self._method = method_of(method, parameters, aggregator, site_training=True)
        require_swarm(self._method, site_training=True)
        if not isinstance(self._method.server.init(1, torch.float32), NoState):
            accepted = "remembers earlier rounds, and in a swarm another site aggregates each round"
            raise FieldError("aggregator", aggregator, accepted)
        if len(set(self.sites)) != len(self.sites) or len(self.sites) < 2:
            raise FieldError("sites", sites, "must name two peers or more, each once")
        self._method_sites()
        if self._method.server.rule is not None:
            require_cut(self._method.server.rule, len(self.sites))
        self._layout: Layout | None = None
        self._replies: dict[int, Releases] = {}
        self._failed: dict[int, str] = {}
        self._rounds = OpenRounds()
        self.history: list[Round] = []

    def _method_sites(self) -> None:
        """Refuse too few sites for a secure sum, and a secure sum without a rate or keys."""
        noisy = self._method.noisy
        if noisy is not None:
            noisy.require_sites(len(self.sites), "sites")
        if isinstance(self._method.server, SecureSum):
            self._method.server.rate()
        if self._secure and self.keys is None and self.seed is None:
            raise FieldError(
                "keys", None, "are needed for a secure sum: the public key of each site, by name"
            )
        if self._secure and self.keys is not None:
            lacking = [site for site in self.sites if site not in self.keys]
            if lacking:
                raise FieldError("keys", lacking, "must name the public key of each site")

    @property
    def _secure(self) -> bool:
        return self._method.client.trust == "secure sum"

    # ---- the first and the last model

    def load(self, fl_ctx: FLContext) -> ModelLearnable:
        """Make the initial model, with the question of the first round."""
        seed = secrets.randbits(62) if self.seed is None else self.seed
        _, layout, models = model_of_name(self.model, self.model_options, self.buffers, seed)
        self._layout = layout
        terms = "" if self._method.noisy is None else self._method.noisy.agreed(layout.size)
        run = (
            f"{fl_ctx.get_job_id()} {secrets.token_hex(8)}"
            if self.seed is None
            else str(fl_ctx.get_job_id())
        )
        public = PublicFacts(
            round=1, rounds=self.rounds, cohort=len(self.sites), dimension=layout.size
        )
        if self._secure:
            public = replace(public, run=run, terms=terms, roster=self._roster(self.sites))
        return self._learnable(Broadcast(models=models, public=public), self.sites)

    def save(self, learnable: ModelLearnable, fl_ctx: FLContext) -> None:
        """Save a round's released model in the folder ``fedveil`` of the job at this site."""
        folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        weights, meta = learnable[ModelLearnableKey.WEIGHTS], learnable[ModelLearnableKey.META]
        tensors = {name: torch.as_tensor(value).clone() for name, value in weights.items()}
        save_file(tensors, folder / "model.safetensors")
        facts = meta.get(messages.PUBLIC) or {}
        said = {
            "rounds": facts.get("round", 1) - 1,
            "of": self.rounds,
            "answered": meta.get(ANSWERED),
        }
        (folder / "swarm.json").write_text(json.dumps(said))

    # ---- messages

    def learnable_to_shareable(self, model: ModelLearnable, fl_ctx: FLContext) -> Shareable:
        """Make a round's question to all peers from the model and its facts."""
        meta = dict(model[ModelLearnableKey.META])
        task: Shareable = DXO(
            DataKind.WEIGHTS, dict(model[ModelLearnableKey.WEIGHTS]), meta
        ).to_shareable()
        return task

    def shareable_to_learnable(self, shareable: Shareable, fl_ctx: FLContext) -> ModelLearnable:
        """Read the model and the facts in a question."""
        dxo = from_shareable(shareable)
        return make_model_learnable(dxo.data, dict(dxo.meta or {}))

    # ---- the combination

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Accept a peer's protected reply; a second reply of the peer in a round is dropped, and a late one."""
        if self._rounds.late(shareable):
            return False  # it would count in the next round that this peer combines
        peer = fl_ctx.get_peer_context()
        name = None if peer is None else peer.get_prop(ReservedKey.IDENTITY_NAME)
        site = str(name or fl_ctx.get_identity_name())
        if site not in self.sites:
            return False
        partition = self.sites.index(site)
        if partition in self._replies:
            return False
        try:
            self._replies[partition] = read_reply(shareable, self._known(), self._method.client)
        except Exception as error:  # an invalid reply is that peer's failure
            self._failed[partition] = f"{site}: {cleaned(f'{type(error).__name__}: {error}')}"
            escaping(self.logger).warning("FedVeil: %s", self._failed[partition])
            return False
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Combine the replies and open the next round; ask again if a secure sum lacks a site.

        Raises
        ------
        NoReplyError
            If too few replies can be used; the job then ends with the last model.
        """
        replies, failed = self._replies, self._failed
        self._replies, self._failed = {}, {}
        self._rounds.close()
        broadcast = self._question(fl_ctx)
        answered = [self.sites[partition] for partition in sorted(replies)]
        if self._secure and len(replies) < len(broadcast.public.roster):
            return self._again(broadcast, answered)
        party = SwarmRound(self._method, self._known(), source=source_of(0))
        opened, log = party.combine(broadcast, RoundAnswers(replies, failed), least=self.least)
        self.history.append(log)
        used, of = len(log.used), len(self.sites)
        escaping(self.logger).info("FedVeil: round %d: %d of %d peers", log.number, used, of)
        public = opened.public
        if self._secure:
            public = replace(public, roster=self._roster(answered))
        return self._task(replace(opened, public=public), answered)

    def _again(self, broadcast: Broadcast, answered: Sequence[str]) -> Shareable:
        """Open the same round again, as another question to the peers that answered."""
        public, least = broadcast.public, max(self._method.least_sites, self.least)
        if len(answered) < least or public.attempt + 1 >= ATTEMPTS:
            raise NoReplyError(
                f"round {public.round}: {len(answered)} peers are left, and a sum is of {least} at least"
            )
        escaping(self.logger).info(
            "FedVeil: round %d is asked again, of %d peers", public.round, len(answered)
        )
        public = replace(public, attempt=public.attempt + 1, roster=self._roster(answered))
        return self._task(replace(broadcast, public=public), answered)

    def _question(self, fl_ctx: FLContext) -> Broadcast:
        """Return the broadcast that the peers were asked with."""
        model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        broadcast, sites = read_broadcast(self.learnable_to_shareable(model, fl_ctx), self._known())
        if sites != self.sites:
            raise FieldError("sites", sites, f"must be the job's, {self.sites}")
        return broadcast

    def _task(self, broadcast: Broadcast, answered: Sequence[str]) -> Shareable:
        return self.learnable_to_shareable(self._learnable(broadcast, answered), FLContext())

    def _learnable(self, broadcast: Broadcast, answered: Sequence[str]) -> ModelLearnable:
        dxo = from_shareable(write_broadcast(broadcast, self._known(), self.sites, self.method))
        return make_model_learnable(dxo.data, {**dxo.meta, ANSWERED: list(answered)})

    def _known(self) -> Layout:
        if self._layout is None:
            _, self._layout, _ = model_of_name(self.model, self.model_options, self.buffers, 0)
        return self._layout

    def _roster(self, names: Sequence[str]) -> tuple[PublicKey, ...]:
        """Return the sorted public keys of the named sites."""
        if self.keys is None:
            assert self.seed is not None  # checked when the component was made
            places = [self.sites.index(name) for name in names]
            return tuple(
                sorted(
                    SiteKeys.of((), len(self.sites), source_of(self.seed), self.seed).roster(places)
                )
            )
        return tuple(sorted(public_key(self.keys[name], f"keys.{name}") for name in names))


class SwarmPeer(SwarmClientController):  # type: ignore[misc]
    """FLARE's swarm controller of one peer: sites take turns as the aggregator, and rounds continue without absent ones.

    Parameters
    ----------
    server_id : str
        Id of the job's `SwarmServer`.
    wait : float
        Seconds that a round waits for missing peers once enough have answered.
    ack : int
        Seconds in which a peer must accept a message.
    timeout : float
        Seconds that a round may take. Then the answers are combined, or the job ends if they are too few.
    least : int
        Least number of peers; with fewer the job ends.

    Raises
    ------
    FieldError
        If the controller of this FLARE version lacks a method that is overridden here.
    """

    def __init__(
        self,
        server_id: str = "fedveil_swarm",
        wait: float = 30.0,
        ack: int = 30,
        timeout: float = 3600.0,
        least: int = 2,
    ) -> None:
        lacking = [name for name in SEAMS if not hasattr(SwarmClientController, name)]
        if lacking:
            raise FieldError(
                "SwarmClientController", lacking, "are missing in this FLARE: 2.9 was tested"
            )
        super().__init__(
            persistor_id=server_id,
            shareable_generator_id=server_id,
            aggregator_id=server_id,
            min_responses_required=least,
            wait_time_after_min_resps_received=wait,
            learn_task_ack_timeout=ack,
            learn_task_timeout=timeout,
            final_result_ack_timeout=ack,
        )
        self.server_id, self.wait, self.ack, self.timeout, self.least = (
            server_id,
            wait,
            ack,
            timeout,
            least,
        )
        self.trainers: list[str] = []
        self.aggrs: list[str] = []

    def _scatter(self, task_data: Shareable, for_round: int, fl_ctx: FLContext) -> bool:
        """Ask the peers for a round; the aggregator is chosen in turn from the peers that answered last."""
        answered = self._follow(task_data)
        self.aggrs = [answered[for_round % len(answered)]]
        asked: bool = super()._scatter(task_data, for_round, fl_ctx)
        return asked

    def do_learn_task(
        self, name: str, task_data: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> None:
        """Train. An aggregator then waits only for the peers that answered last."""
        self._follow(task_data)
        super().do_learn_task(name, task_data, fl_ctx, abort_signal)

    def _end_gather(self, gatherer: Any) -> None:
        """Combine a round once its last reply is accepted: FLARE counts a reply before, and would combine without it."""
        with gatherer.lock:
            pass
        super()._end_gather(gatherer)

    def _follow(self, task_data: Shareable) -> list[str]:
        """Return the peers that answered the last question. A peer that was absent once is not asked again."""
        answered = from_shareable(task_data).meta.get(ANSWERED)
        if not isinstance(answered, list) or not set(answered) <= set(
            self.get_config_prop(Constant.CLIENTS)
        ):
            raise FieldError(ANSWERED, answered, "must name peers of the job")
        self.trainers = sorted(answered)
        return self.trainers

    def send_learn_task(self, targets: list[str], request: Shareable, fl_ctx: FLContext) -> bool:
        """Ask the other peers; continue without unreachable ones while enough are left."""
        request.set_header(AppConstants.NUM_ROUNDS, self.get_config_prop(AppConstants.NUM_ROUNDS))
        timeout, secure = int(self.learn_task_ack_timeout), self.is_task_secure(fl_ctx)
        task = Task(name=self.do_learn_task_name, data=request, timeout=timeout, secure=secure)
        replies = self.broadcast_and_wait(
            task=task, targets=targets, min_responses=len(targets), fl_ctx=fl_ctx
        )
        reached = [target for target in targets if _ok(replies, target)]
        if len(reached) < len(targets):
            self.log_warning(fl_ctx, f"FedVeil: only {reached} of {targets} can be reached")
        if len(reached) + 1 >= self.least:
            return True
        self.update_status(action="send_learn_task", error=ReturnCode.EXECUTION_EXCEPTION)
        return False

    def record_last_result(self, fl_ctx: FLContext, round_num: int, result: ModelLearnable) -> None:
        """Save a round's model, and end the workflow when all planned rounds are combined; repeated questions do not count."""
        facts = result[ModelLearnableKey.META].get(messages.PUBLIC) or {}
        if facts.get("round", 0) > facts.get("rounds", 0):
            first = self.get_config_prop(Constant.START_ROUND, 0)
            self.config[AppConstants.NUM_ROUNDS] = round_num - first + 1
        super().record_last_result(fl_ctx, round_num, result)

    def _try_broadcast_final_result(self, *arguments: Any, **named: Any) -> int:
        """Send the last model to the peers that are still there, as FLARE counts absent ones as errors."""
        everybody = self.get_config_prop(Constant.RESULT_CLIENTS) or []
        self.config[Constant.RESULT_CLIENTS] = [name for name in everybody if name in self.trainers]
        errors: int = super()._try_broadcast_final_result(*arguments, **named)
        return errors


def _ok(replies: Mapping[str, Any], target: str) -> bool:
    reply = replies.get(target)
    return isinstance(reply, Shareable) and reply.get_return_code(ReturnCode.OK) == ReturnCode.OK
