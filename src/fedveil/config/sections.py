"""The tables of an experiment's TOML file."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedveil.checks import Count, Natural
from fedveil.config.base import OpenSection, Section
from fedveil.config.options import Option, fields_of, options_of
from fedveil.data import NATURAL, SOURCES
from fedveil.engines.stopping import EarlyStopping
from fedveil.errors import FieldError, require_choice
from fedveil.learning.models import MODELS
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods import formerly
from fedveil.methods.publishing import Validation


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

    `alpha`, `shards` or `counts` of another partition are taken out with an empty list.

    Attributes
    ----------
    name
        a data set of `fedveil data list`
    clients
        number of clients, at least 1, or "natural": all natural clients of the set
    partition
        how examples are dealt out; "natural" beside a number of clients draws so many of the set's own
    alpha
        concentration of the Dirichlet partition, above 0; smaller is more uneven
    shards
        shards a client of that partition, at least 1
    min_size
        fewest examples of a client
    counts
        examples of each class, a list a client
    holdout
        share of each client's examples that it measures on, 0 to below 1
    region
        privacy-sensitive pixels: top, left, bottom, right, or several such
    sensitive
        kinds of sensitive pixels that the set knows, a list a client, in turn
    pixel_noise
        deviation of noise on the sensitive pixels that clients train on: a baseline, no guarantee
    made_up_people
        examples of each made-up person, drawn at random, for sets that do not say whose theirs are; 0: nobody. Results
        say so
    public_examples
        examples set aside for the server; at least 0
    patches
        number of patches, learned without labels on the public examples, whose features replace images
    components
        directions on which the patches' features are projected; of `patch_sizes` 128 unless given
    directions
        of those: principal directions of the public examples, or random ones
    patch_sizes
        edges in pixels of patches that are averaged over rings and whitened, e.g. `[1, 3]`
    validation
        share of the set's own test half that the server keeps, stratified, between 0 and 1; final figures are measured
        on the rest
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
    made_up_people: Natural = 0
    public_examples: Natural = 0
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
    def _check(self) -> "Data":
        if self.clients == NATURAL and self.partition != NATURAL:
            accepted = "natural clients are not dealt out: leave it out, or give a number of clients"
            raise FieldError("data.partition", self.partition, accepted)
        if self.components is not None and self.patches is None:
            raise FieldError("data.components", self.components, "are components of patches' features: set patches")
        if self.patch_sizes and (self.patches is None or self.directions != "public"):
            accepted = "are sizes of patches with public components as features: set patches, leave out directions"
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

    Attributes
    ----------
    name
        a model of the list below, or one of yours: `module = "package.module:Net"`
    start
        where hypotheses begin: as the model initialises itself, each under a seed of its own; every parameter from
        N(0, 1); or public: trained on `data.public_examples` by settings chosen on these alone, which costs no privacy
    """

    section: ClassVar[str] = "model"

    name: str
    start: Literal["own", "normal", "public"] = "own"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(MODELS.find(name), without=("input_shape", "outputs"))

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
    """``[pretraining]``: the server trains the first model on its validation examples, as ``[local]`` says.

    Attributes
    ----------
    epochs
        passes over the validation examples, at least 1
    """

    section: ClassVar[str] = "pretraining"

    epochs: Count


class Stopping(Section):
    """``[stopping]``: a share of the clients never trains; the run ends when their loss no longer falls.

    Attributes
    ----------
    clients
        share of the clients that never train, between 0 and 1
    patience
        validations without a lesser loss until the run ends; at least 1
    every
        rounds between two validations; at least 1
    sample
        validation clients asked at a time; left out: all
    min_delta
        how much less a loss has to be, in units of the loss
    losses
        noised, at a cost, or in the clear, without a promise to those clients
    noise_multiplier
        z: deviation of a loss's noise over its range; above 0
    loss_range
        R: losses are cut to [0, R], in units of the loss
    releases
        losses that one client releases at most; at least 1
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
    def _check(self) -> "Stopping":
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

    Attributes
    ----------
    kind
        reproducible noise for experiments (whoever knows the seed knows the noise), or secure noise
    seed
        of the noise alone, for other noise on the same training; left out: the run's own
    """

    kind: Literal["reproducible", "secure"] = "reproducible"
    seed: int | None = None

    @model_validator(mode="after")
    def _check(self) -> "Randomness":
        if self.kind == "secure" and self.seed is not None:
            raise FieldError("source.seed", self.seed, "secure noise has no seed; leave it out")
        return self

    def build(self, seed: int) -> Source:
        """The source of the noise of a run with this seed."""
        own = seed if self.seed is None else self.seed
        return ReproducibleSource(own) if self.kind == "reproducible" else SecureSource()


class Setting(BaseModel):
    """One entry of ``[compare] settings``: a label and what differs from ``[privacy]``; `local` from ``[local]``.

    Parameters of ``[privacy]`` carry over where the method is the same, or where both trust the server.

    Attributes
    ----------
    label
        names the setting
    match_sigma_of
        label of an earlier setting whose average sigma is taken: the noise multiplier follows from it
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
    """``[compare]``: what `fedveil compare` runs beside each other.

    Attributes
    ----------
    settings
        settings: a label, keys of [privacy] that differ, and a table `local` of [local]'s
    equal_sigma
        add global DP at the average sigma of metric privacy
    sweep
        lists of values by parameter of [privacy]; each setting is run at every combination of those its method has
    """

    settings: Annotated[tuple[Setting, ...], Field(strict=False)] = ()
    equal_sigma: bool = False
    sweep: dict[str, Annotated[tuple[Any, ...], Field(strict=False)]] = Field(default_factory=dict)

    def differing(self) -> dict[str, Any]:
        values = super().differing()
        return {
            **values,
            **({"settings": [formerly(one) for one in values["settings"]]} if "settings" in values else {}),
        }
