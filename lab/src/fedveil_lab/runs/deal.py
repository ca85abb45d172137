"""Load the data of an experiment, and divide them among clients and the server."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from fedveil.data import (
    SCHEMES,
    DataSet,
    Holding,
    federate,
    holdings,
    holdout,
    load,
    own_scale,
    warnings_of,
)
from fedveil.data.patches import Patches, RingFeatures, learn_patches, learn_rings
from fedveil.data.sets import with_positive
from fedveil.errors import FieldError, require_non_negative, require_positive
from fedveil.learning import ClientData, Scoring, scored_rows
from fedveil.mechanisms import keyed_seed
from fedveil.methods import Method
from fedveil_lab.config.sections import Data
from fedveil_lab.config.tables import fields_of
from fedveil_lab.runs.region import without_marked


@dataclass(frozen=True)
class Dealt:
    """Examples of an experiment, divided among clients and the server.

    Attributes
    ----------
    dataset : DataSet
        Data set that was divided.
    clients : list of ClientData
        Clients in order of their partition numbers.
    public, validation : ClientData or None
        Examples that the server holds.
    raw_shape : tuple of int, optional
        Shape of an example before a frozen model replaced it by features.
    """

    dataset: DataSet
    clients: list[ClientData]
    public: ClientData | None = None
    validation: ClientData | None = None
    raw_shape: tuple[int, ...] | None = None

    @property
    def shape(self) -> dict[str, Any]:
        """Shape of an example, and number of outputs, with which a model is built."""
        return {
            "input_shape": self.raw_shape or self.dataset.input_shape,
            "outputs": self.dataset.outputs,
        }

    def holdings(self) -> list[Holding]:
        """Count what each client holds."""
        return holdings(self.clients, self.dataset)

    @property
    def largest_class(self) -> float | None:
        """Accuracy of always predicting the largest class, over all clients' examples; None without classes."""
        totals = [
            sum(column) for column in zip(*(one.counts for one in self.holdings()), strict=True)
        ]
        return max(totals) / sum(totals) if totals else None

    def unscored(self, method: Method, scoring: Scoring | None = None) -> list[int]:
        """List the classes without public examples (or without scored ones), if the method scores layers."""
        needed = {"public_scores", "public_layer_scores"} & (
            method.client.needs | method.server.needs
        )
        if self.public is None or not needed or self.dataset.task == "regression":
            return []
        if scoring is None:
            y = self.public.y
        else:
            y = self.public.y[scored_rows(self.public, scoring)]
        counts = torch.bincount(y.flatten(), minlength=self.dataset.classes)
        return [int(c) for c in counts.eq(0).nonzero()]

    def warnings(self, method: Method | None = None, scoring: Scoring | None = None) -> list[str]:
        """List warnings of clients that are empty or lack a class, and of classes that score no layer."""
        said = warnings_of(self.holdings(), self.dataset)
        if method is None or scoring is None:
            return said
        lacking = self.unscored(method)
        if lacking:
            return [
                *said,
                f"no public example shows classes {lacking}: layers are scored without them",
            ]
        lacking = self.unscored(method, scoring)
        if lacking:
            few = f"no public example that is scored shows classes {lacking}"
            return [
                *said,
                f"{few}: raise scoring.images = {scoring.images}, or data.public_examples",
            ]
        return said


def data_digest(spec: Data) -> str:
    """Return the SHA-256 of a data set's examples, to detect other data under the same name."""
    with fields_of("data"):
        return _digest(spec.name, json.dumps(spec.options))  # columns are inputs in their order


@lru_cache(maxsize=1)
def _loaded(name: str, options: str) -> DataSet:
    """Load the data set of ``[data]``; the last one is cached for the next run."""
    return load(name, **json.loads(options))


@cache
def _digest(name: str, options: str) -> str:
    digest, dataset = hashlib.sha256(), _loaded(name, options)
    if "person" in json.loads(options):
        people = dataset.group
    else:
        people = None
    for part in (
        dataset.x,
        dataset.y,
        dataset.test_x,
        dataset.test_y,
        dataset.owner,
        dataset.regions,
        people,
    ):
        if part is not None:
            digest.update(f"{tuple(part.shape)} {part.dtype}".encode())
            digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


