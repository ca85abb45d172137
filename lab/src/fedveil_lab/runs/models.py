"""Build the model of a run with its trainer and first parameters, and check it against the data."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil import learning
from fedveil.data import holdout
from fedveil.engines import require_fit, with_proximal_term
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import (
    Learner,
    LossFunction,
    Trainer,
    base_name,
    evaluating,
    outputs_of,
    region_mask,
)
from fedveil.mechanisms import keyed_seed
from fedveil.methods import Method, NoisySteps, RecordDP
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.tables import fields_of
from fedveil_lab.runs.checkpoint import Remembering
from fedveil_lab.runs.deal import Dealt

EPOCHS = (3, 10, 30, 100)  # of which one is chosen for a public model
ROUND = 0  # of the keys: no federated round has this number


def learner_of(config: Config, dealt: Dealt, method: Method, memo: Path | None) -> Learner:
    """Build model, layout and trainer of a run, and check them against its data.

    Parameters
    ----------
    config, dealt, method
        Configuration, data and method of the run.
    memo : Path, optional
        Folder that caches first rounds; see `Remembering`.

    Raises
    ------
    FieldError
        If a key does not fit the data; the message names it.
    """
    with fields_of("model"):
        module = learning.build_model(config.model.name, seed=config.seed, **_shape(config, dealt))
        layout = Layout.from_module(module)
    check_fit(dealt, method, config.local.loss, config.model.name, module)
    require_fit(module, dealt.clients, config.local.loss)
    require_class_weights(config.local.class_weights, dealt.dataset.classes)
    with fields_of("local"):
        local = with_proximal_term(config.local, method)
    example: tuple[Tensor, Tensor] | None = None
    noisy: NoisySteps | None = None
    filled = [client for client in dealt.clients if client.examples]
    if filled:
        example = filled[0].x, filled[0].y
    if method.noisy is not None:
        noisy = method.noisy.noisy_steps
    trainer: Trainer = learning.make_trainer(
        module,
        layout,
        local,
        config.trainer,
        device=config.device,
        workers=config.workers,
        precision=config.precision,
        noisy=noisy,
        example=example,
    )
    if isinstance(trainer, learning.PrivateTrainer):
        if dealt.dataset.local_columns:
            accepted = "each silo scales columns by its own rows, which no noise covers: scale by public constants"
            raise FieldError("data.scale", "client", accepted)
        with fields_of("privacy"):
            trainer.check_sizes(dealt.clients)
    elif memo is not None:
        trainer = _remembered(trainer, config, local, memo)
    unmarked: dict[int, learning.Unmarked] = {}
    for own in config.privacy.clients:
        if own.unmarked is not None:
            unmarked |= dict.fromkeys(own.partitions, own.unmarked)
    return Learner(
        module,
        layout,
        local,
        region=_region(config, dealt),
        scoring=config.scoring,
        unmarked=unmarked,
        trainer=trainer,
        device=config.device,
    )


def _region(config: Config, dealt: Dealt) -> Tensor | None:
    """Return the sensitive pixels of every image if the configuration has a region of pixels, else None."""
    if config.data.region is None or config.data.names_columns:
        return None
    height, width = (1, 1, *dealt.dataset.input_shape)[-2:]
    with fields_of("data"):
        return region_mask(config.data.region, height, width)


def first_models(
    config: Config, dealt: Dealt, method: Method, learner: Learner, base: int, memo: Path | None
) -> Tensor:
    """Make the first hypotheses [k, d] of a run.

    Parameters
    ----------
    config, dealt, method, learner
        Configuration, data, method and learner of the run.
    base : int
        Seed of a first model that the server trains; several runs may share it.
    memo : Path, optional
        Folder that caches a first model trained by the server.

    Raises
    ------
    FieldError
        If a public model lacks public examples with classes.
    """
    trained = config.model.start == "public" or (
        config.pretraining is not None and dealt.validation is not None
    )
    seed, k = config.seed, method.server.hypotheses
    if trained:
        seed = base
    with fields_of("model"):
        starts = learning.initial_models(config.model.name, k=k, seed=seed, **_shape(config, dealt))
    if config.model.start == "normal":
        generator = torch.Generator().manual_seed(keyed_seed("normal start", seed))
        starts = torch.randn(starts.shape, generator=generator, dtype=starts.dtype)
    if config.model.start == "public":
        if dealt.public is None or dealt.dataset.task != "classification":
            accepted = "trains on public examples and their classes: set data.public_examples"
            raise FieldError("model.start", "public", accepted)
        return (
            public_model(learner.model, learner.layout, starts[0], dealt.public, seed)
            .expand(k, -1)
            .clone()
        )
    if config.pretraining is None or dealt.validation is None:
        return starts
    alone = replace(config.local, epochs=config.pretraining.epochs, prox=0.0)
    central: Trainer = learning.SequentialTrainer(
        learner.model, learner.layout, alone, device=config.device
    )
    if memo is not None:
        central = _remembered(central, config, alone, memo)
    return first_model(starts, dealt.validation, central, seed)


def _shape(config: Config, dealt: Dealt) -> dict[str, Any]:
    return {**dealt.shape, **config.model.options}


def with_features(config: Config, dealt: Dealt) -> Dealt:
    """Replace examples by features of the frozen layers if ``model.cached`` is set.

    Features of each example are computed alone, and cached in this process.

    Raises
    ------
    FieldError
        If the model has no frozen first layers, or the data are read anew each time.
    """
    if not config.model.options.get("cached"):
        return dealt
    dataset = dealt.dataset
    with fields_of("model"):
        front = learning.halves(config.model.name, seed=config.seed, **_shape(config, dealt))[0]
    if front is None:  # the model has a key of that name itself
        return dealt
    known = _known(front, dataset.input_shape)
    changed = replace(
        dataset,
        x=_features_of(dataset.x, front, known),
        test_x=_features_of(dataset.test_x, front, known),
        columns=(),
        regions=None,
        region_names=(),
        inputs={},
    )
    return replace(
        dealt,
        dataset=changed,
        clients=[_with_features(client, front, known) for client in dealt.clients],
        public=None if dealt.public is None else _with_features(dealt.public, front, known),
        validation=None
        if dealt.validation is None
        else _with_features(dealt.validation, front, known),
        raw_shape=dataset.input_shape,
    )


def _with_features(
    client: learning.ClientData, front: nn.Module, known: dict[bytes, Tensor]
) -> learning.ClientData:
    x, test_x = _features_of(client.x, front, known), _features_of(client.test_x, front, known)
    return replace(client, x=x, test_x=test_x, masks=None)


def _features_of(x: Any, front: nn.Module, known: dict[bytes, Tensor]) -> Any:
    """Compute features of examples that are not cached, and return those of all."""
    if x is None:
        return None
    if not isinstance(x, Tensor):
        raise FieldError("model.cached", True, "needs data that are held in memory")
    if not len(x):
        return learning.features(front, x)
    digests = [sha256(row.contiguous().numpy().tobytes()).digest() for row in x]
    missing = [i for i, digest in enumerate(digests) if digest not in known]
    if missing:
        for i, made in zip(missing, learning.features(front, x[missing]), strict=True):
            known[digests[i]] = made
    return torch.stack([known[digest] for digest in digests])


_FEATURES: dict[str, dict[bytes, Tensor]] = {}  # of the last front, by examples' digests


def _known(front: nn.Module, shape: tuple[int, ...]) -> dict[bytes, Tensor]:
    """Return the cache of this frozen network's features; caches of others are dropped."""
    digest = sha256(f"{front} {shape} {torch.get_num_threads()}".encode())
    for name, value in front.state_dict().items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    key = digest.hexdigest()
    if key not in _FEATURES:
        _FEATURES.clear()
        _FEATURES[key] = {}
    return _FEATURES[key]


