"""The configuration of an experiment: everything that may stand in its TOML file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from fedveil.accounting import Spend
from fedveil.aggregation import AGGREGATORS, Aggregator
from fedveil.data import SOURCES
from fedveil.errors import FieldError, require_choice, require_count, require_delta, require_positive
from fedveil.experiments.options import ConfigError, Option, check_options, fields_of, options_of, with_tables
from fedveil.experiments.study import DerivedGlobalDP
from fedveil.experiments.toml import dumps
from fedveil.learning import MODELS, LocalTraining
from fedveil.mechanisms import ReproducibleSource, SecureSource, Source
from fedveil.methods import METHODS, Broadcast, GlobalDP, Method, PublicFacts, build, parameters

Rows = Annotated[tuple[Annotated[tuple[int, ...], Field(strict=False)], ...], Field(strict=False)]


class Section(BaseModel):
    """A table of the file: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)


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


class Data(OpenSection):
    """``[data]``: a source of `fedveil.data` with its own options, and how it is dealt out to clients.

    `region` (top, left, bottom, right) marks the privacy-sensitive pixels and `public_examples` are set aside for the
    server; only FedRE uses them.
    """

    section: ClassVar[str] = "data"

    name: str
    clients: int
    partition: Literal["iid", "dirichlet", "counts"] = "iid"
    alpha: float | None = None
    min_size: int = 1
    counts: Rows | None = None
    holdout: float = 0.2
    region: Annotated[tuple[int, int, int, int], Field(strict=False)] | None = None
    public_examples: int = 0

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(SOURCES[require_choice("data.name", name, SOURCES)].load)


class Model(OpenSection):
    """``[model]``: a model of `fedveil.learning.MODELS` with its own options."""

    section: ClassVar[str] = "model"

    name: str

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(MODELS[require_choice("model.name", name, MODELS)], without=("input_shape", "outputs"))


class Rule(OpenSection):
    """``[aggregator]``: a rule of `fedveil.aggregation` with its own fields."""

    section: ClassVar[str] = "aggregator"

    name: str = "fedavg"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        return options_of(AGGREGATORS[require_choice("aggregator.name", name, AGGREGATORS)])

    def build(self) -> Aggregator:
        """The rule itself."""
        with fields_of("aggregator"):
            return AGGREGATORS[self.name](**self.options)


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


class Privacy(OpenSection):
    """``[privacy]``: a method of `fedveil.methods` with its parameters.

    `derived_from` names private runs that the parameters were computed from; the release is then a heuristic.
    """

    section: ClassVar[str] = "privacy"
    chooser: ClassVar[str] = "method"

    method: str = "vanilla"
    derived_from: str = ""
    budget: Budget = Field(default_factory=Budget)

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        owners = parameters(name)
        sides = {side: options_of(side, without=("aggregator",)) for side in owners.values()}
        return {key: sides[side][key] for key, side in owners.items() if key != "aggregator"}

    @property
    def trust(self) -> str:
        """Whether the method trusts the server ("central") or not ("local")."""
        return str(METHODS[self.method].client.trust)

    @property
    def may_be_proven(self) -> bool:
        """Whether a central method can have an epsilon (its rule may still take it away)."""
        sound = self.method == "metric" and self.options["distance_on"] == "released"
        return (self.method == "global" and not self.derived_from) or sound

    def build(self, rule: Rule | None) -> Method:
        """Both sides of the method, around a rule for those that take one."""
        aggregator = rule.build() if rule else None
        elsewhere = {key: f"aggregator.{key}" for key in (rule.options if rule else {})}
        own = {key: f"privacy.{key}" for key in self.options}
        with fields_of("privacy", **{**elsewhere, **own, "aggregator": "aggregator.name"}):
            method = build(self.method, aggregator, **with_tables(self.accepted(self.method), self.options))
            if not self.derived_from:
                return method
            if type(method.server) is not GlobalDP:
                raise FieldError("derived_from", self.derived_from, "is only for the method 'global'")
            values = {f.name: getattr(method.server, f.name) for f in fields(method.server)}
            return Method(method.name, method.client, DerivedGlobalDP(**values, derived_from=self.derived_from))


class Randomness(Section):
    """``[source]``: reproducible noise for experiments, or secure noise to deploy."""

    kind: Literal["reproducible", "secure"] = "reproducible"

    def build(self, seed: int) -> Source:
        """The source of the noise."""
        return ReproducibleSource(seed) if self.kind == "reproducible" else SecureSource()


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
    """``[compare]``: the settings; `equal_sigma` adds global DP at the average sigma of metric privacy."""

    settings: Annotated[tuple[Setting, ...], Field(strict=False)] = ()
    equal_sigma: bool = False


