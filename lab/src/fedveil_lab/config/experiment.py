"""The configuration of an experiment: everything that its TOML file may hold."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from fedveil.accounting import Spend
from fedveil.checks import Natural, Rounds, Workers
from fedveil.engines import client_sides_of
from fedveil.errors import FieldError, require_count
from fedveil.learning import LocalTraining, Scoring
from fedveil.methods import (
    METHODS,
    Broadcast,
    ClientSide,
    Method,
    PublicFacts,
    Publishing,
    fitting,
    is_central,
    parameters,
)
from fedveil.secure import FEWEST
from fedveil_lab.config.adversaries import Malicious
from fedveil_lab.config.course import Comparison, Pretraining, Randomness, Stopping
from fedveil_lab.config.sections import Data, Model, Privacy, Rule
from fedveil_lab.config.tables import Section, check_options, dumps, fields_of, options_of


def _table(section: str, owner: type[Any]) -> tuple[BeforeValidator, PlainSerializer]:
    """Read a dataclass of the core from a table, and write it as one."""

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        with fields_of(section):
            return owner(**check_options(section, f"[{section}]", value, options_of(owner)))

    return BeforeValidator(read), PlainSerializer(asdict)


def _planned(values: Any) -> Any:
    """Fill in rounds and number of sites of a record-level method from the rest of the file, if it leaves them out."""
    if isinstance(values, Mapping):
        privacy = values.get("privacy")
    else:
        privacy = None
    if not isinstance(privacy, Mapping) or privacy.get("method") != "record":
        return values
    data = values.get("data")
    silos = values.get("clients_per_round") or (
        data.get("clients") if isinstance(data, Mapping) else None
    )
    given = {**privacy.get("options", {}), **privacy}
    least = max(silos, FEWEST) if isinstance(silos, int) else silos
    known = {
        "rounds": values.get("rounds"),
        **fitting({"sum": given.get("sum"), "silos": silos, "least_sites": least}),
    }
    unsaid = {"rounds": None}  # the sites of a sum are 0 where nobody said how many
    filled = {
        k: v
        for k, v in known.items()
        if isinstance(v, int) and given.get(k) in (None, unsaid.get(k, 0))
    }
    return {**values, "privacy": {**privacy, **filled}}


class Config(Section):
    """Configuration of a whole experiment: all that its TOML file may hold.

    Attributes
    ----------
    name
        names the run and its folder: letters, digits, dots, dashes, underscores
    seed
        seed of data split, models, training, cohorts and reproducible noise; at least 0
    rounds
        rounds; at least 1
    clients_per_round
        clients drawn for each round, 1 to all; left out: all
    engine
        engine that moves the messages: the embedded one, or Flower
    device
        where clients train; auto: a GPU where there is one
    workers
        clients trained side by side, 1 to 1,024; changes no bit
    trainer
        many clients as one computation (batched), one after another, or whichever fits
    precision
        precision of training: float32, or bfloat16 on a GPU
    read_off
        keys whose values were read off the private data, such as "data.columns": promises are conditional on them
    metrics
        what is measured on held-out examples, of `fedveil.learning.METRICS`; left out: the task's usual ones

    Examples
    --------
    >>> digits = fv.config.load("digits-record")
    >>> digits.data.name, digits.privacy.method
    ('digits', 'record')
    >>> digits == fv.config.parse(digits.model_dump(exclude_unset=True))
    True
    """

    data_decide: ClassVar[bool] = True  # whether ``[data]`` says who takes part

    name: str
    seed: Natural = 0
    rounds: Rounds
    clients_per_round: int | None = None
    engine: Literal["local", "flower"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    workers: Workers = 1
    trainer: Literal["auto", "batched", "sequential"] = "auto"
    precision: Literal["full", "bfloat16"] = "full"
    data: Data
    model: Model
    pretraining: Pretraining | None = None
    local: Annotated[LocalTraining, *_table("local", LocalTraining)] = Field(
        default_factory=LocalTraining
    )
    aggregator: Rule | None = None
    privacy: Privacy = Field(default_factory=Privacy)
    publish: Annotated[Publishing, *_table("publish", Publishing)] = Field(
        default_factory=Publishing
    )
    scoring: Annotated[Scoring, *_table("scoring", Scoring)] = Field(default_factory=Scoring)
    stopping: Stopping | None = None
    metrics: Annotated[tuple[str, ...], Field(strict=False)] = ()
    read_off: Annotated[tuple[str, ...], Field(strict=False)] = ()
    malicious: Malicious | None = None
    source: Randomness = Field(default_factory=Randomness)
    compare: Comparison = Field(default_factory=Comparison)

    @property
    def data_seed(self) -> int:
        """Seed of the data split, of public and validation examples, and of a first model that the server trains."""
        return self.seed

    @property
    def as_dealt(self) -> bool:
        """Whether all clients of ``[data]`` train, numbered as the data set numbers them."""
        return self.data_decide and self.stopping is None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Fill in the aggregation rule, and planned rounds and silos, for methods that need them."""
        values = _planned(values)
        if isinstance(values, Mapping) and values.get("aggregator") is None:
            privacy = values.get("privacy", {})
            if isinstance(privacy, Mapping):
                given = privacy
            else:
                given = {"method": getattr(privacy, "method", "")}
            method = given.get("method", "vanilla")
            if isinstance(method, str) and method in METHODS and "aggregator" in parameters(method):
                return {**values, "aggregator": {}}
        return values

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise FieldError(
                "name",
                self.name,
                "names a folder: letters, digits, dots, dashes and underscores only",
            )
        planned = self.data.planned
        if planned is not None:
            require_count("data.clients", planned)
        cohort = self.clients_per_round
        if cohort is not None and not 1 <= cohort <= (planned or cohort):
            raise FieldError(
                "clients_per_round",
                cohort,
                f"must be 1 to {planned or 'all'}, the number of clients",
            )
        method = self.privacy.build(self.aggregator)
        if self.pretraining is not None:
            if self.data.validation is None:
                accepted = "the server has no examples to train on: set data.validation, e.g. 0.5"
                raise FieldError("pretraining.epochs", self.pretraining.epochs, accepted)
            if method.server.hypotheses != 1:
                raise FieldError(
                    "pretraining.epochs", self.pretraining.epochs, "is for methods with one model"
                )
        if self.malicious is not None and planned is not None and self.stopping is None:
            self.malicious.who(planned, self.seed)
        sides, sites = self._client_sides(method), cohort or planned
        if method.noisy is not None and sites is not None and self.as_dealt:
            method.noisy.require_sites(
                sites, "data.clients" if cohort is None else "clients_per_round"
            )
        for client in (method.client, *sides.values()):
            self._check_privacy(replace(method, client=client))
        self._check_publishing(method)
        return self

    def _client_sides(self, method: Method) -> dict[int, ClientSide]:
        sides, planned = self.privacy.client_sides(method.client), self.data.planned
        if sides and not self.as_dealt:
            accepted = "do not go together with [stopping] or an audit's world, which number the clients anew"
            raise FieldError("privacy.clients", sorted(sides), accepted)
        with fields_of("privacy", client_sides="privacy.clients"):
            return client_sides_of(
                method, sides, max(sides, default=0) + 1 if planned is None else planned
            )

    def _check_privacy(self, method: Method) -> None:
        budget, name = self.privacy.budget, self.privacy.method
        if is_central(self.privacy.method):
            local = None
        else:
            local = self._quoted(method)
        if budget.epsilon is not None:
            central = method.client.trust == "central" and method.server.may_be_proven
            if local:
                proven = local.guarantee.proven
            else:
                proven = central
            if not proven or (local and local.guarantee.by_distance):
                accepted = f"{name!r} as it is set has no epsilon to hold it to"
                raise FieldError("privacy.budget.epsilon", budget.epsilon, accepted)
        if budget.leakage_cap is not None and (local is None or local.leakage is None):
            accepted = f"{name!r} states no leakage to cap; cap participations instead"
            raise FieldError("privacy.budget.leakage_cap", budget.leakage_cap, accepted)
        needs = method.client.needs | method.server.needs
        marked = self.data.region is not None or self.data.sensitive or self.scoring.pixels == "all"
        if any(need.endswith("_scores") for need in needs) and not marked:
            accepted = f"{name!r} needs [top, left, bottom, right] in pixels, or data.sensitive"
            raise FieldError("data.region", None, accepted)
        if any(need.endswith("layer_scores") for need in needs) and self.data.names_columns:
            accepted = f"{name!r} scores layers on pixels: [top, left, bottom, right]"
            raise FieldError("data.region", list(self.data.region or ()), accepted)
        if self.scoring.every > 1 and self.clients_per_round not in (None, self.data.planned):
            accepted = "must be 1 where cohorts are drawn: a client that is new to the run has no scores to use again"
            raise FieldError("scoring.every", self.scoring.every, accepted)
        if any(need.startswith("public_") for need in needs) and not self.data.public_examples:
            raise FieldError(
                "data.public_examples", 0, f"the server of {name!r} needs some, e.g. 16"
            )

    def _check_publishing(self, method: Method) -> None:
        mode = self.publish.metrics
        if mode == "off":
            return
        if method.client.trust != "central":
            raise FieldError(
                "publish.metrics",
                mode,
                "under local trust no metric leaves a client; set it to 'off'",
            )
        if not self.data.holdout:
            raise FieldError(
                "publish.metrics", mode, "clients measure on what they hold out: set data.holdout"
            )
        if mode == "clear" and self.privacy.budget.epsilon is not None:
            accepted = "clear metrics have no epsilon to hold to privacy.budget.epsilon; use 'noised' or 'off'"
            raise FieldError("publish.metrics", mode, accepted)

    def _quoted(self, method: Method) -> Spend | None:
        """Return the privacy cost of the first round for a client of a local method; None for others."""
        cohort = self.data.planned or self.clients_per_round or 1
        public = PublicFacts(round=1, rounds=self.rounds, cohort=cohort, dimension=1)
        quoted = method.client.quote(
            Broadcast(models=torch.zeros(1, 1), public=public), method.client.init()
        )
        if isinstance(quoted, Spend):
            return quoted
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the file's shape: options stand beside the name they belong to."""
        values = super().to_dict()
        if "scoring" not in self.differing():
            del values["scoring"]
        if not self.compare.differing():
            del values["compare"]
        return values

    def to_toml(self) -> str:
        """Write the resolved configuration, which is enough to run the experiment again."""
        return dumps(self.to_dict())

    def differing(self) -> dict[str, Any]:
        """Return plain values of the keys that differ from their defaults, without `workers`, which does not change results."""
        changed = super().differing()
        for key, standard in (
            ("local", LocalTraining()),
            ("publish", Publishing()),
            ("scoring", Scoring()),
        ):
            values, defaults = asdict(getattr(self, key)), asdict(standard)
            changed[key] = {
                name: value for name, value in values.items() if value != defaults[name]
            }
        return {
            key: value
            for key, value in changed.items()
            if key != "workers" and value not in ({}, ())
        }

    def common(self) -> dict[str, Any]:
        """Return plain values that runs must share to be compared: all but the seed and the noise source."""
        values = self.differing()
        values.pop("seed", None)
        values.pop("source", None)
        return values

    def fingerprint(self) -> str:
        """Return the SHA-256 of all keys that differ from their defaults. New options in later versions do not change it."""
        return hashlib.sha256(json.dumps(self.differing(), sort_keys=True).encode()).hexdigest()