def _remembered(
    trainer: Trainer, config: Config, local: learning.LocalTraining, memo: Path
) -> Trainer:
    kind = (type(trainer).__name__, config.precision, config.device)
    parts = (*kind, config.model.name, config.model.options, asdict(local))
    return Remembering(trainer, memo, repr(parts))


def require_class_weights(weights: Sequence[float], classes: int) -> None:
    """Refuse class weights whose number differs from the number of classes."""
    if weights and len(weights) != classes:
        raise FieldError(
            "local.class_weights",
            list(weights),
            f"must be one weight for each of {classes} classes",
        )


def check_fit(
    dealt: Dealt, method: Method, loss: str | LossFunction, model: str, module: nn.Module
) -> None:
    """Refuse data that the method, the loss or the model cannot use, before anything is trained.

    Raises
    ------
    FieldError
        If something does not fit; the message names the key to change.
    """
    dataset = dealt.dataset
    if dataset.counted and dataset.classes and method.may_promise:
        tells = f"the model's shape would tell whether one record has the largest: {method.name!r} does not cover it"
        accepted = (
            f"is counted from the labels: {tells}. Say it, from what is known without the data"
        )
        raise FieldError("data.classes", dataset.classes, accepted)
    side = method.client
    if isinstance(side, RecordDP) and side.records_per_person:
        ids = [
            torch.unique(client.person)
            for client in dealt.clients
            if client.person is not None and client.examples
        ]
        silos = 0
        if ids:
            silos = int(torch.bincount(torch.cat(ids)).max())
        if silos > side.silos_per_person:
            accepted = "a person of these data has records at more silos than that: raise it, or give all records of a person "
            raise FieldError(
                "privacy.silos_per_person", side.silos_per_person, accepted + "to one silo"
            )
    if "layer_scores" in method.client.needs:
        empty = [client.name for client in dealt.clients if not client.examples]
        if empty:
            accepted = f"{method.name!r} scores layers on each client's own images, and some have none: {empty[:5]}"
            raise FieldError("data.partition", "empty clients", accepted)
    if dataset.task == "regression" and base_name(loss) == "cross_entropy":
        accepted = f"{dataset.name!r} has targets: use 'mse' or 'rmse'; where they are classes, store them as integers"
        raise FieldError("local.loss", loss, accepted)
    if dataset.task == "segmentation":
        if dealt.public is not None and (lacking := dealt.unscored(method)):
            accepted = f"show no pixel of class {lacking[0]}, which clients' layers are scored with: take more"
            raise FieldError("data.public_examples", dealt.public.examples, accepted)
        some = next(module.parameters())
        with evaluating(module), torch.no_grad():
            shape = tuple(outputs_of(module(dataset.x[:1].to(some.device, some.dtype))).shape[1:])
        wanted = (dataset.classes, *dataset.y.shape[1:])
        if shape != wanted:
            accepted = f"gives {shape} for an image, but {dataset.name!r} has a class a pixel: {wanted} is needed"
            raise FieldError("model.module" if ":" in model else "model.name", model, accepted)


