"""Tables of data, model, aggregation rule, budget and privacy method: ``[data]``, ``[model]``, ``[privacy]`` and others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

from fedveil.aggregation import AGGREGATORS, NNM, Aggregator, Bucketing
from fedveil.checks import Blank, Count, Delta, Epsilon, Limit, Natural
from fedveil.data import NATURAL, SOURCES
from fedveil.errors import FieldError, require_choice
from fedveil.learning import MODELS, Unmarked, tuned
from fedveil.methods import METHODS, ClientSide, Method, build, formerly, parameters
from fedveil.registry import placed
from fedveil_lab.config.tables import (
    OpenSection,
    Option,
    Section,
    check_options,
    fields_of,
    options_of,
    with_tables,
)


def _clients(value: Any) -> Any:
    if value != NATURAL and (isinstance(value, bool) or not isinstance(value, int)):
        raise FieldError(
            "data.clients",
            value,
            f"must be a whole number, or {NATURAL!r} for the set's own clients",
        )
    return value


def _class_name(value: Any) -> Any:
    """Read a class by its name, or by its number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _region(value: Any) -> Any:
    """Read one rectangle, or several, as tuples; or names of columns."""
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        if len(set(value)) != len(value):
            raise FieldError("data.region", list(value), "must name each column once")
        return tuple(value)
    several = isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple)
    if several:
        rectangles = value
    else:
        rectangles = [value]
    for one in rectangles:
        if (
            not isinstance(one, list | tuple)
            or len(one) != 4
            or {type(side) for side in one} != {int}
        ):
            raise FieldError(
                "data.region",
                value,
                "must be [top, left, bottom, right] in pixels, a list of such, or a list of columns",
            )
    if several:
        return tuple(map(tuple, rectangles))
    return tuple(value)


Clients = Annotated[int | Literal["natural"], BeforeValidator(_clients)]
Rows = Annotated[tuple[Annotated[tuple[int, ...], Field(strict=False)], ...], Field(strict=False)]


class Data(OpenSection):
    """``[data]``: a source of `fedveil.data` with its own options, and how it is divided among clients.

    An empty list removes `alpha`, `shards` or `counts` when another partition is chosen.

    Attributes
    ----------
    name
        a data set of `fedveil data list`
    clients
        number of clients, at least 1, or "natural": all natural clients of the set
    partition
        how examples are dealt out; "natural" with a number of clients draws so many natural clients
    alpha
        concentration of the Dirichlet partition, above 0; smaller is more uneven
    shards
        shards of each client in the partition "shards", at least 1
    min_size
        fewest examples of a client
    counts
        examples of each class: one list for each client
    holdout
        held-out share of each client's examples, 0 to below 1
    region
        what is sensitive in each example: top, left, bottom, right in pixels, or several such; or names of a table's
        columns. `unit = "region"` protects it; methods that score layers (FedRE) score them on its pixels
    blanked
        constant that replaces the region in all examples, test examples too; a baseline without noise for
        `unit = "region"`
    sensitive
        kinds of the set's marks that each client uses: one list for each client; further clients begin at the first list again
    pixel_noise
        deviation of noise on the sensitive pixels that clients train on: a baseline, no guarantee
    made_up_people
        examples of each made-up person, drawn at random, for sets without persons; 0: no made-up persons. Results
        say so
    public_examples
        examples set aside for the server; at least 0
    patches
        number of patches that are learned without labels on the public examples; their features replace images
    components
        number of directions on which the patches' features are projected; with `patch_sizes` 128 by default
    directions
        kind of these directions: principal ones of the public examples, or random ones
    patch_sizes
        edges in pixels of patches that are averaged over rings and whitened, e.g. `[1, 3]`
    positive
        the positive class of two, by name, or by number without names; default: the second declared
    validation
        stratified share of the set's test half on which the server validates, between 0 and 1; final figures use the
        rest
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
    region: Annotated[tuple[Any, ...], BeforeValidator(_region)] | None = None
    blanked: Blank | None = None
    sensitive: Annotated[
        tuple[Annotated[tuple[str, ...], Field(strict=False)], ...], Field(strict=False)
    ] = ()
    pixel_noise: float = 0.0
    made_up_people: Natural = 0
    public_examples: Natural = 0
    patches: int | None = None
    components: int | None = None
    directions: Literal["public", "random"] = "public"
    patch_sizes: Annotated[tuple[int, ...], Field(strict=False)] = ()
    positive: Annotated[str | None, BeforeValidator(_class_name)] = None
    validation: float | None = None

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(SOURCES[require_choice("data.name", name, SOURCES)].load)

    @model_validator(mode="before")
    @classmethod
    def _by_nature(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        kept = dict(values)
        for key in ("alpha", "shards", "counts"):
            if kept.get(key) == []:
                del kept[key]
        if kept.get("clients") == NATURAL:
            kept = {"partition": NATURAL, **kept}
        return kept

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.clients == NATURAL and self.partition != NATURAL:
            accepted = (
                "natural clients are not dealt out: leave it out, or give a number of clients"
            )
            raise FieldError("data.partition", self.partition, accepted)
        if self.components is not None and self.patches is None:
            raise FieldError(
                "data.components",
                self.components,
                "are components of patches' features: set patches",
            )
        if self.patch_sizes and (self.patches is None or self.directions != "public"):
            accepted = "are sizes of patches with public components as features: set patches, leave out directions"
            raise FieldError("data.patch_sizes", self.patch_sizes, accepted)
        if self.blanked is not None and self.region is None:
            accepted = "replaces what data.region marks: name it, or leave this out"
            raise FieldError("data.blanked", self.blanked, accepted)
        return self

    @property
    def names_columns(self) -> bool:
        """Whether the region is of a table's columns."""
        return self.region is not None and isinstance(self.region[0], str)

    @property
    def planned(self) -> int | None:
        """Number of clients if it is known before the data are loaded, else None."""
        if self.clients == "natural":
            return None
        return self.clients


