"""Training of a site under NVIDIA FLARE: data, trainer and options from the site's own configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from fedveil.checks import Parameters
from fedveil.engines.client import ClientParty
from fedveil.engines.fit import require_fit
from fedveil.engines.nvflare.lightning import LightningTrainer, package_of, require_no_lightning
from fedveil.errors import FieldError, require_a
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer, client_losses, make_trainer
from fedveil.learning.clients import as_client
from fedveil.learning.learner import Learned, Learner
from fedveil.learning.models import MODELS
from fedveil.learning.scoring import Scoring
from fedveil.methods import Broadcast, Method

PUBLIC = "server"  # name under which public data are requested


@dataclass(frozen=True, kw_only=True)
class SiteTraining(Parameters):
    """Training of a site by its own configuration; all values are plain JSON.

    Parameters
    ----------
    data : str
        ``"hospital.study:data"``, a function of the site's name that returns ``(x, y)`` or ClientData. It is called
        once, after the first task was admitted.
    local : dict
        Options of `LocalTraining`: lr, epochs, batch_size, loss and so on.
    trainer : str
        ``"hospital.study:trainer"``, a function ``(model, layout, local) -> trainer``; the trainer has ``train(starts,
        clients, keys)`` as in `fedveil.learning.learner.Trainer`. Or a LightningModule, a class that is called with the
        network (`LightningTrainer`). Default: FedVeil's own, which is always used if noise goes inside training.
    kind : {"sequential", "batched", "auto"}
        Kind of FedVeil's own trainer; "sequential" gives the embedded engine's bits, whoever else is trained there.
    region : list of int, optional
        Top, left, bottom and right of the sensitive pixels, for FedRE.
    scoring : dict
        Options of `Scoring`, for FedRE.
    """

    data: str
    local: Mapping[str, Any] = field(default_factory=dict)
    trainer: str = ""
    kind: Literal["sequential", "batched", "auto"] = "sequential"
    region: Sequence[int] | None = None
    scoring: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("data", "trainer"):
            value = getattr(self, name)
            if not isinstance(value, str) or (":" not in value and (value or name == "data")):
                raise FieldError(
                    f"training.{name}",
                    value,
                    'must be "package.module:function", of the site\'s own',
                )
        for name in ("local", "scoring"):
            require_a(
                f"training.{name}", getattr(self, name), Mapping, "must be a table of options"
            )
        LocalTraining(**self.local)
        Scoring(**self.scoring)
        super().__post_init__()


class OwnTraining:
    """Training of a site in one job: its learner, and its data once they are needed.

    Parameters
    ----------
    given : SiteTraining
        Configuration of the site.
    seed : int
        Seed of batches and their order.
    """

    def __init__(self, given: SiteTraining, seed: int) -> None:
        self._given, self._seed = given, seed
        self._learner: Learner | None = None
        self._client: ClientData | None = None
        self._lightning = False  # whose loss is its own, in its training_step

    def begin(self, module: nn.Module, layout: Layout, method: Method) -> None:
        """Build the learner before data are touched, and refuse a configuration that cannot train.

        Raises
        ------
        FieldError
            For a model, a loss or an option that the method cannot train with.
        """
        given, noisy = self._given, method.noisy
        local = LocalTraining(**given.local)
        if given.trainer and noisy is not None:
            accepted = (
                "leave it out: the method's noise goes inside training, which is FedVeil's own"
            )
            raise FieldError("training.trainer", given.trainer, accepted)
        if given.trainer:
            trainer = self._of_the_site(module, layout, local)
        else:
            require_no_lightning(module)
            trainer = make_trainer(
                module, layout, local, given.kind, noisy=noisy.noisy_steps if noisy else None
            )
        region = None if given.region is None else tuple(given.region)
        scoring = Scoring(**given.scoring)
        self._learner = Learner(
            module,
            layout,
            local,
            region=region,  # type: ignore[arg-type]
            scoring=scoring,
            trainer=trainer,
        )

    def _of_the_site(self, module: nn.Module, layout: Layout, local: LocalTraining) -> Any:
        """The trainer that the site names."""
        found = MODELS.find(self._given.trainer)
        if isinstance(found, type) and package_of(found):
            self._lightning = True
            return LightningTrainer(found, module, layout, local)
        return found(module, layout, local)

    @property
    def private_trainer(self) -> PrivateTrainer | None:
        """Trainer, if it adds noise itself; else None."""
        return None if self._learner is None else self._learner.private_trainer

    def learning(self, site: str, partition: int) -> Callable[[ClientParty, Broadcast], Learned]:
        """Return the function that trains an admitted task of a site; an error in it is that task's failure."""

        def learn(party: ClientParty, broadcast: Broadcast) -> Learned:
            assert self._learner is not None  # a task was admitted
            client, round_ = self._data(site), broadcast.public.round
            sources = [party.training_source(round_)] if party.method.noisy else []
            keys, needs = [(self._seed, round_, partition)], party.method.client.needs
            [learned] = self._learner.learn(broadcast.models, [client], keys, needs, sources)
            if isinstance(learned, Exception):
                raise learned
            if learned.trained.buffers:
                self._client = replace(client, buffers=learned.trained.buffers)
            return learned

        return learn

    def losses(self, site: str) -> Callable[[Tensor], Tensor]:
        """Return the function that computes the training loss of models [k, d] on a site's data."""

        def measure(models: Tensor) -> Tensor:
            assert self._learner is not None  # a task was admitted
            learner = self._learner
            return client_losses(
                learner.model, learner.layout, models, [self._data(site)], learner.local.loss
            )[0]

        return measure

    def scores(self, models: Tensor) -> Tensor:
        """Return layer scores [n, L] of received models on the server's public data."""
        public = self._data(PUBLIC)
        assert self._learner is not None  # the run has begun
        return self._learner.public_scores(models, public)

    def taught(self, model: Tensor, round_: int) -> Tensor:
        """Return a model [d] after training on the server's public data, with a key that no client has."""
        public = self._data(PUBLIC)
        assert self._learner is not None  # the run has begun
        [learned] = self._learner.learn(model[None], [public], [(self._seed, round_, -1)])
        if isinstance(learned, Exception):
            raise learned
        return learned.trained.model

    def _data(self, site: str) -> ClientData:
        """Return the site's data, which are read once."""
        assert self._learner is not None  # a task was admitted
        if self._client is None:
            client = as_client(MODELS.find(self._given.data)(site), "training.data")
            if not self._lightning:
                require_fit(self._learner.model, [client], self._learner.local.loss)
            if self._learner.private_trainer is not None:
                self._learner.private_trainer.check_sizes([client])
            self._client = client
        return self._client


def site_training_of(given: Mapping[str, Any], seed: int | None) -> OwnTraining:
    """Return a site's training from plain values.

    Raises
    ------
    FieldError
        For an unknown or refused option.
    """
    require_a(
        "training",
        given,
        Mapping,
        'must be a table: {"data": "hospital.study:data", "local": {"lr": 0.1}}',
    )
    if "data" not in given:
        raise FieldError(
            "training.data", None, "names the function of the site's data: hospital.study:data"
        )
    return OwnTraining(SiteTraining(**given), 0 if seed is None else seed)
