"""The tables of an experiment's TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedveil.config.base import OpenSection, Section
from fedveil.config.options import Option, fields_of, options_of
from fedveil.data import NATURAL, SOURCES
from fedveil.engines.stopping import EarlyStopping
from fedveil.errors import FieldError, require_choice
from fedveil.learning.models import factory_of
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods.validating import Validation


def _clients(value: Any) -> Any:
    if value != NATURAL and (isinstance(value, bool) or not isinstance(value, int)):
        raise FieldError("data.clients", value, f"must be a whole number, or {NATURAL!r} for the set's own clients")
    return value


def _rectangles(value: Any) -> Any:
    """One rectangle, or several, as tuples."""
    several = isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple)
    for one in value if several else [value]:
        if not isinstance(one, list | tuple) or len(one) != 4 or any(type(side) is not int for side in one):
            raise FieldError("data.region", value, "must be [top, left, bottom, right] in pixels, or a list of such")
    return tuple(map(tuple, value)) if several else tuple(value)


Clients = Annotated[int | Literal["natural"], BeforeValidator(_clients)]
Rows = Annotated[tuple[Annotated[tuple[int, ...], Field(strict=False)], ...], Field(strict=False)]


class Data(OpenSection):
    """``[data]``: a source of `fedveil.data` with its own options, and how it is dealt out to clients.

    With `patches`, images become features of so many patches that are learned, without labels, on the public examples;
    with `components` they are projected on so many directions, the public examples' principal ones or random ones;
    with `patch_sizes` too, small patches of each size are averaged over rings and whitened to 128 `components`.
    `region` (top, left, bottom, right; or several such) marks the privacy-sensitive pixels, `sensitive` names the kinds
    of them that a set knows (a list a client, in turn), `pixel_noise` is the deviation of Gaussian noise that clients
    put on those pixels of what they train on (a baseline without a guarantee), and `public_examples` are set aside for
    the server, for FedRE and `patches`.
    `validation` is the share of the set's own test half that the server keeps to itself, stratified; final figures are
    measured on the rest. `made_up_people` gives every so many examples, drawn at random, to a person who does not
    exist, for sets that do not say whose theirs are; results say so. ``clients = "natural"`` means all natural clients
    of the set (``partition = "natural"`` with a number draws so many), `min_size` the fewest examples of one. `alpha`,
    `shards` or `counts` of another partition are taken out with an empty list.
    """

    section: ClassVar[str] = "data"

    name: str
    clients: Clients
    partition: Literal["iid", "dirichlet", "counts", "quantity", "shards", "natural"] = "iid"
    alpha: float | None = None
    shards: int | None = None
    min_size: int = 1
    counts: Rows | None = None
    holdout: float = 0.2
    region: Annotated[tuple[Any, ...], BeforeValidator(_rectangles)] | None = None
    sensitive: Annotated[tuple[Annotated[tuple[str, ...], Field(strict=False)], ...], Field(strict=False)] = ()
    pixel_noise: float = 0.0
    made_up_people: Annotated[int, Field(ge=0)] = 0
    public_examples: int = 0
    patches: int | None = None
    components: int | None = None
    directions: Literal["public", "random"] = "public"
    patch_sizes: Annotated[tuple[int, ...], Field(strict=False)] = ()
    validation: float | None = None

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(SOURCES[require_choice("data.name", name, SOURCES)].load)

    @model_validator(mode="before")
    @classmethod
    def _by_nature(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        values = {k: v for k, v in values.items() if not (k in ("alpha", "shards", "counts") and v == [])}
        return {"partition": NATURAL, **values} if values.get("clients") == NATURAL else values

    @model_validator(mode="after")
    def _check(self) -> Data:
        if self.clients == NATURAL and self.partition != NATURAL:
            accepted = "natural clients are not dealt out: leave it out, or give a number of clients"
            raise FieldError("data.partition", self.partition, accepted)
        if self.components is not None and self.patches is None:
            raise FieldError(
                "data.components", self.components, "are components of patches' features: set patches, too"
            )
        if self.patch_sizes and (self.patches is None or self.directions != "public"):
            accepted = (
                "are sizes of patches whose public components are features: set patches, and leave out directions"
            )
            raise FieldError("data.patch_sizes", self.patch_sizes, accepted)
        return self

    @property
    def planned(self) -> int | None:
        """The number of clients, where it is known before the data are loaded."""
        return None if self.clients == "natural" else self.clients

    @property
    def number(self) -> int:
        """The number of clients, for what cannot go without."""
        if self.clients == "natural":
            accepted = "must be a number here: partition = 'natural' beside it draws so many of the set's own clients"
            raise FieldError("data.clients", self.clients, accepted)
        return self.clients


class Model(OpenSection):
    """``[model]``: a model of `fedveil.learning.MODELS` with its own options, or one of yours.

    ``module = "package.module:Net"`` writes such a `name` as well. Runs are told apart by the name, not by what
    the file holds: after a change of it, start anew in another folder.

    `start` is where the hypotheses begin: "own" (as the model initialises itself, each under a seed of its own) or
    "normal" (every parameter from N(0, 1), as in the group-privacy paper), or "public": trained on the server's
    `public_examples` with their labels, by settings chosen on these alone, so that it costs no privacy.
    """

    section: ClassVar[str] = "model"

    name: str
    start: Literal["own", "normal", "public"] = "own"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(factory_of(name), without=("input_shape", "outputs"))

    @model_validator(mode="before")
    @classmethod
    def _by_module(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "module" not in values:
            return values
        if "name" in values:
            raise FieldError("model.module", values["module"], "and model.name are two models: leave one out")
        if ":" not in str(values["module"]):
            raise FieldError("model.module", values["module"], 'must look like "package.module:Net"')
        return {("name" if k == "module" else k): v for k, v in values.items()}


class Pretraining(Section):
    """``[pretraining]``: the server trains the first model on its validation examples, as ``[local]`` says."""

    epochs: int


class Stopping(Section):
    """``[stopping]``: a share of the clients never trains; the run ends when their loss no longer falls.

    `clients` is that share. The other keys are those of `fedveil.engines.EarlyStopping` and, from `losses` on, of
    `fedveil.methods.Validation`.
    """

    clients: float
    patience: int = 5
    every: int = 1
    sample: int | None = None
    min_delta: float = 0.0
    losses: Literal["noised", "public"] = "noised"
    noise_multiplier: float = 5.0
    loss_range: float = 3.0
    releases: int = 20

    @model_validator(mode="after")
    def _check(self) -> Stopping:
        if not 0 < self.clients < 1:
            raise FieldError("stopping.clients", self.clients, "must be a share of the clients above 0 and below 1")
        self.build()
        return self

    def build(self) -> EarlyStopping:
        """The rule."""
        with fields_of("stopping"):
            how = {key: getattr(self, key) for key in ("losses", "noise_multiplier", "loss_range", "releases")}
            when = {key: getattr(self, key) for key in ("patience", "every", "sample", "min_delta")}
            return EarlyStopping(**when, validation=Validation(**how), twins=True)  # each example is dealt out once


class Randomness(Section):
    """``[source]``: reproducible noise for experiments, or secure noise to deploy.

    `seed` is for other noise on the same data, models and training; by default the run's own seed.
    """

    kind: Literal["reproducible", "secure"] = "reproducible"
    seed: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Randomness:
        if self.kind == "secure" and self.seed is not None:
            raise FieldError("source.seed", self.seed, "secure noise has no seed; leave it out")
        return self

    def build(self, seed: int) -> Source:
        """The source of the noise of a run with this seed."""
        own = seed if self.seed is None else self.seed
        return ReproducibleSource(own) if self.kind == "reproducible" else SecureSource()


class Setting(BaseModel):
    """One entry of ``[compare] settings``: a label and what differs from ``[privacy]``; `local` from ``[local]``.

    Parameters of ``[privacy]`` carry over where the method is the same, or where both trust the server. With
    `match_sigma_of`, the noise multiplier is set so that sigma equals the average sigma of an earlier setting.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    label: str = ""
    match_sigma_of: str = ""

    @property
    def overrides(self) -> dict[str, Any]:
        """Keys for ``[privacy]``."""
        return {key: value for key, value in (self.model_extra or {}).items() if key != "local"}

    @property
    def local(self) -> Any:
        """Keys for ``[local]``: a learning rate that suits noisy steps suits no others."""
        return (self.model_extra or {}).get("local", {})


class Comparison(Section):
    """``[compare]``: the settings; `equal_sigma` adds global DP at the average sigma of metric privacy.

    `sweep` lists values of privacy parameters; every setting is run at each combination of those its method has.
    """

    settings: Annotated[tuple[Setting, ...], Field(strict=False)] = ()
    equal_sigma: bool = False
    sweep: dict[str, Annotated[tuple[Any, ...], Field(strict=False)]] = Field(default_factory=dict)
