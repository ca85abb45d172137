"""The configuration of an experiment: everything that may stand in its TOML file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from fedveil.accounting import Spend
from fedveil.errors import FieldError, require_count
from fedveil.experiments.options import check_options, fields_of, options_of
from fedveil.experiments.sections import Comparison, Data, Model, Pretraining, Privacy, Randomness, Rule, Section
from fedveil.experiments.toml import dumps
from fedveil.learning import LocalTraining
from fedveil.methods import METHODS, Broadcast, Method, PublicFacts, Publishing, parameters


def _local(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    with fields_of("local"):
        return LocalTraining(**check_options("local", "local training", value, options_of(LocalTraining)))


def _publish(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    with fields_of("publish"):
        return Publishing(**check_options("publish", "published metrics", value, options_of(Publishing)))


Local = Annotated[LocalTraining, BeforeValidator(_local), PlainSerializer(asdict)]
Publish = Annotated[Publishing, BeforeValidator(_publish), PlainSerializer(asdict)]


class Config(Section):
    """A whole experiment."""

    name: str
    seed: int = 0
    rounds: int
    clients_per_round: int | None = None
    engine: Literal["local", "flower"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    workers: int = 1
    trainer: Literal["auto", "batched", "sequential"] = "auto"
    precision: Literal["full", "bfloat16"] = "full"
    data: Data
    model: Model
    pretraining: Pretraining | None = None
    local: Local = Field(default_factory=LocalTraining)
    aggregator: Rule | None = None
    privacy: Privacy = Field(default_factory=Privacy)
    publish: Publish = Field(default_factory=Publishing)
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
        for field in ("rounds", "workers"):
            require_count(field, getattr(self, field))
        require_count("seed", self.seed, least=0)
        planned = self.data.planned
        if planned is not None:
            require_count("data.clients", planned)
        require_count("data.public_examples", self.data.public_examples, least=0)
        cohort = self.clients_per_round
        if cohort is not None and not 1 <= cohort <= (planned or cohort):
            raise FieldError("clients_per_round", cohort, f"must be 1 to {planned or 'all'}, the number of clients")
        method = self.privacy.build(self.aggregator)
        if self.pretraining is not None:
            require_count("pretraining.epochs", self.pretraining.epochs)
            if self.data.validation is None:
                accepted = "the server has no examples to train on: set data.validation, e.g. 0.5"
                raise FieldError("pretraining.epochs", self.pretraining.epochs, accepted)
            if method.server.hypotheses != 1:
                raise FieldError("pretraining.epochs", self.pretraining.epochs, "is for methods with one model")
        self._check_privacy(method)
        self._check_publishing(method)
        from fedveil.experiments.settings import check_settings

        check_settings(self)
        return self

    def _check_privacy(self, method: Method) -> None:
        budget, name = self.privacy.budget, self.privacy.method
        local = self._quoted(method) if self.privacy.trust == "local" else None
        if budget.epsilon is not None:
            central = self.privacy.may_be_proven and getattr(method.server, "may_be_proven", False)
            proven = local.guarantee.proven if local else central
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

    def _check_publishing(self, method: Method) -> None:
        mode = self.publish.metrics
        if mode == "off":
            return
        if method.client.trust == "local":
            raise FieldError("publish.metrics", mode, "under local trust no metric leaves a client; set it to 'off'")
        if self.engine == "flower":
            accepted = "the Flower engine shows clients no metrics; set it to 'off', or engine to 'local'"
            raise FieldError("publish.metrics", mode, accepted)
        if not self.data.holdout:
            raise FieldError("publish.metrics", mode, "clients measure on what they hold out: set data.holdout")
        if mode == "clear" and self.privacy.budget.epsilon is not None:
            accepted = "clear metrics have no epsilon to hold to privacy.budget.epsilon; use 'noised' or 'off'"
            raise FieldError("publish.metrics", mode, accepted)

    def _quoted(self, method: Method) -> Spend | None:
        """What a client of a local method would pay in the first round."""
        public = PublicFacts(
            round=1, rounds=self.rounds, cohort=self.data.planned or self.clients_per_round or 1, dimension=1
        )
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
        if not self.compare.sweep:
            del values["compare"]["sweep"]
        if not self.compare.settings and not self.compare.sweep:
            del values["compare"]
        return values

    def to_toml(self) -> str:
        """The resolved configuration: enough to run the experiment again."""
        return dumps(self.to_dict())

    def fingerprint(self) -> str:
        """SHA-256 of the resolved configuration, whatever the number of workers: it changes no bit of a run."""
        return hashlib.sha256(self.model_copy(update={"workers": 1}).to_toml().encode()).hexdigest()
