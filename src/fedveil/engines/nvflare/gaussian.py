"""Local DP for a fixed number of rounds as one FLARE filter: clip a difference, add Gaussian noise, record the total."""

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.accounting import Guarantee, Ledger, Release, model_of
from fedveil.engines.deployed import Settings, answer, opened, with_budget
from fedveil.engines.history import total_of
from fedveil.engines.lifetime import read_policy
from fedveil.engines.nvflare.decoding import narrow_decoding
from fedveil.engines.nvflare.pending import Beside, RunMemory, known_code, marker_of
from fedveil.engines.nvflare.shield import BESIDE, shield
from fedveil.errors import FedVeilError, FieldError, require_rounds
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon
from fedveil.layout import Layout
from fedveil.logs import escaping
from fedveil.mechanisms import source_of
from fedveil.methods import (
    SGALDP,
    Broadcast,
    ClientFacts,
    Method,
    PublicFacts,
    Refusal,
    Releases,
    paired,
)
from fedveil.ranges import require_within

Forms = dict[str, tuple[torch.dtype, tuple[int, ...]]]  # type and shape of each array, by name
ROUNDED = (
    1 - 1e-9
)  # factor on the mu of a release, so that rounding keeps the composed total within the limit
ASKED = "fedveil.asked"  # forms of the model in a task, in its context, private to the client


class TaskKeeper(Filter):  # type: ignore[misc]
    """Filter that keeps a task as it came, for `GaussianFilter`. It must be the first task data filter.

    FLARE sends a task's cookies, and the public part of its context, beside each result, also beside an error. Training
    code can change both; its changes are undone. The names, shapes and types of the task's model are those of the
    update that leaves.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Keep the task's cookies, context and forms, and let the task pass."""
        beside = Beside.of(shareable, fl_ctx)
        fl_ctx.set_prop(BESIDE, beside, private=True, sticky=False)
        fl_ctx.set_prop(ASKED, forms_of(shareable), private=True, sticky=False)
        runner = fl_ctx.get_prop(FLContextKey.RUNNER)
        shield(runner.find_executor(fl_ctx.get_prop(FLContextKey.TASK_NAME)))
        return shareable


def forms_of(task: Shareable) -> Forms:
    """Return type and shape of each array of the model in a task, by name; an empty dict where it holds no model."""
    try:
        dxo = from_shareable(task)
    except ValueError:
        return {}
    if dxo.data_kind != DataKind.WEIGHTS or not isinstance(dxo.data, dict):
        return {}
    tensors = {str(name): torch.as_tensor(value) for name, value in dxo.data.items()}
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


