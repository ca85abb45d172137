"""FLARE filters with the client's half of every method, around any executor.

Within one task FLARE runs the task data filters, the executor and the task result filters with one context.
`PrivacyFilter` decides before training whether the site takes part, and stores the task in that context.
`ReleaseFilter` takes it from there, and replaces the whole result by the protected releases. If a filter raises an
error, the task ends, and FLARE sends a return code without text.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from torch import nn

from fedveil.engines.deployed import Settings, disagreement, opened, opened_ledger, with_budget
from fedveil.engines.lifetime import read_policy
from fedveil.engines.nvflare.decoding import narrow_decoding
from fedveil.engines.nvflare.executor import PENDING, FedVeilExecutor
from fedveil.engines.nvflare.pending import Beside, Pending, RunMemory, known_code, marker_of
from fedveil.engines.nvflare.quiet import require_quiet
from fedveil.engines.nvflare.shareables import (
    method_of,
    model_of_name,
    read_broadcast,
    require_own_method,
)
from fedveil.engines.nvflare.shield import shield
from fedveil.engines.nvflare.training import site_training_of
from fedveil.engines.nvflare.validating import (
    VALIDATION_TASK,
    PendingLoss,
    ValidatorMemory,
    require_due,
    validation_of,
)
from fedveil.engines.site_keys import SiteKeys, site_of
from fedveil.engines.stopping import Validator
from fedveil.engines.warning import Warnings
from fedveil.errors import FedVeilError, FieldError
from fedveil.layout import Buffers, Layout
from fedveil.logs import escaping
from fedveil.mechanisms import source_of
from fedveil.methods import Method, Refusal
from fedveil.secure import Site

TRAIN = "train"
PASSED = object()  # a task under central trust that does not train; the filters ignore it
CODE_ALONE = object()  # a task that moves a swarm on; only the return code of its result leaves
SWARM_TASKS = tuple(
    f"swarm_{name}"
    for name in ("config", "start", "learn", "report_learn_result", "report_final_result")
)


class PrivacyFilter(Filter):  # type: ignore[misc]
    """Filter that decides, before data are touched, whether the site takes part. It must be the first task data filter.

    A site's protection has to be its own, so name both filters in its ``local/privacy.json``. Filters in a job do not
    protect the site from the author of the job. All arguments are plain JSON values.

    Parameters
    ----------
    model : str
        ``"package.module:Net"``, the shared model; called with `model_options`.
    method : str
        Name in `fedveil.methods.METHODS`.
    parameters : dict, optional
        Parameters of the method.
    model_options : dict, optional
        Arguments of the model.
    buffers : {"refuse", "keep"}
        Whether a model with running statistics or counters is refused, or the site keeps its own.
    training : dict, optional
        Training by the site's own module: arguments of `SiteTraining`. The job's executor must then be
        `FedVeilExecutor`. Every method that needs no public data can then run.
    key : str, optional
        File with the site's key for secure sums. The policy's table ``[sum]`` lists the public keys of its peers.
    ledger : str, optional
        Folder of the site's lifetime ledger, begun once with `begin_ledger`; required for secure noise.
    head : str, optional
        Folder of the ledger's head, preferably on another disk; required with `ledger`.
    dataset : str, optional
        Name of the data set, which names the ledger. Default: the site's name.
    policy : str, optional
        TOML file with the site's policy.
    rounds : int, optional
        Number of rounds to which the site agreed; a task with another plan is declined.
    participations, leakage_cap : number, optional
        Budget of the site: most participations, or most leakage.
    seed : int, optional
        Seed of reproducible noise, for experiments. Anybody who knows the seed can remove the noise.
    task : str
        Name of the training task. Under local trust all other tasks are refused.
    allow : list of str, optional
        Further classes that may run in a job under local trust, ``"package.module.Class"``. The site is responsible for
        what they send.
    swarm : bool
        Whether the site takes part in swarms, in which another site aggregates each round. It needs `training`.
    validation : dict, optional
        Makes the site validate only: it never trains, and sends the loss of each round's model on its own data by these
        options of `Validation`. It needs `training`, and uses its data and loss.
    """

    def __init__(
        self,
        model: str,
        method: str,
        parameters: dict[str, Any] | None = None,
        model_options: dict[str, Any] | None = None,
        buffers: Buffers = "refuse",
        training: dict[str, Any] | None = None,
        key: str | None = None,
        ledger: str | None = None,
        head: str | None = None,
        dataset: str | None = None,
        policy: str | None = None,
        rounds: int | None = None,
        participations: int | None = None,
        leakage_cap: float | None = None,
        seed: int | None = None,
        task: str = TRAIN,
        allow: list[str] | None = None,
        swarm: bool = False,
        validation: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        narrow_decoding()
        self.validation = validation
        self._validation = None if validation is None else validation_of(validation)
        self.allow, self.swarm = list(allow or ()), swarm
        self.model, self.method, self.parameters, self.model_options = (
            model,
            method,
            parameters,
            model_options,
        )
        self.buffers, self.ledger, self.head, self.dataset = buffers, ledger, head, dataset
        self.policy, self.rounds = policy, rounds
        self.participations, self.leakage_cap, self.seed, self.task = (
            participations,
            leakage_cap,
            seed,
            task,
        )
        self.training, self.key = training, key
        self._training = None if training is None else site_training_of(training, seed)
        own = training is not None
        self._method = method_of(method, parameters, site_training=own, public=own)
        if validation is not None and training is None:
            raise FieldError(
                "training", None, "is needed of a site that validates: it names data and loss"
            )
        if (
            self._method.client.trust == "secure sum"
            and key is None
            and seed is None
            and validation is None
        ):
            raise FieldError(
                "key", None, "names the site's key file: make one by `fedveil keys new FILE`"
            )
        self._layout: Layout | None = None
        self._built: tuple[nn.Module, Layout] | None = None
        self._memories: dict[tuple[str, str], RunMemory] = {}
        self._open = ExitStack()
        if swarm:
            require_swarm(self._method, own)
        self._settings(0, "site")  # impossible settings are refused when the job is deployed

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Decide about a task; if the site does not take part, raise an error, and write the reason into the site's log."""
        with self._telling():
            return self._asked(shareable, fl_ctx)

    def _asked(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Admit the site to a task, or pass on a task that needs no training."""
        if (
            fl_ctx.get_prop(PENDING) is not None
        ):  # otherwise a job's filter could replace the site's
            raise FieldError(
                "task_data_filters", type(self).__name__, "there are two: leave out that of the job"
            )
        task = str(fl_ctx.get_prop(FLContextKey.TASK_NAME))
        if task == VALIDATION_TASK:
            pending_loss = self._measured(shareable, fl_ctx)
            self._open = pending_loss.open
            fl_ctx.set_prop(PENDING, pending_loss, private=True, sticky=False)
            return shareable
        passes = self._passed(task, fl_ctx) if task != self.task else None
        if passes is not None:
            fl_ctx.set_prop(PENDING, passes, private=True, sticky=False)
            return shareable
        self._open.close()  # left by a task that never came back
        pending = self._admitted(shareable, fl_ctx)
        self._open = pending.open
        fl_ctx.set_prop(PENDING, pending, private=True, sticky=False)
        return shareable

    def admit(self, shareable: Shareable, fl_ctx: FLContext) -> Pending:
        """Decide whether the site takes part in a training task; the returned task holds the ledger open.

        Raises
        ------
        FedVeilError
            If the site does not take part; the site's own log says why.
        """
        with self._telling():
            return self._admitted(shareable, fl_ctx)

    def _admitted(self, shareable: Shareable, fl_ctx: FLContext) -> Pending:
        """Decide as `admit`, without a line in the log."""
        if self._validation is not None:
            raise FieldError("validation", self.validation, "this site validates and never trains")
        runner = self._require_site(fl_ctx, self.task)
        module, layout = self._model()
        if self._training is not None and self._layout is None:
            self._training.begin(module, layout, self._method)
        self._layout = layout
        require_own_method(shareable, self.method)
        broadcast, sites = read_broadcast(shareable, layout, self._method.server.hypotheses)
        site, run = fl_ctx.get_identity_name(), str(fl_ctx.get_job_id())
        if sites.count(site) != 1:
            raise FieldError("sites", sites, f"must name {site!r} once")
        settings = replace(self._settings(sites.index(site), site), site=self._site(sites, site))
        trainer = None if self._training is None else self._training.private_trainer
        if (run, site) not in self._memories:
            self._memories[run, site] = RunMemory(marker_of(fl_ctx, site))
        memory = self._memories[run, site]
        if (
            self._local and memory.warnings is None
        ):  # under central trust the server looks at what arrives
            memory.warnings = Warnings(self._method, layout, self._warn)
        with ExitStack() as stack:
            party = stack.enter_context(opened(memory, settings, layout, run, trainer))
            verdict = disagreement(broadcast.public, settings.rounds) or party.admit(broadcast)
            if isinstance(verdict, Refusal):
                if party.failure is not None:
                    self._warn(f"what the method met: {party.failure}")
                raise FedVeilError(verdict.reason)
            if party.left_out:
                escaping(self.logger).warning("FedVeil: %s", party.left_out)
            held = stack.pop_all()
        beside = Beside.of(shareable, fl_ctx)
        teach = (
            None if self._training is None else self._training.learning(site, settings.partition)
        )
        if self._local:
            shield(runner.find_executor(self.task))
        return Pending(party, broadcast, memory, held, beside, verdict, teach)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Write a refusal into the site's own log: FLARE's secure logging leaves out the text of errors."""
        try:
            yield
        except FedVeilError as error:
            self._warn(f"the site takes no part: {error}")
            raise

    def _warn(self, text: str) -> None:
        """Write a line into the site's own log."""
        escaping(self.logger).warning("FedVeil: %s", text)

    def _measured(self, shareable: Shareable, fl_ctx: FLContext) -> PendingLoss:
        """Decide whether the site sends its loss for a round's models; the returned task holds the ledger open.

        Raises
        ------
        FedVeilError
            If it sends none.
        """
        if self._validation is None or self._training is None:
            raise FieldError(
                "validation", None, "is not what this site does: it trains, or answers nothing"
            )
        self._open.close()
        self._require_site(fl_ctx, VALIDATION_TASK)
        module, layout = self._model()
        if self._layout is None:
            self._training.begin(module, layout, self._method)
        self._layout = layout
        require_own_method(shareable, self.method)
        broadcast, sites = read_broadcast(shareable, layout, self._method.server.hypotheses)
        site, run = fl_ctx.get_identity_name(), str(fl_ctx.get_job_id())
        if sites.count(site) != 1:
            raise FieldError("sites", sites, f"must name {site!r} once")
        settings = self._settings(sites.index(site), site)
        if unlike := disagreement(broadcast.public, settings.rounds):
            raise FedVeilError(unlike.reason)
        if (run, site) not in self._memories:
            self._memories[run, site] = ValidatorMemory(marker_of(fl_ctx, site))
        with ExitStack() as stack:
            opened_ = stack.enter_context(opened_ledger(self._memories[run, site], settings, run))
            ledger, store = opened_
            own = (self._validation, ledger, settings.source, settings.budget, store)
            party = Validator(self._method, settings.policy, *own)
            bounded = settings.policy is not None or settings.budget is not None
            require_due(party, ledger, broadcast.public.round, bounded)
            held = stack.pop_all()
        measure = self._training.losses(site)
        return PendingLoss(party, broadcast, self._validation, not self._local, measure, held)

    @property
    def _local(self) -> bool:
        return self._method.client.trust != "central"

    def _passed(self, task: str, fl_ctx: FLContext) -> object:
        """Return the mark of a task that needs no training, or refuse the task."""
        if not self._local:
            return PASSED
        if self.swarm and task in SWARM_TASKS:
            self._require_site(fl_ctx, self.task)
            return CODE_ALONE
        raise FieldError("task", task, f"under local trust only {self.task!r} is answered")

    def _require_site(self, fl_ctx: FLContext, task: str) -> Any:
        """Refuse a job in which data could leave outside a task's filters; return FLARE's client runner."""
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        if runner is None:
            raise FieldError(
                "runner",
                None,
                "FLARE's client runner is not in the context: is this a client's job?",
            )
        _require_last(runner, fl_ctx, task)
        _require_executor(runner.find_executor(task), self._training is not None)
        if self._local:
            require_quiet(fl_ctx, self.allow, self.swarm)
        return runner

    def _model(self) -> tuple[nn.Module, Layout]:
        """Return the model and its layout, built when the first task came (a job's code cannot be imported before)."""
        if self._built is None:
            module, layout, _ = model_of_name(self.model, self.model_options, self.buffers, 0)
            self._built = module, layout
        return self._built

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Add the filter to a job under the name of its task, because FLARE does not understand ``"*"`` in a job's filters."""
        super().add_to_fed_job(job, ctx, **{"tasks": [self.task, VALIDATION_TASK], **kwargs})

    def _site(self, sites: list[str], site: str) -> Site | None:
        """Return the site's side of a secure sum: its key and pinned peers, or in an experiment keys from the seed."""
        if self._method.client.trust != "secure sum":
            return None
        if self.key is None and self.seed is not None:
            return SiteKeys.of((), len(sites), source_of(self.seed), self.seed).site(
                sites.index(site)
            )
        return site_of(self.key, read_policy(self.policy), self.ledger, self.dataset or site)

    def _settings(self, partition: int, site: str) -> Settings:
        caps = {"participations": self.participations, "leakage_cap": self.leakage_cap}
        policy = read_policy(self.policy)
        if policy is not None and policy.deadline is not None:
            raise FieldError(
                "deadline",
                policy.deadline,
                "is the executor's under FLARE: set its result_wait_timeout",
            )
        given = Settings(
            partition=partition,
            method=self._method,
            source=source_of(self.seed),
            policy=policy,
            ledger=self.ledger,
            head=self.head,
            dataset=self.dataset or site,
            rounds=self.rounds,
        )
        where = 'fedveil.nvflare.begin_ledger(FOLDER, "SITE", by=..., head=ANOTHER) once'
        where = f"PrivacyFilter(ledger=FOLDER, head=ANOTHER), after {where}"
        return with_budget(given, caps, where, trains=self._validation is None)


class ReleaseFilter(Filter):  # type: ignore[misc]
    """Filter that replaces the result of training by protected releases. It must be the last task result filter.

    Parameters
    ----------
    task : str
        Name of the training task, as for `PrivacyFilter`.
    """

    def __init__(self, task: str = TRAIN) -> None:
        super().__init__()
        self.task = task

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Protect the result of training, record its cost, and return only the protected releases."""
        pending = fl_ctx.get_prop(PENDING)
        fl_ctx.set_prop(PENDING, None, private=True, sticky=False)
        if pending is PASSED:
            return shareable
        if pending is CODE_ALONE:
            return make_reply(known_code(shareable))
        if not isinstance(pending, Pending | PendingLoss):
            raise FieldError(
                "PrivacyFilter", None, "did not admit this task: put it into the task data filters"
            )
        try:
            with pending.open:
                result = pending.answer(shareable)
                if isinstance(pending, Pending) and pending.party.failure is not None:
                    escaping(self.logger).warning(
                        "FedVeil: the site answered with a zero update: %s",
                        repr(pending.party.failure),
                    )
        finally:
            pending.restore(fl_ctx)
        return result

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """See `PrivacyFilter.add_to_fed_job`."""
        super().add_to_fed_job(job, ctx, **{"tasks": [self.task, VALIDATION_TASK], **kwargs})


def require_swarm(method: Method, site_training: bool) -> None:
    """Refuse a method whose promise does not hold if a peer aggregates each round.

    Raises
    ------
    FieldError
        If the promise does not hold in a swarm; the text gives the reason.
    """
    trust = method.client.trust
    if trust == "central":
        raise FieldError(
            "method",
            method.name,
            "trusts who aggregates, and in a swarm that is a peer: no promise holds",
        )
    if trust == "trusted sum":
        raise FieldError(
            "sum",
            "trusted",
            'trusts every peer of a swarm with each share: use sum="secure", or none',
        )
    if method.server.hypotheses != 1:
        raise FieldError("hypotheses", method.server.hypotheses, "must be 1 in a swarm")
    if not site_training:
        raise FieldError(
            "training",
            None,
            "is needed in a swarm: FLARE puts no filter around a peer's own training",
        )


def _require_last(runner: Any, fl_ctx: FLContext, task: str) -> None:
    """Refuse a chain of filters with one that could change a protected result or let it leave unprotected."""
    scope = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT)
    chain = list(scope.task_result_filters.get(FilterKey.OUT, [])) if scope else []
    chain += runner.task_result_filters.get(f"{task}{FilterKey.DELIMITER}{FilterKey.OUT}") or []
    if not chain or type(chain[-1]) is not ReleaseFilter:  # a job's own subclass may do anything
        names = [type(f).__name__ for f in chain]
        raise FieldError(
            "task_result_filters",
            names,
            f"must end with ReleaseFilter, for the task {task!r} by name",
        )


def _require_executor(executor: Any, site_training: bool) -> None:
    """Refuse a job with another executor than the site's filters expect."""
    own = type(executor).__name__
    if site_training and type(executor) is not FedVeilExecutor:
        raise FieldError(
            "executor",
            own,
            "must be fedveil.nvflare.FedVeilExecutor: this site trains by its own module",
        )
    if not site_training and isinstance(executor, FedVeilExecutor):
        accepted = "it is needed of PrivacyFilter: FedVeilExecutor trains by the site's own module"
        raise FieldError("training", None, accepted)