class Model(OpenSection):
    """``[model]``: a model of `fedveil.learning.MODELS` with its own options, or your own.

    ``module = "package.module:Net"`` also sets `name`. Runs are identified by the name, not by the content of the
    module's file. After a change of the file start a new run in another folder.

    Attributes
    ----------
    name
        a model of the list below, or one of yours: `module = "package.module:Net"`
    start
        first parameters. own: the model's own initialisation, a seed for each hypothesis. normal: each from N(0, 1).
        public: trained on `data.public_examples`, by settings chosen on these alone, which costs no privacy
    """

    section: ClassVar[str] = "model"

    name: str
    start: Literal["own", "normal", "public"] = "own"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        with fields_of("model"):
            found = MODELS.find(name)
        own = options_of(found, without=("input_shape", "outputs"))
        tuning = options_of(tuned, without=("model",))
        return {
            **{key: Option(option.hint) for key, option in tuning.items()},
            **own,
        }  # said only where it is given

    @model_validator(mode="before")
    @classmethod
    def _by_module(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "module" not in values:
            return values
        if "name" in values:
            raise FieldError(
                "model.module", values["module"], "and model.name are two models: leave one out"
            )
        if ":" not in str(values["module"]):
            raise FieldError(
                "model.module", values["module"], 'must look like "package.module:Net"'
            )
        named = dict(values)
        named["name"] = named.pop("module")
        return named

    def differing(self) -> dict[str, Any]:
        """Return plain values that differ from their defaults, without the module's place, which does not change the run."""
        _, module, attribute = placed(self.name)
        if attribute:
            name = f"{module}:{attribute}"
        else:
            name = self.name
        return {**super().differing(), "name": name}


LARGEST_DELTA = 0.1  # with a larger one even no noise has a small epsilon


class Rule(OpenSection):
    """``[aggregator]``: a rule of `fedveil.aggregation` with its own options, and the steps before it.

    Attributes
    ----------
    name
        a rule of the list below
    nnm
        nearest-neighbour mixing first, against so many malicious clients
    buckets
        means of so many updates first
    """

    section: ClassVar[str] = "aggregator"

    name: str = "fedavg"
    nnm: int | None = None
    buckets: int | None = None

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(AGGREGATORS[require_choice("aggregator.name", name, AGGREGATORS)])

    def build(self) -> Aggregator:
        """Make the aggregation rule."""
        with fields_of("aggregator"):
            rule = AGGREGATORS[self.name](**self.options)
        with fields_of("aggregator", malicious="aggregator.nnm", size="aggregator.buckets"):
            if self.nnm is not None:
                rule = NNM(rule, malicious=self.nnm)
            if self.buckets is not None:
                rule = Bucketing(rule, size=self.buckets)
            return rule


class Budget(Section):
    """``[privacy.budget]``: when a party stops, and the delta of every printed epsilon.

    Attributes
    ----------
    delta
        delta of every printed epsilon: the chance that it does not hold; above 0, at most 0.1, better below 1 / n
    epsilon
        total at which the party with the noise stops (the trusted server, else each client); above 0
    participations
        releases at which a client stops; at least 1
    leakage_cap
        summed leakage at which a client stops (d-privacy, group privacy); above 0
    """

    section: ClassVar[str] = "privacy.budget"

    delta: Delta = 1e-5
    epsilon: Epsilon | None = None
    participations: Count | None = None
    leakage_cap: Limit | None = None

    @model_validator(mode="after")
    def _check(self) -> "Budget":
        if self.delta > LARGEST_DELTA:
            accepted = f"is the chance that nothing is promised: at most {LARGEST_DELTA}, e.g. 1e-5"
            raise FieldError("privacy.budget.delta", self.delta, accepted)
        return self


class Own(BaseModel):
    """One entry of ``[[privacy.clients]]``: the partitions of some clients, and their own parameters.

    Attributes
    ----------
    partitions
        partitions of clients with their own parameters; these parameters are further keys of the table
    unmarked
        treatment of these clients if they mark nothing as sensitive; left out: as `scoring.unmarked`
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    partitions: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    unmarked: Unmarked | None = None

    @model_serializer
    def _given(self) -> dict[str, Any]:
        return {key: value for key, value in self if value is not None}


class Privacy(OpenSection):
    """``[privacy]``: a method of `fedveil.methods` with its parameters.

    ``[[privacy.clients]]`` sets other client-side parameters for the clients of some `partitions`.

    Attributes
    ----------
    method
        a method of the list below
    """

    section: ClassVar[str] = "privacy"
    chooser: ClassVar[str] = "method"

    method: str = "vanilla"
    budget: Budget = Field(default_factory=Budget)
    clients: Annotated[tuple[Own, ...], Field(strict=False)] = ()

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return {
            key: options_of(side)[key]
            for key, side in parameters(name).items()
            if key != "aggregator"
        }

    def differing(self) -> dict[str, Any]:
        values = super().differing()
        named = formerly({"method": values["method"], **values["options"]})
        return {**values, "method": named.pop("method"), "options": named}

    def build(self, rule: Rule | None) -> Method:
        """Make both sides of the method; methods that take an aggregation rule get `rule`."""
        aggregator, places = None, dict[str, str]()
        if rule is not None:
            aggregator = rule.build()
            places = {key: f"aggregator.{key}" for key in Rule.accepted(rule.name)}
        for key in self.options:
            places[key] = f"privacy.{key}"
        places["aggregator"] = "aggregator.name"
        with fields_of("privacy", **places):
            return build(
                self.method, aggregator, **with_tables(self.accepted(self.method), self.options)
            )

    def client_sides(self, common: ClientSide) -> dict[int, ClientSide]:
        """Make the client sides of clients with parameters of their own, by partition.

        Parameters
        ----------
        common : ClientSide
            Client side of all other clients.

        Raises
        ------
        FieldError, ConfigError
            If a key is not one of the client side, a value is refused, or a partition is named twice.
        """
        owners, every = parameters(self.method), self.accepted(self.method)
        accepted = {
            key: option
            for key, option in every.items()
            if owners[key] is METHODS[self.method].client
        }
        sides: dict[int, ClientSide] = {}
        for i, own in enumerate(self.clients):
            where = f"privacy.clients[{i}]"
            if own.unmarked is not None and "layer_scores" not in common.needs:
                raise FieldError(
                    f"{where}.unmarked", own.unmarked, f"{self.method!r} as set scores no marks"
                )
            given = own.model_extra or {}
            checked = check_options(where, f"the client side of {self.method!r}", given, accepted)
            values = with_tables(accepted, {key: checked[key] for key in given})
            places = {key: f"{where}.{key}" for key in accepted}
            with fields_of(where, **places):
                side = replace(common, **values)  # type: ignore[type-var]
            for partition in own.partitions:
                if partition in sides:
                    raise FieldError(f"{where}.partitions", partition, "stands there twice")
                sides[partition] = side
        return sides