def first_model(
    start: Tensor, validation: learning.ClientData, trainer: Trainer, seed: int
) -> Tensor:
    """Train the first model [1, d] on the server's examples, for the epochs of `trainer`.

    Raises
    ------
    Exception
        Any error of the training.
    """
    [outcome] = trainer.train(start, [validation], [(seed, ROUND, 0)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.model[None]


def public_model(
    module: nn.Module, layout: Layout, start: Tensor, public: learning.ClientData, seed: int
) -> Tensor:
    """Train a model [d] on public examples, with settings chosen on public examples only.

    One dense layer is a logistic regression whose strength is chosen by cross-validation (scikit-learn). Any other
    model is trained by Adam, on four fifths for each number of epochs, and on all for the one that was best on the
    last fifth.

    Parameters
    ----------
    module, layout
        Model and its layout.
    start : Tensor
        Parameters [d] at which training begins.
    public : ClientData
        Public examples with classes.
    seed : int
        Seed of the split and of training.
    """
    some = next(
        (part for part in module.modules() if not isinstance(part, nn.Sequential | nn.Flatten)),
        None,
    )
    if isinstance(some, nn.Linear) and layout.size == sum(p.numel() for p in some.parameters()):
        return _logistic(layout, start, public)
    rest, kept = holdout(
        public.y.numpy(), np.arange(public.examples), 0.2, seed=keyed_seed("public model", seed)
    )
    most = learning.ClientData(public.x[torch.from_numpy(rest)], public.y[torch.from_numpy(rest)])
    held_x, held_y = public.x[torch.from_numpy(kept)], public.y[torch.from_numpy(kept)]

    def trained(on: learning.ClientData, epochs: int) -> Tensor:
        local = learning.LocalTraining(epochs=epochs, batch_size=32, lr=0.001, optimizer="adam")
        return first_model(
            start[None], on, learning.SequentialTrainer(module, layout, local), seed
        )[0]

    losses: dict[int, float] = {}
    for epochs in EPOCHS:
        figures = learning.evaluate(
            module, layout, trained(most, epochs), held_x, held_y, ("loss",)
        )
        losses[epochs] = figures["loss"]
    return trained(public, min(losses, key=losses.__getitem__))


def _logistic(layout: Layout, start: Tensor, public: learning.ClientData) -> Tensor:
    """Fit public examples by logistic regression, as one layer's parameters; a class without examples keeps its own."""
    from sklearn.linear_model import LogisticRegressionCV

    head = LogisticRegressionCV(
        Cs=8, cv=5, max_iter=2000, l1_ratios=(0,), scoring="accuracy", use_legacy_attributes=False
    )
    head.fit(public.x.flatten(1).numpy(), public.y.numpy())
    weight = torch.from_numpy(np.atleast_2d(head.coef_)).to(start.dtype)
    bias = torch.from_numpy(head.intercept_[:, None]).to(start.dtype)
    if len(weight) == 1:  # of two classes: each is the other's negative
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    parts, rows = layout.unflatten(start), torch.from_numpy(head.classes_)
    for values in parts.values():
        values[rows] = bias[:, 0] if values.dim() == 1 else weight
    return layout.flatten(parts)
