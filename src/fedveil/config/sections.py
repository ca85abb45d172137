"""The tables of an experiment's TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedveil.aggregation import AGGREGATORS, NNM, Aggregator, Bucketing
from fedveil.config.options import Option, check_options, fields_of, options_of, with_tables
from fedveil.data import NATURAL, SOURCES
from fedveil.engines.stopping import EarlyStopping
from fedveil.errors import FieldError, require_choice, require_count, require_delta, require_positive
from fedveil.learning.models import factory_of
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods import METHODS, ClientSide, Method, build, parameters
from fedveil.methods.validating import Validation


def _clients(value: Any) -> Any:
    if value != NATURAL and (isinstance(value, bool) or not isinstance(value, int)):
        raise FieldError("data.clients", value, f"must be a whole number, or {NATURAL!r} for the set's own clients")
    return value


Clients = Annotated[int | Literal["natural"], BeforeValidator(_clients)]
Rows = Annotated[tuple[Annotated[tuple[int, ...], Field(strict=False)], ...], Field(strict=False)]


class Section(BaseModel):
    """A table of the file: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    def differing(self) -> dict[str, Any]:
        """Plain values of the keys that are not at their defaults."""
        own, found = self.model_dump(), {}
        for name, info in type(self).model_fields.items():
            value, default = getattr(self, name), info.get_default(call_default_factory=True)
            if value is not None and value != default:
                found[name] = value.differing() if isinstance(value, Section) else own[name]
        return found


class OpenSection(Section):
    """A table whose other keys belong to what it names; they end up in `options`, defaults filled in."""

    options: dict[str, Any] = Field(default_factory=dict)

    section: ClassVar[str]
    chooser: ClassVar[str] = "name"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        """The keys of what is named."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {**values.get("options", {}), **{k: v for k, v in values.items() if k not in cls.model_fields}}
        own = {k: v for k, v in values.items() if k in cls.model_fields and k != "options"}
        name = own.get(cls.chooser, cls.model_fields[cls.chooser].default)
        if not isinstance(name, str):
            return own
        beside = [field for field in cls.model_fields if field != "options"]
        return {**own, "options": check_options(cls.section, repr(name), given, cls.accepted(name), beside)}

    def differing(self) -> dict[str, Any]:
        name = str(getattr(self, self.chooser))
        defaults = {key: option.default for key, option in self.accepted(name).items()}
        options = {key: value for key, value in self.options.items() if value != defaults[key]}
        return {**super().differing(), self.chooser: name, "options": options}


class Data(OpenSection):
    """``[data]``: a source of `fedveil.data` with its own options, and how it is dealt out to clients.

    With `patches`, images become features of so many patches that are learned, without labels, on the public examples;
    with `components` they are projected on so many directions, the public examples' principal ones or random ones.
    `region` (top, left, bottom, right) marks the privacy-sensitive pixels, `sensitive` names the kinds of them that a
    set knows (a list a client, in turn), and `public_examples` are set aside for the server, for FedRE and `patches`.
    `validation` is the share of the set's own test half that the server keeps to itself, stratified; final figures are
    measured on the rest. ``clients = "natural"`` means all natural clients of the set (``partition = "natural"`` with a
    number draws so many), `min_size` the fewest examples of one. `alpha`, `shards` or `counts` of another partition are
    taken out with an empty list.
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
    region: Annotated[tuple[int, int, int, int], Field(strict=False)] | None = None
    sensitive: Annotated[tuple[Annotated[tuple[str, ...], Field(strict=False)], ...], Field(strict=False)] = ()
    public_examples: int = 0
    patches: int | None = None
    components: int | None = None
    directions: Literal["public", "random"] = "public"
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
    "normal" (every parameter from N(0, 1), as in the group-privacy paper).
    """

    section: ClassVar[str] = "model"

    name: str
    start: Literal["own", "normal"] = "own"

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


class Rule(OpenSection):
    """``[aggregator]``: a rule of `fedveil.aggregation` with its own fields, and what comes before it.

    `nnm` mixes updates with their nearest neighbours, for so many malicious clients; `buckets` takes means of so many.
    """

    section: ClassVar[str] = "aggregator"

    name: str = "fedavg"
    nnm: int | None = None
    buckets: int | None = None

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(AGGREGATORS[require_choice("aggregator.name", name, AGGREGATORS)])

    def build(self) -> Aggregator:
        """The rule itself."""
        with fields_of("aggregator"):
            rule = AGGREGATORS[self.name](**self.options)
        with fields_of("aggregator", malicious="aggregator.nnm", size="aggregator.buckets"):
            if self.nnm is not None:
                rule = NNM(rule, malicious=self.nnm)
            return rule if self.buckets is None else Bucketing(rule, size=self.buckets)


class Budget(Section):
    """``[privacy.budget]``: what stops a party, and the delta of every printed epsilon.

    `epsilon` (with `delta`) stops whoever adds the noise: the trusted server, or each client under local trust.
    `participations` and `leakage_cap` stop each client.
    """

    delta: float = 1e-5
    epsilon: float | None = None
    participations: int | None = None
    leakage_cap: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Budget:
        with fields_of("privacy.budget"):
            require_delta("delta", self.delta)
            for name in ("epsilon", "leakage_cap"):
                if getattr(self, name) is not None:
                    require_positive(name, getattr(self, name))
            if self.participations is not None:
                require_count("participations", self.participations)
        return self


class Own(BaseModel):
    """One of ``[[privacy.clients]]``: the partitions of some clients, and the parameters that are their own."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    partitions: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]