def deal_out(spec: Data, seed: int) -> Dealt:
    """Load the data of ``[data]``, and divide them among clients and the server.

    Raises
    ------
    FieldError
        If a key does not fit, or a file or row cannot be used; the message names it.
    """
    with fields_of("data"):
        if spec.patches is None:
            dataset, public, validation = _shared_out(spec, seed)
        else:
            undealt = {
                "clients": 1,
                "partition": "iid",
                **dict.fromkeys(("alpha", "counts", "shards")),
            }
            whole = spec.model_copy(update=undealt)
            dataset, public, validation = _featured(whole.model_dump_json(), seed)
    clients = clients_of(dataset, spec, seed)
    if not any(client.examples for client in clients):
        raise FieldError(
            "data.partition", spec.partition, "leaves no client an example to train on"
        )
    return Dealt(dataset, clients, public, validation)


def _shared_out(spec: Data, seed: int) -> tuple[DataSet, ClientData | None, ClientData | None]:
    """Return the examples for clients, the public ones, and the server's validation examples."""
    dataset = without_marked(spec, _loaded(spec.name, json.dumps(spec.options)))
    if spec.positive is not None:
        dataset = with_positive(dataset, spec.positive)
    if spec.made_up_people:
        dataset = with_people(dataset, spec.made_up_people, seed)
    dataset, validation = keep_validation(dataset, spec.validation, seed)
    dataset, public = set_aside(dataset, spec.public_examples, seed)
    return dataset, public, validation


@lru_cache(maxsize=4)
def _featured(spec_json: str, seed: int) -> tuple[DataSet, ClientData | None, ClientData | None]:
    """Return the parts of `_shared_out` with features in place of images."""
    spec = Data.model_validate_json(spec_json)
    dataset, public, validation = _shared_out(spec, seed)
    if public is None or spec.patches is None:
        raise FieldError(
            "public_examples", 0, "patches are learned on public images: set some aside"
        )
    learned: Patches | RingFeatures
    if spec.patch_sizes:
        learned = learn_rings(
            public.x, spec.patches, spec.patch_sizes, spec.components or 128, seed
        )
    else:
        learned = learn_patches(public.x, spec.patches, seed)
        if spec.components is not None:
            learned = learned.projected(public.x, spec.components, spec.directions, seed)
    test_x = None
    if dataset.test_x is not None:
        test_x = learned.features(dataset.test_x)
    x = learned.features(dataset.x)
    dataset = replace(dataset, x=x, test_x=test_x, columns=(), regions=None, region_names=())
    public = replace(public, x=learned.features(public.x), masks=None)
    if validation is not None:
        validation = replace(validation, x=learned.features(validation.x), masks=None)
    return dataset, public, validation


def clients_of(dataset: DataSet, spec: Data, seed: int) -> list[ClientData]:
    """Divide examples among clients as the configuration says."""
    named = {"alpha": spec.alpha, "counts": spec.counts, "shards": spec.shards}
    extra: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    for key in extra.keys() - set(SCHEMES[spec.partition]):
        accepted = f"belongs to another partition than {spec.partition!r}; take it out: --set data.{key}=[]"
        raise FieldError(f"data.{key}", extra[key], accepted)
    if spec.partition in ("dirichlet", "quantity", "natural"):
        extra["min_size"] = spec.min_size
    with fields_of("data", scheme="data.partition"):
        dealt = federate(
            dataset,
            clients=spec.clients,
            seed=seed,
            scheme=spec.partition,
            holdout=spec.holdout,
            sensitive=spec.sensitive,
            **extra,
        )
        if not require_non_negative("pixel_noise", spec.pixel_noise):
            return dealt
        noised = []
        for i, client in enumerate(dealt):
            noised.append(_noised(client, spec.pixel_noise, keyed_seed("pixel noise", seed, i)))
        return noised


def _noised(client: ClientData, deviation: float, seed: int) -> ClientData:
    """Add Gaussian noise to the sensitive pixels of a client's training images."""
    if client.masks is None:
        raise FieldError(
            "pixel_noise", deviation, "falls on sensitive pixels, and the set knows of none"
        )
    drawn = torch.randn(
        client.x.shape, generator=torch.Generator().manual_seed(seed), dtype=client.x.dtype
    )
    return replace(client, x=client.x + deviation * drawn * client.masks[:, None])


