"""FLARE controller with the server's half of every method, for sites whose filters protect what they send."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from torch import Tensor

from fedveil.accounting import Filter, Guarantee
from fedveil.engines.answers import Collected
from fedveil.engines.assembly import draw_cohort, require_planned, require_undrawn
from fedveil.engines.history import Best
from fedveil.engines.memory import require_room
from fedveil.engines.nvflare.filters import TRAIN
from fedveil.engines.nvflare.shareables import (
    method_of,
    model_of_name,
    read_reply,
    read_seal,
    write_broadcast,
)
from fedveil.engines.nvflare.training import site_training_of
from fedveil.engines.nvflare.validating import (
    VALIDATION_TASK,
    ServerStopping,
    read_loss,
    stopping_of,
)
from fedveil.engines.rounds import RoundLoop
from fedveil.engines.server import Round, ServerParty
from fedveil.engines.serving import RunKeeper, Serving, served
from fedveil.engines.site_keys import SiteKeys
from fedveil.errors import (
    BudgetError,
    FieldError,
    NoReplyError,
    cleaned,
    require_count,
    require_rounds,
)
from fedveil.layout import Buffers
from fedveil.mechanisms import Source, source_of
from fedveil.methods import Broadcast, Method, SecureSum, TrustedServer
from fedveil.ranges import require_within
from fedveil.secure import PublicKey, public_key

FOLDER = "fedveil"
ATTEMPTS = 3  # most questions of one round of a secure sum
BEGUN = "fedveil-server"  # file in the job's folder: a server without its own folder began the job
DECLINED = "declined, or its filters refused the task: its own log says why"


class ServerController(Controller):  # type: ignore[misc]
    """FLARE workflow that runs a method's server side. All arguments are plain JSON values.

    Partitions are the sites' names in sorted order. `fedveil.nvflare.FedVeilController` keeps the run in a folder of
    the job.

    Parameters
    ----------
    model : str
        ``"package.module:Net"``, called with `model_options`; its parameters start the run.
    method : str
        Name in `fedveil.methods.METHODS`; the sites' `PrivacyFilter` must run the same client side.
    rounds : int
        Planned number of rounds, known to every site.
    parameters : dict, optional
        Parameters of the method.
    aggregator : str or dict, optional
        Aggregation rule: a name in `fedveil.aggregation.AGGREGATORS`, or a dict of its ``name`` and options.
    model_options : dict, optional
        Arguments of the model.
    buffers : {"refuse", "keep"}
        Whether a model with running statistics or counters is refused, or each site keeps its own.
    sites : list of str, optional
        Names of the federation's sites. Default: the job's clients.
    clients_per_round : int, optional
        Size of a round's cohort, drawn without replacement. Default: all sites.
    min_clients : int
        Least number of usable replies; with fewer the job ends without combining the round.
    seed : int, optional
        Seed of reproducible model, cohorts and noise, for experiments. Default: secure noise.
    epsilon : float, optional
        Limit on the server's total at `delta`; the run ends before it is exceeded.
    delta : float
        Delta for the epsilon in the log.
    task : str
        Name of the training task.
    timeout : int
        Seconds that a round may take; 0: no limit.
    site_training : bool
        Whether the sites train by `FedVeilExecutor` with their own modules. Record and person level, secure sums, FedRE
        and several hypotheses need it.
    keys : dict of str to str, optional
        Public key of each site for secure sums (``fedveil keys show``). Default: keys from `seed`, for experiments;
        anybody can compute these.
    public : dict, optional
        Public data of the server, as arguments of `SiteTraining`; its ``data`` is called with ``"server"``. FedRE and
        rules such as FLTrust need it. It needs `site_training`.

    stopping : dict, optional
        Early stopping by the losses of sites that only validate: options of `EarlyStopping`, with a table
        ``validation``.
    validators : list of str, optional
        Names of the validating sites; their `PrivacyFilter` must have the same ``validation``. It needs
        `site_training`.
    keep : list of str, optional
        Parts of each round that the folder keeps: ``"models"``, ``"updates"``, ``"shares"``; see
        `fedveil.evidence.ServerFolder`.

    Attributes
    ----------
    best : Best
        Models with the least validation loss.
    models : Tensor
        [k, d], last released models.
    history : list of Round
        Log of each round.
    stopped : str
        Reason why the run ended before its last round, or "".
    """

    def __init__(
        self,
        model: str,
        method: str,
        rounds: int,
        parameters: dict[str, Any] | None = None,
        aggregator: str | dict[str, Any] | None = None,
        model_options: dict[str, Any] | None = None,
        buffers: Buffers = "refuse",
        sites: list[str] | None = None,
        clients_per_round: int | None = None,
        min_clients: int = 2,
        seed: int | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        task: str = TRAIN,
        timeout: int = 3600,
        site_training: bool = False,
        keys: dict[str, str] | None = None,
        public: dict[str, Any] | None = None,
        stopping: dict[str, Any] | None = None,
        validators: list[str] | None = None,
        keep: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.stopping, self.validators = stopping, validators
        self.keep = keep
        self._rule = None if stopping is None else stopping_of(stopping)
        if (stopping is None) != (not validators):
            raise FieldError(
                "validators",
                validators,
                "go with stopping: the sites that validate and never train",
            )
        self.model, self.method, self.parameters = model, method, parameters
        self.rounds = require_rounds("rounds", rounds)
        self.aggregator, self.model_options, self.buffers, self.sites = (
            aggregator,
            model_options,
            buffers,
            sites,
        )
        self.clients_per_round, self.min_clients = (
            clients_per_round,
            require_count("min_clients", min_clients),
        )
        self.seed, self.delta = seed, require_within("delta", "delta", delta)
        self.epsilon = None if epsilon is None else require_within("epsilon", "epsilon", epsilon)
        self.task, self.timeout = task, require_count("timeout", timeout, least=0)
        self.site_training, self.keys = site_training, keys
        self.public = public
        self._public = None if public is None else site_training_of(public, seed)
        own = public is not None and site_training
        self._method = method_of(method, parameters, aggregator, site_training, public=own)
        _require_keys(self._method, keys, seed)
        if isinstance(self._method.server, SecureSum):
            self._method.server.rate()  # refused here, and not after the first round
        self._budget = None if epsilon is None else Filter(epsilon, delta)
        self._results: dict[str, Shareable] = {}
        self.models: Tensor | None = None
        self.history: list[Round] = []
        self.best = Best()
        self.stopped = ""

    def folder(self, path: Path) -> RunKeeper | None:
        """Return a keeper that stores the run in a folder; here None, as everything stays in memory."""
        return None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing, as the job's own code cannot be imported before the workflow runs."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing, as nothing is held open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run all rounds. An error ends the job, and FLARE shows its reason."""
        try:
            self._run(abort_signal, fl_ctx)
        except Exception as error:
            self.system_panic(f"FedVeil: {type(error).__name__}: {error}", fl_ctx)

    @property
    def guarantee(self) -> Guarantee:
        """Promise of all rounds so far together; under local trust, to a site that took part in all of them."""
        return self._serving.guarantee

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """Drop a result that comes too late."""
        self.log_warning(fl_ctx, f"FedVeil: a late result of {client.name} is dropped")

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        engine, source = fl_ctx.get_engine(), source_of(self.seed)
        seed = secrets.randbits(62) if self.seed is None else self.seed
        validators = set(self.validators or ())
        sites = sorted(
            set(self.sites or [client.name for client in engine.get_clients()]) - validators
        )
        everybody, size = range(len(sites)), self.clients_per_round or len(sites)
        if size > len(sites):
            raise FieldError("clients_per_round", size, f"there are only {len(sites)} sites")
        require_undrawn(size, len(sites), self._method)
        require_planned(self.sites, self._method, "sites")
        k = self._method.server.hypotheses
        module, layout, self.models = model_of_name(
            self.model, self.model_options, self.buffers, seed, k
        )
        keys = self._public_keys(sites, source)
        out = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id())) / FOLDER
        if self.history:
            raise FieldError(
                "control_flow",
                len(self.history),
                "this controller has run: its account would begin anew",
            )
        folder = self.folder(out)
        if folder is None and source.deployable:
            require_first(out.with_name(BEGUN))
        looks: dict[str, Any] = {}
        if self._public is not None:
            self._public.begin(module, layout, replace(self._method, client=TrustedServer()))
            looks = {"scorer": self._public.scores, "tutor": self._public.taught}
        server = served(
            self._method, layout, self.rounds, source, self._budget, folder, "nvflare", **looks
        )
        serving = self._serving = Serving(
            server, self.rounds, self.delta, folder, self.min_clients, self.logger
        )
        if folder is not None:
            folder.begin(fl_ctx.get_job_id(), serving.delta)
        self.history = serving.history
        watch = (
            None
            if self._rule is None
            else ServerStopping(self._rule, sorted(validators), seed, server)
        )
        loop = RoundLoop(serving, FlareSites(self, server, sites, abort_signal, fl_ctx, keys))
        try:
            for number in range(1, self.rounds + 1):
                cohort = draw_cohort(seed, number, everybody, size)
                loop.begin(self.models, number, self.rounds, size, cohort)
                if abort_signal.triggered:
                    self.stopped = "the job was aborted"
                    break
                _, self.models, _ = loop.end()
                if watch is not None and loop.broadcast is not None:
                    self._validate(
                        watch, replace(loop.broadcast, models=self.models), abort_signal, fl_ctx
                    )
                    if watch.stopped:
                        self.stopped = watch.stopped
                        break
        except Exception as error:
            self.stopped = str(error)
            if not isinstance(error, BudgetError) or not self.history:
                raise
        finally:
            serving.end(self.models, self.stopped, len(sites))

    def _validate(
        self, watch: ServerStopping, broadcast: Broadcast, abort_signal: Signal, fl_ctx: FLContext
    ) -> None:
        """Ask the validating sites for the loss of a round's models, and process the answers."""
        round_, due = broadcast.public.round, watch.due(broadcast.public.round)
        if not due:
            return
        public = replace(broadcast.public, roster=(), attempt=0)
        data = write_broadcast(
            replace(broadcast, public=public), self._serving.server.layout, watch.names, self.method
        )
        self.ask(data, due, abort_signal, fl_ctx, VALIDATION_TASK)
        losses = []
        for site in due:
            loss = read_loss(self.result_of(site))
            if loss is not None:
                losses.append(loss)
        watch.take(losses, round_, broadcast.models)
        self.best = watch.best
        self._serving.validated(watch.best, round_, broadcast.models)

    def _public_keys(self, sites: Sequence[str], source: Source) -> list[PublicKey]:
        """Return the sites' public keys by partition; empty for methods without a secure sum."""
        if self._method.client.trust != "secure sum":
            return []
        if self.keys is None:
            assert self.seed is not None  # checked when the controller was made
            return SiteKeys.of((), len(sites), source, self.seed).roster(range(len(sites)))
        if lacking := [site for site in sites if site not in self.keys]:
            raise FieldError("keys", lacking, "must name the public key of each site of the job")
        return [public_key(self.keys[site], f"keys.{site}") for site in sites]

    def ask(
        self,
        data: Shareable,
        targets: Sequence[str],
        abort_signal: Signal,
        fl_ctx: FLContext,
        name: str = "",
    ) -> None:
        """Send a task to sites, and wait for their results."""
        self._results = {}
        task = Task(
            name=name or self.task,
            data=data,
            timeout=self.timeout,
            result_received_cb=self._received,
        )
        self.broadcast_and_wait(
            task,
            fl_ctx,
            targets=list(targets),
            min_responses=len(targets),
            abort_signal=abort_signal,
        )

    def result_of(self, site: str) -> Shareable | None:
        """Take a site's answer to the last task; None if there is none or it was taken before."""
        return self._results.pop(site, None)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self._results[client_task.client.name] = client_task.result
        client_task.result = None  # otherwise FLARE would keep it until the task ends