class Privacy(OpenSection):
    """``[privacy]``: a method of `fedveil.methods` with its parameters.

    ``[[privacy.clients]]`` gives the clients of some `partitions` other parameters of the method's client side.
    """

    section: ClassVar[str] = "privacy"
    chooser: ClassVar[str] = "method"

    method: str = "vanilla"
    budget: Budget = Field(default_factory=Budget)
    clients: Annotated[tuple[Own, ...], Field(strict=False)] = ()

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        owners = parameters(name)
        sides = {side: options_of(side, without=("aggregator",)) for side in owners.values()}
        return {key: sides[side][key] for key, side in owners.items() if key != "aggregator"}

    @property
    def trust(self) -> str:
        """Whether the method trusts the server ("central") or not ("local")."""
        return str(METHODS[self.method].client.trust)

    def build(self, rule: Rule | None) -> Method:
        """Both sides of the method, around a rule for those that take one."""
        aggregator = rule.build() if rule else None
        elsewhere = {key: f"aggregator.{key}" for key in (Rule.accepted(rule.name) if rule else ())}
        own = {key: f"privacy.{key}" for key in self.options}
        with fields_of("privacy", **{**elsewhere, **own, "aggregator": "aggregator.name"}):
            return build(self.method, aggregator, **with_tables(self.accepted(self.method), self.options))

    def client_sides(self, common: ClientSide) -> dict[int, ClientSide]:
        """The client sides of those who have parameters of their own, by partition.

        Parameters
        ----------
        common : ClientSide
            Everybody else's.

        Raises
        ------
        FieldError, ConfigError
            For a key that is none of the client side's, a refused value, or a partition that is named twice.
        """
        owners, every = parameters(self.method), self.accepted(self.method)
        accepted = {key: option for key, option in every.items() if owners[key] is METHODS[self.method].client}
        found: dict[int, ClientSide] = {}
        for i, own in enumerate(self.clients):
            where = f"privacy.clients[{i}]"
            given = own.model_extra or {}
            values = check_options(where, f"the client side of {self.method!r}", given, accepted)
            values = with_tables(accepted, {key: values[key] for key in given})
            with fields_of(where, **{key: f"{where}.{key}" for key in accepted}):
                side = replace(common, **values)  # type: ignore[type-var]
            for partition in own.partitions:
                if partition in found:
                    raise FieldError(f"{where}.partitions", partition, "stands there twice")
                found[partition] = side
        return found


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
            return EarlyStopping(**when, validation=Validation(**how))


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
    """One entry of ``[compare] settings``: a label and what differs from ``[privacy]``.

    Parameters of ``[privacy]`` carry over where the method is the same, or where both trust the server. With
    `match_sigma_of`, the noise multiplier is set so that sigma equals the average sigma of an earlier setting.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    label: str = ""
    match_sigma_of: str = ""

    @property
    def overrides(self) -> dict[str, Any]:
        """Keys for ``[privacy]``."""
        return dict(self.model_extra or {})


class Comparison(Section):
    """``[compare]``: the settings; `equal_sigma` adds global DP at the average sigma of metric privacy.

    `sweep` lists values of privacy parameters; every setting is run at each combination of those its method has.
    """

    settings: Annotated[tuple[Setting, ...], Field(strict=False)] = ()
    equal_sigma: bool = False
    sweep: dict[str, Annotated[tuple[Any, ...], Field(strict=False)]] = Field(default_factory=dict)
