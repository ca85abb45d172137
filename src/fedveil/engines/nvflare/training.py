"""Training at a FLARE site: data, trainer and options from the site's own configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from fedveil.checks import Parameters
from fedveil.engines.client import ClientParty
from fedveil.engines.fit import require_fit
from fedveil.engines.nvflare.lightning import LightningTrainer, package_of, require_no_lightning
from fedveil.engines.nvflare.presence import require_present
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
    """Configuration of a site's training, from its own files; all values are plain JSON.

    Parameters
    ----------
    data : str
        ``"hospital.study:data"``, a function from the site's name to ``(x, y)`` or ClientData. Its module is imported
        and the function called once, after the first task was admitted.
    local : dict
        Options of `LocalTraining`: lr, epochs, batch_size, loss and so on.
    trainer : str
        ``"hospital.study:trainer"``, a function ``(model, layout, local) -> trainer``; the trainer has ``train(starts,
        clients, keys)`` as in `fedveil.learning.learner.Trainer`. Or a LightningModule, a class that is called with the
        network (`LightningTrainer`). It is also imported and called after the first task was admitted. Default:
        FedVeil's own, which is always used if noise goes inside training.
    kind : {"sequential", "batched", "auto"}
        Kind of FedVeil's own trainer. "sequential" gives the same bits as the embedded engine.
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
    """Training of a site in one job, with its learner and data; data are read when first needed.

    Parameters
    ----------
    given : SiteTraining
        Configuration of the site.
    seed : int
        Seed of the order of examples.
    """

    def __init__(self, given: SiteTraining, seed: int) -> None:
        self._given, self._seed = given, seed
        self._learner: Learner | None = None
        self._trainer_built = False  # whether the trainer that the site names was built
        self._client: ClientData | None = None

    def begin(self, module: nn.Module, layout: Layout, method: Method) -> None:
        """Build the learner before data are touched, and refuse a configuration that cannot train.

        The site's own modules do not run here, because they may read data. So a site that declines at this point is not
        charged.

        Raises
        ------
        FieldError
            For a missing module, or a model, loss or option that does not work with the method.
        """
        given, noisy = self._given, method.noisy
        local = LocalTraining(**given.local)
        if given.trainer and noisy is not None:
            accepted = (
                "leave it out: the method's noise goes inside training, which is FedVeil's own"
            )
            raise FieldError("training.trainer", given.trainer, accepted)
        if given.trainer:
            require_present("training.trainer", given.trainer)
        else:
            require_no_lightning(module)
        require_present("training.data", given.data)
        region = None if given.region is None else tuple(given.region)
        scoring = Scoring(**given.scoring)
        self._learner = Learner(
            module,
            layout,
            local,
            region=region,  # type: ignore[arg-type]
            scoring=scoring,
            trainer=make_trainer(
                module, layout, local, given.kind, noisy=noisy.noisy_steps if noisy else None
            ),
        )

    def _ready(self) -> Learner:
        """Return the learner of an admitted task, with the trainer that the site's configuration names."""
        learner = self._learner
        assert learner is not None  # a task was admitted
        if self._given.trainer and not self._trainer_built:
            found = _of_the_site("trainer", self._given.trainer)
            if isinstance(found, type) and package_of(found):
                learner.trainer = LightningTrainer(
                    found, learner.model, learner.layout, learner.local
                )
            else:
                learner.trainer = found(learner.model, learner.layout, learner.local)
            self._trainer_built = True
        return learner

    @property
    def private_trainer(self) -> PrivateTrainer | None:
        """Trainer if it adds noise inside training; else None."""
        return None if self._learner is None else self._learner.private_trainer

    def learning(self, site: str, partition: int) -> Callable[[ClientParty, Broadcast], Learned]:
        """Return the function that trains on an admitted task; if it raises an error, that task has failed."""

        def learn(party: ClientParty, broadcast: Broadcast) -> Learned:
            learner, round_ = self._ready(), broadcast.public.round
            client = self._data(site)
            sources = [party.training_source(round_)] if party.method.noisy else []
            keys, needs = [(self._seed, round_, partition)], party.method.client.needs
            [learned] = learner.learn(broadcast.models, [client], keys, needs, sources)
            if isinstance(learned, Exception):
                raise learned
            if learned.trained.buffers:
                self._client = replace(client, buffers=learned.trained.buffers)
            return learned

        return learn

    def losses(self, site: str) -> Callable[[Tensor], Tensor]:
        """Return the function that computes the training loss of models [k, d] on a site's data."""

        def measure(models: Tensor) -> Tensor:
            learner = self._ready()
            return client_losses(
                learner.model, learner.layout, models, [self._data(site)], learner.local.loss
            )[0]

        return measure

    def scores(self, models: Tensor) -> Tensor:
        """Return layer scores [n, L] of received models on the server's public data."""
        return self._ready().public_scores(models, self._data(PUBLIC))

    def taught(self, model: Tensor, round_: int) -> Tensor:
        """Return a model [d] after training on the server's public data, with a key that no client has."""
        learner, public = self._ready(), self._data(PUBLIC)
        [learned] = learner.learn(model[None], [public], [(self._seed, round_, -1)])
        if isinstance(learned, Exception):
            raise learned
        return learned.trained.model

    def _data(self, site: str) -> ClientData:
        """Return the site's data, which are read once."""
        if self._client is None:
            learner = self._ready()
            read = _of_the_site("data", self._given.data)
            client = as_client(read(site), "training.data")
            if not isinstance(learner.trainer, LightningTrainer):  # the loss is its own
                require_fit(learner.model, [client], learner.local.loss)
            if learner.private_trainer is not None:
                learner.private_trainer.check_sizes([client])
            self._client = client
        return self._client


def _of_the_site(field: str, name: str) -> Any:
    """Import the function or class of the site's own module that ``training`` names.

    Raises
    ------
    FieldError
        If the module raises when it is imported, or lacks the name.
    """
    try:
        return MODELS.find(name)
    except FieldError as error:
        raise FieldError(f"training.{field}", name, error.accepted) from error


def site_training_of(given: Mapping[str, Any], seed: int | None) -> OwnTraining:
    """Build a site's training from plain values.

    Raises
    ------
    FieldError
        For an unknown or invalid option.
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