def _local(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    with fields_of("local"):
        return LocalTraining(**check_options("local", "local training", value, options_of(LocalTraining)))


Local = Annotated[LocalTraining, BeforeValidator(_local), PlainSerializer(asdict)]


class Config(Section):
    """A whole experiment."""

    name: str
    seed: int = 0
    rounds: int
    clients_per_round: int | None = None
    engine: Literal["local", "flower"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    threads: int = 1
    data: Data
    model: Model
    local: Local = Field(default_factory=LocalTraining)
    aggregator: Rule | None = None
    privacy: Privacy = Field(default_factory=Privacy)
    source: Randomness = Field(default_factory=Randomness)
    compare: Comparison = Field(default_factory=Comparison)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Name the rule where the method takes one."""
        if isinstance(values, Mapping) and values.get("aggregator") is None:
            privacy = values.get("privacy", {})
            given = privacy if isinstance(privacy, Mapping) else {"method": getattr(privacy, "method", "")}
            method = given.get("method", "vanilla")
            if method in METHODS and "aggregator" in parameters(method):
                return {**values, "aggregator": {}}
        return values

    @model_validator(mode="after")
    def _check(self) -> Config:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise FieldError("name", self.name, "names a folder: letters, digits, dots, dashes and underscores only")
        for field in ("rounds", "threads"):
            require_count(field, getattr(self, field))
        require_count("data.clients", self.data.clients)
        require_count("data.public_examples", self.data.public_examples, least=0)
        cohort = self.clients_per_round
        if cohort is not None and not 1 <= cohort <= self.data.clients:
            raise FieldError("clients_per_round", cohort, f"must be 1 to {self.data.clients}, the number of clients")
        self._check_privacy(self.privacy.build(self.aggregator))
        from fedveil.experiments.settings import check_settings

        check_settings(self)
        return self

    def _check_privacy(self, method: Method) -> None:
        budget, name = self.privacy.budget, self.privacy.method
        local = self._quoted(method) if self.privacy.trust == "local" else None
        if budget.epsilon is not None:
            proven = local.guarantee.proven if local else self.privacy.may_be_proven
            if not proven or (local and local.guarantee.epsilon_per_distance is not None):
                accepted = f"{name!r} as it is set has no epsilon to hold it to"
                raise FieldError("privacy.budget.epsilon", budget.epsilon, accepted)
        if budget.leakage_cap is not None and (local is None or local.leakage is None):
            accepted = f"{name!r} states no leakage to cap; cap participations instead"
            raise FieldError("privacy.budget.leakage_cap", budget.leakage_cap, accepted)
        needs = method.client.needs | method.server.needs
        if any(need.endswith("_scores") for need in needs) and self.data.region is None:
            raise FieldError("data.region", "missing", f"{name!r} needs [top, left, bottom, right] in pixels")
        if any(need.startswith("public_") for need in needs) and not self.data.public_examples:
            raise FieldError("data.public_examples", 0, f"the server of {name!r} needs some, e.g. 16")

    def _quoted(self, method: Method) -> Spend | None:
        """What a client of a local method would pay in the first round."""
        public = PublicFacts(round=1, rounds=self.rounds, cohort=self.data.clients, dimension=1)
        quoted = method.client.quote(Broadcast(models=torch.zeros(1, 1), public=public), method.client.init())
        return quoted if isinstance(quoted, Spend) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the file's shape: the options stand beside the name they belong to."""
        values = self.model_dump(exclude_none=True)
        for key in ("data", "model", "aggregator", "privacy"):
            if key in values:
                options = values[key].pop("options")
                budget = {k: values[key].pop(k) for k in ("budget",) if k in values[key]}
                values[key] = {**values[key], **options, **budget}
        if not values["privacy"]["derived_from"]:
            del values["privacy"]["derived_from"]
        if not self.compare.settings:
            del values["compare"]
        return values

    def to_toml(self) -> str:
        """The resolved configuration: enough to run the experiment again."""
        return dumps(self.to_dict())

    def fingerprint(self) -> str:
        """SHA-256 of the resolved configuration."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()


__all__ = ["Budget", "Comparison", "Config", "ConfigError", "Data", "Model", "Privacy", "Randomness", "Rule", "Setting"]