def split_clients(
    clients: Sequence[ClientData], share: float, seed: int
) -> tuple[list[ClientData], list[ClientData]]:
    """Draw the clients that only validate, with all their examples; at least one validates and one trains.

    Raises
    ------
    FieldError
        If there are fewer than two clients with examples.
    """
    filled = [i for i, client in enumerate(clients) if client.examples]
    if len(filled) < 2:
        raise FieldError(
            "stopping.clients",
            share,
            "needs two clients with examples, one to train and one to validate",
        )
    count = min(max(1, round(share * len(filled))), len(filled) - 1)
    generator = torch.Generator().manual_seed(keyed_seed("validation clients", seed))
    order = torch.randperm(len(filled), generator=generator).tolist()
    chosen = {filled[i] for i in order[:count]}
    training: list[ClientData] = []
    validating: list[ClientData] = []
    for i, client in enumerate(clients):
        if i in chosen:
            side = validating
        else:
            side = training
        side.append(client)
    return training, validating


def keep_validation(
    dataset: DataSet, share: float | None, seed: int
) -> tuple[DataSet, ClientData | None]:
    """Give the server a stratified share of the data set's test half for validation.

    Parameters
    ----------
    dataset : DataSet
        Data set, of which the server's examples are removed.
    share : float or None
        Share to keep, above 0 and below 1; None for nothing.
    seed : int
        Seed that chooses the examples.

    Returns
    -------
    DataSet
        Data set with the rest of the test half, for final figures.
    ClientData or None
        Validation examples of the server.

    Raises
    ------
    FieldError
        If `share` is not between 0 and 1, or the data set has no test half.
    """
    if share is None:
        return dataset, None
    if require_positive("validation", share) >= 1:
        raise FieldError("validation", share, "must be above 0 and below 1")
    x, y = dataset.test_x, dataset.test_y
    if x is None or y is None:
        raise FieldError(
            "validation",
            share,
            f"{dataset.name!r} has no test half to take a share of; leave it out",
        )
    if dataset.classes:
        strata = y.numpy()
    else:
        strata = np.zeros(len(y), dtype=np.int64)
    parts = holdout(strata, np.arange(len(y)), share, seed=keyed_seed("validation", seed))
    rest, kept = map(torch.from_numpy, parts)
    return replace(dataset, test_x=x[rest], test_y=y[rest]), ClientData(
        x[kept], y[kept], name="validation"
    )


def with_people(dataset: DataSet, images: int, seed: int) -> DataSet:
    """Assign `images` random examples each to made-up persons.

    Raises
    ------
    FieldError
        If the data set names real persons.
    """
    if dataset.group is not None:
        raise FieldError(
            "made_up_people", images, f"{dataset.name!r} says whose its examples are: leave it out"
        )
    order = torch.randperm(
        len(dataset.x), generator=torch.Generator().manual_seed(keyed_seed("people", seed))
    )
    note = f"{dataset.note} People are made up, with {images} examples each."
    return replace(dataset, group=order // images, note=note.strip())


def set_aside(dataset: DataSet, count: int, seed: int) -> tuple[DataSet, ClientData | None]:
    """Take public examples for the server from the set's test half, if it has one and marks no sensitive pixels.

    Otherwise they come from the clients' examples, as test halves have no marks. Then whole groups are taken, so that
    no client holds a part of a public document.

    Raises
    ------
    FieldError
        If there are too few examples.
    """
    if not count:
        return dataset, None
    x, y, from_test = dataset.test_x, dataset.test_y, True
    if x is None or y is None or dataset.regions is not None:
        x, y, from_test = dataset.x, dataset.y, False
    if count >= len(x):
        raise FieldError(
            "data.public_examples", count, f"must be less than {len(x)}, all there are"
        )
    generator = torch.Generator().manual_seed(keyed_seed("public", seed))
    if from_test or dataset.group is None:
        order = torch.randperm(len(x), generator=generator)
        public, rest = order[:count], order[count:].sort().values
    else:
        place = torch.randperm(int(dataset.group.max()) + 1, generator=generator)[dataset.group]
        public = place.argsort(stable=True)[:count]
        rest = (~torch.isin(dataset.group, dataset.group[public])).nonzero().reshape(-1)
        if not len(rest):
            raise FieldError("data.public_examples", count, "leaves no whole document to deal out")
    own = own_scale(x[public], dataset.local_columns, x[public])
    if from_test or dataset.regions is None:
        masks = None
    else:
        masks = dataset.regions[public] != 0
    kept = ClientData(own, y[public], name="public", masks=masks)
    if from_test:
        return replace(dataset, test_x=x[rest], test_y=y[rest]), kept
    return dataset.take(rest), kept