class GaussianFilter(Filter):  # type: ignore[misc]
    """Filter that adds Gaussian noise to a site's model difference. It must be the last task result filter.

    It works in any workflow. All rounds together are (epsilon, delta)-DP for all data of the site, against the server
    and everybody who sees its messages. A clipped difference moves by at most 2C, whatever the site's data are. The
    noise has the same size in each round. The ledger holds the composed total. This is static local DP:
    `fedveil.SGALDP` with both limits of its budget at one round's epsilon.

    Only the noised difference leaves, with the names, shapes and types of the task's model. `TaskKeeper`, the first task
    data filter, keeps them; without it everything is refused. So is a difference with other names or shapes. Integer
    arrays leave as zeros, so that counters stay unchanged. Metrics, counts and headers are dropped; cookies and context
    are restored. `JobGuard` checks everything else that runs in the job.

    Parameters
    ----------
    epsilon, delta : float
        Total of all rounds together.
    rounds : int
        Planned number of releases; a further one is refused.
    clip : float
        C, clipping norm of all arrays of the difference together.
    ledger, head, dataset, policy : str, optional
        As for `PrivacyFilter`. Without a seed, a ledger and its head are required.
    seed : int, optional
        Seed of reproducible noise, for experiments.
    """

    def __init__(
        self,
        epsilon: float,
        rounds: int,
        delta: float = 1e-5,
        clip: float = 1.0,
        ledger: str | None = None,
        head: str | None = None,
        dataset: str | None = None,
        policy: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        narrow_decoding()
        self.epsilon = require_within("epsilon", "epsilon", epsilon)
        self.delta = require_within("delta", "delta", delta)
        self.rounds, self.clip = require_rounds("rounds", rounds), clip
        self.ledger, self.head, self.dataset, self.policy, self.seed = (
            ledger,
            head,
            dataset,
            policy,
            seed,
        )
        each = mu_of_epsilon(self.epsilon, self.delta) / self.rounds**0.5
        release = epsilon_of_mu(each * ROUNDED, self.delta)
        side = SGALDP(
            epsilon_min=release,
            epsilon_max=release,
            delta=self.delta,
            clip=clip,
            similarity="released",
        )
        self._method: Method = paired(side)
        self._memories: dict[tuple[str, str], RunMemory] = {}
        self._layout: Layout | None = None
        self._forms: Forms = {}  # of the first task's model
        self._settings("site")  # impossible settings are refused when the job is deployed

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        side = self._method.client
        assert isinstance(side, SGALDP)
        return 2 * side.clip / mu_of_epsilon(side.epsilon_min, side.delta)

    def guarantee(self, ledger: Ledger) -> Guarantee:
        """Return the promise of all releases in a ledger together."""
        return total_of(ledger)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Protect a difference, record its cost, and return it; any other result is refused."""
        beside = fl_ctx.get_prop(BESIDE)
        if isinstance(beside, Beside):
            beside.restore(fl_ctx)
        if shareable.get_return_code() != ReturnCode.OK:
            return make_reply(known_code(shareable))
        layout = self._known(fl_ctx.get_prop(ASKED) or {})
        arrays = _difference(shareable)
        _require_shapes(arrays, self._forms)
        site, run = str(fl_ctx.get_identity_name()), str(fl_ctx.get_job_id())
        if (run, site) not in self._memories:
            self._memories[run, site] = RunMemory(marker_of(fl_ctx, site))
        memory = self._memories[run, site]
        with opened(memory, self._settings(site), layout, run) as party:
            made = [entry.key[0] for entry in party.ledger.entries]
            broadcast = self._broadcast(max(made, default=0) + 1, layout)
            verdict = party.admit(broadcast)
            if isinstance(verdict, Refusal):
                raise FedVeilError(verdict.reason)

            def trained() -> tuple[Releases, ClientFacts]:
                own = {name: arrays[name].to(self._forms[name][0]) for name in layout.names}
                model = (Release("model", layout.flatten(own)),)
                return model, ClientFacts(broadcast=broadcast, layout=layout)

            released = model_of(answer(party, memory, broadcast, verdict, trained))
            total = self.guarantee(party.ledger).describe(self.delta)
        escaping(self.logger).info(
            "FedVeil: release %d of %d; %s", broadcast.public.round, self.rounds, total
        )
        assert released is not None
        return _reply(layout, released, self._forms)

    def _known(self, asked: Forms) -> Layout:
        """Return the layout of the first task's model; refuse a task without a model, or with another one."""
        shapes = {name: shape for name, (kind, shape) in asked.items() if kind.is_floating_point}
        if not shapes:
            accepted = "must begin with TaskKeeper, and the task must hold a model: the update gets its names and shapes"
            raise FieldError("task_data_filters", len(asked), accepted)
        for name, (kind, _) in asked.items():
            if kind.is_complex or kind == torch.bfloat16:  # NumPy has no bfloat16
                raise FieldError(name, str(kind), "cannot be noised")
        if self._layout is None:
            self._layout = Layout.from_shapes({name: shapes[name] for name in sorted(shapes)})
            self._forms = asked
        if self._forms != asked:
            accepted = "must be those of the first task, in the same shapes and types"
            raise FieldError("arrays of the task's model", sorted(asked), accepted)
        return self._layout

    def _broadcast(self, number: int, layout: Layout) -> Broadcast:
        facts = PublicFacts(
            round=number, rounds=max(number, self.rounds), cohort=1, dimension=layout.size
        )
        return Broadcast(models=torch.zeros(1, layout.size, dtype=layout.dtype), public=facts)

    def _settings(self, site: str) -> Settings:
        given = Settings(
            partition=0,
            method=self._method,
            source=source_of(self.seed).child(
                site
            ),  # with one seed, each site still has its own noise
            policy=read_policy(self.policy),
            ledger=self.ledger,
            head=self.head,
            dataset=self.dataset or site,
            rounds=None,
        )
        return with_budget(
            given, {"participations": self.rounds}, "GaussianFilter(ledger=FOLDER, head=ANOTHER)"
        )


def _difference(shareable: Shareable) -> dict[str, torch.Tensor]:
    """Read the arrays of a result that holds a model difference.

    Raises
    ------
    FieldError
        For any other kind of result, or an array that cannot get noise.
    """
    dxo = from_shareable(shareable)
    if dxo.data_kind != DataKind.WEIGHT_DIFF or not isinstance(dxo.data, dict):
        accepted = "must be a difference: params_type=ParamsType.DIFF, or params_transfer_type=TransferType.DIFF"
        raise FieldError("data_kind", dxo.data_kind, accepted)
    arrays = {str(name): torch.as_tensor(value) for name, value in dxo.data.items()}
    for name, value in arrays.items():
        if value.is_complex():
            raise FieldError(name, str(value.dtype), "cannot be noised")
    return arrays


def _require_shapes(arrays: dict[str, torch.Tensor], asked: Forms) -> None:
    """Refuse a difference with other arrays than the task's model: names and shapes leave as they are."""
    found = {name: tuple(value.shape) for name, value in arrays.items()}
    if found != {name: shape for name, (_, shape) in asked.items()}:
        accepted = "must hold the arrays of the task's model, in the same shapes"
        raise FieldError("difference", sorted(found), accepted)


def _reply(layout: Layout, released: torch.Tensor, forms: Forms) -> Shareable:
    """Make a result that holds only the noised difference."""
    data, views = {}, layout.views(released)
    for name, (kind, shape) in forms.items():
        if name in views:
            data[name] = views[name].to(kind).contiguous().clone().numpy()
        else:
            data[name] = torch.zeros(shape, dtype=kind).numpy()
    # all sites have equal weight, as the number of steps depends on the size of the data set
    reply: Shareable = DXO(
        DataKind.WEIGHT_DIFF, data, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    ).to_shareable()
    return reply
