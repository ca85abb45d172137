"""Local DP for a fixed number of rounds as one FLARE filter: clip a difference, add Gaussian noise, record the total."""

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.accounting import Guarantee, Ledger, Release, model_of
from fedveil.engines.deployed import Settings, answer, opened, with_budget
from fedveil.engines.history import total_of
from fedveil.engines.lifetime import read_policy
from fedveil.engines.nvflare.pending import Beside, RunMemory, known_code, marker_of
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

Form = tuple[torch.dtype, tuple[int, ...]]
ROUNDED = (
    1 - 1e-9
)  # factor on the mu of a release, so that rounding keeps the composed total within the limit


BESIDE = "fedveil.beside"  # in the context of one task, private to the client


class TaskKeeper(Filter):  # type: ignore[misc]
    """Filter by which `GaussianFilter` can undo what training code adds to a task. It must be the first task data filter.

    FLARE sends a task's cookies, and the public part of its context, beside each result. Training code can change both.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Keep the task's cookies and context, and let the task pass."""
        fl_ctx.set_prop(BESIDE, Beside.of(shareable, fl_ctx), private=True, sticky=False)
        return shareable


class GaussianFilter(Filter):  # type: ignore[misc]
    """Filter that adds Gaussian noise to a site's model difference. It must be the last task result filter.

    It works in any workflow. All rounds together are (epsilon, delta)-DP for all data of the site, against the server
    and everybody who sees its messages. A clipped difference moves by at most 2C, whatever the site's data are. The
    noise has the same size in each round. The ledger holds the composed total. This is static local DP:
    `fedveil.SGALDP` with both limits of its budget at one round's epsilon.

    Only the noised difference leaves. Integer arrays leave as zeros, so that counters stay unchanged. Metrics, counts
    and headers are dropped; cookies and context are restored, if `TaskKeeper` is the first task data filter. The names
    and shapes of the first difference leave as training code chose them, so they must not depend on the data.
    `JobGuard` checks everything else that runs in the job.

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
        self._forms: dict[
            str, Form
        ] = {}  # names, shapes and types of all arrays of the first difference
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
        arrays = _difference(shareable)
        shared = {name: value for name, value in arrays.items() if value.is_floating_point()}
        layout = self._known(arrays, shared)
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
                model = (Release("model", layout.flatten(shared)),)
                return model, ClientFacts(broadcast=broadcast, layout=layout)

            released = model_of(answer(party, memory, broadcast, verdict, trained))
            total = self.guarantee(party.ledger).describe(self.delta)
        escaping(self.logger).info(
            "FedVeil: release %d of %d; %s", broadcast.public.round, self.rounds, total
        )
        assert released is not None
        return _reply(layout, released, arrays)

    def _known(self, arrays: dict[str, torch.Tensor], shared: dict[str, torch.Tensor]) -> Layout:
        """Return the layout of the first difference; refuse a later difference with another layout.

        Integer arrays leave as zeros, but their shapes are sent, so the shapes must not depend on the data either.
        """
        if not shared:
            raise FieldError("difference", 0, "holds no array of floating point")
        forms = {name: (value.dtype, tuple(value.shape)) for name, value in arrays.items()}
        if self._layout is None:
            shapes = {name: tuple(shared[name].shape) for name in sorted(shared)}
            self._layout, self._forms = Layout.from_shapes(shapes), forms
        if self._forms != forms:
            raise FieldError(
                "difference",
                sorted(forms),
                "must hold the arrays of the first one, in the same shapes and types",
            )
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
    arrays = {}
    for name, value in dxo.data.items():
        tensor = torch.as_tensor(value)
        if tensor.is_complex() or tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
            raise FieldError(str(name), str(tensor.dtype), "cannot be noised")
        arrays[str(name)] = tensor
    return arrays


def _reply(layout: Layout, released: torch.Tensor, arrays: dict[str, torch.Tensor]) -> Shareable:
    """Make a result that holds only the noised difference."""
    data, views = {}, layout.views(released)
    for name, value in arrays.items():
        if name in views:
            data[name] = views[name].to(value.dtype).contiguous().clone().numpy()
        else:
            data[name] = torch.zeros_like(value).numpy()
    # all sites have equal weight, as the number of steps depends on the size of the data set
    reply: Shareable = DXO(
        DataKind.WEIGHT_DIFF, data, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    ).to_shareable()
    return reply
