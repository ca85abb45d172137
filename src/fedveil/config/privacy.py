"""``[aggregator]`` and ``[privacy]``: the rule, the method around it, and what stops a party."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from fedveil.aggregation import AGGREGATORS, NNM, Aggregator, Bucketing
from fedveil.checks import Count, Delta, Positive
from fedveil.config.base import OpenSection, Section
from fedveil.config.options import Option, check_options, fields_of, options_of, with_tables
from fedveil.errors import FieldError, require_choice
from fedveil.learning.learner import Unmarked
from fedveil.methods import METHODS, ClientSide, Method, build, formerly, is_central, parameters

LARGEST_DELTA = 0.1  # with a larger one even no noise has a small epsilon


class Rule(OpenSection):
    """``[aggregator]``: a rule of `fedveil.aggregation` with its own fields, and what comes before it.

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
        """The rule itself."""
        with fields_of("aggregator"):
            rule = AGGREGATORS[self.name](**self.options)
        with fields_of("aggregator", malicious="aggregator.nnm", size="aggregator.buckets"):
            if self.nnm is not None:
                rule = NNM(rule, malicious=self.nnm)
            return rule if self.buckets is None else Bucketing(rule, size=self.buckets)


class Budget(Section):
    """``[privacy.budget]``: what stops a party, and the delta of every printed epsilon.

    Attributes
    ----------
    delta
        of every printed epsilon: the chance that it does not hold; above 0, at most 0.1, better below 1 / n
    epsilon
        total at which whoever adds the noise stops (the trusted server, or each client under local trust); above 0
    participations
        releases at which a client stops; at least 1
    leakage_cap
        summed leakage at which a client stops (d-privacy, group privacy); above 0
    """

    section: ClassVar[str] = "privacy.budget"

    delta: Delta = 1e-5
    epsilon: Positive | None = None
    participations: Count | None = None
    leakage_cap: Positive | None = None

    @model_validator(mode="after")
    def _check(self) -> "Budget":
        if self.delta > LARGEST_DELTA:
            accepted = f"is the chance that nothing is promised: at most {LARGEST_DELTA}, e.g. 1e-5"
            raise FieldError("privacy.budget.delta", self.delta, accepted)
        return self


class Own(BaseModel):
    """One of ``[[privacy.clients]]``: the partitions of some clients, and the parameters that are their own.

    Attributes
    ----------
    partitions
        the clients with parameters of their own, which stand beside it
    unmarked
        what they do where they mark nothing as sensitive; left out: as `scoring.unmarked`
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    partitions: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]
    unmarked: Unmarked | None = None

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Privacy(OpenSection):
    """``[privacy]``: a method of `fedveil.methods` with its parameters.

    ``[[privacy.clients]]`` gives the clients of some `partitions` other parameters of the method's client side.

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
        owners = parameters(name)
        sides = {side: options_of(side, without=("aggregator",)) for side in owners.values()}
        return {key: sides[side][key] for key, side in owners.items() if key != "aggregator"}

    @property
    def central(self) -> bool:
        """Whether the method trusts the server."""
        return is_central(self.method)

    def differing(self) -> dict[str, Any]:
        values = super().differing()
        named = formerly({"method": values["method"], **values["options"]})
        return {**values, "method": named.pop("method"), "options": named}

    def build(self, rule: Rule | None) -> Method:
        """Both sides of the method, around a rule for those that take one."""
        aggregator = rule.build() if rule else None
        elsewhere = {key: f"aggregator.{key}" for key in (Rule.accepted(rule.name) if rule else ())}
        own = {key: f"privacy.{key}" for key in self.options}
        with fields_of("privacy", **{**elsewhere, **own, "aggregator": "aggregator.name"}):
            return build(self.method, aggregator, **with_tables(self.accepted(self.method), self.options))

    @property
    def unmarked(self) -> dict[int, str]:
        """What clients of their own choice do that mark nothing, by partition."""
        return {p: own.unmarked for own in self.clients if own.unmarked is not None for p in own.partitions}

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
        sides: dict[int, ClientSide] = {}
        for i, own in enumerate(self.clients):
            where = f"privacy.clients[{i}]"
            if own.unmarked is not None and "layer_scores" not in common.needs:
                raise FieldError(f"{where}.unmarked", own.unmarked, f"{self.method!r} as set scores no marks")
            given = own.model_extra or {}
            values = check_options(where, f"the client side of {self.method!r}", given, accepted)
            values = with_tables(accepted, {key: values[key] for key in given})
            with fields_of(where, **{key: f"{where}.{key}" for key in accepted}):
                side = replace(common, **values)  # type: ignore[type-var]
            for partition in own.partitions:
                if partition in sides:
                    raise FieldError(f"{where}.partitions", partition, "stands there twice")
                sides[partition] = side
        return sides