class FlareSites:
    """Courier to the sites of a FLARE job: sends each round's task and reads the results.

    Parameters
    ----------
    controller : ServerController
        Controller that sends the tasks.
    server : ServerParty
        Server whose method the sites run.
    names : sequence of str
        Names of the sites, by partition.
    abort_signal, fl_ctx
        Arguments of FLARE.
    keys : sequence of PublicKey
        Keys of the sites, by partition, if sums are secure.
    """

    def __init__(
        self,
        controller: ServerController,
        server: ServerParty,
        names: Sequence[str],
        abort_signal: Signal,
        fl_ctx: FLContext,
        keys: Sequence[PublicKey] = (),
    ) -> None:
        self._controller, self._names, self._keys = controller, names, keys
        self._layout, self._method, self._side = server.layout, server.method, server.method.client
        self._attempt, self._declined = 0, dict[int, str]()
        self._context = (abort_signal, fl_ctx)
        self._asked: Sequence[int] = ()
        self._round = 0

    def reach(self, number: int, cohort: Sequence[int]) -> dict[int, PublicKey | None]:
        """Return the whole cohort, as FLARE waits for absent sites; for a secure sum, without sites that declined one."""
        if not self._keys:
            return dict.fromkeys(cohort)
        reached: dict[int, PublicKey | None] = {
            p: self._keys[p] for p in cohort if p not in self._declined
        }
        self._require_sum(number, len(reached))
        return reached

    def ask(self, broadcast: Broadcast, partitions: Sequence[int]) -> None:
        """Send the round's task to the sites, and wait for their results.

        Raises
        ------
        FieldError
            If the sites' results would not fit into memory. Each result is freed when its model is read.
        """
        require_room(len(partitions), broadcast.models, self._method.server)
        self._asked, self._attempt, self._round = (
            partitions,
            broadcast.public.attempt,
            broadcast.public.round,
        )
        data = write_broadcast(broadcast, self._layout, self._names, self._controller.method)
        self._controller.ask(data, [self._names[p] for p in partitions], *self._context)

    def collect(self) -> Collected:
        """Read the sites' results: releases, failures and refusals by partition."""
        answers = Collected(asked=len(self._asked))
        for partition in self._asked:
            site = self._names[partition]
            result = self._controller.result_of(site)
            code = None if result is None else result.get_return_code()
            if code is None:
                answers.failed[partition] = f"{site} did not reply in time"
            elif code == ReturnCode.TASK_DATA_FILTER_ERROR:
                answers.refused[partition] = f"{site} {DECLINED}"
            elif code != ReturnCode.OK:
                answers.failed[partition] = f"{site} answered {cleaned(code)}"
            else:
                try:
                    reply = read_reply(result, self._layout, self._side)
                    if isinstance(self._method.server, SecureSum):
                        self._method.server.check_reply(reply, self._layout.size)
                    answers.replies[partition] = reply
                    answers.seals.update(read_seal(result, partition))
                except Exception as error:  # an invalid reply is that site's failure
                    answers.failed[partition] = (
                        f"{site}: {cleaned(f'{type(error).__name__}: {error}')}"
                    )
        if self._keys:
            self._declined |= answers.refused
            return replace(answers, refused=dict(self._declined))
        return answers

    def again(self, answers: Collected) -> Sequence[int]:
        """Return the sites that are still there after an incomplete secure sum: all are asked again, as it needs every answer."""
        left = sorted(answers.replies)
        if not self._keys or len(left) == len(self._asked) or self._attempt + 1 >= ATTEMPTS:
            return ()
        self._require_sum(self._round, len(left))
        return left

    def _require_sum(self, number: int, left: int) -> None:
        """Refuse a secure sum of too few sites. If the declining sites would have sufficed, the run ends normally."""
        least = self._method.least_sites
        if left >= least:
            return
        why = f"round {number}: {left} sites are left, and a sum is of {least} at least"
        if self._declined and left + len(self._declined) >= least:
            raise BudgetError(
                f"{next(iter(self._declined.values()))}; the last model stands ({why})"
            )
        raise NoReplyError(why)


def _require_keys(method: Method, keys: dict[str, str] | None, seed: int | None) -> None:
    """Refuse a secure sum without the sites' keys, and keys for a method without a secure sum."""
    secure = method.client.trust == "secure sum"
    if secure and keys is None and seed is None:
        raise FieldError(
            "keys", None, "are needed for a secure sum: the public key of each site, by name"
        )
    if not secure and keys is not None:
        raise FieldError("keys", sorted(keys), "belong to secure sums: leave them out")
    for site, key in (keys or {}).items():
        public_key(key, f"keys.{site}")


def require_first(marker: Path) -> None:
    """Refuse a job that an earlier process began: its ledger was in memory and is lost.

    Raises
    ------
    FieldError
        If there was such a process.
    """
    if marker.exists():
        accepted = "a server of this job began it and is gone with its ledger: its rounds would be forgotten. Submit a "
        accepted += "new job with fedveil.nvflare.FedVeilController, whose folder keeps the ledger"
        raise FieldError("job", marker.name, accepted)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
