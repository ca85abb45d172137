"""``[compare]``: the settings of a comparison, and the configuration of each."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import ValidationError

from fedveil.errors import FieldError, nearest, require_choice
from fedveil.methods import METHODS, fitting, is_central, parameters
from fedveil_lab.config.course import Setting
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.tables import ConfigError, problems_of

EQUAL_SIGMA = "global (equal sigma)"


@dataclass(frozen=True)
class Variant:
    """What a comparison runs: a setting, or one point of a swept one.

    Attributes
    ----------
    label : str
        Of the run.
    setting : Setting
        With the swept values in it.
    base : str
        Label of the setting as it was written.
    swept : mapping
        The values of what is swept; empty where nothing is.
    """

    label: str
    setting: Setting
    base: str
    swept: Mapping[str, Any]


def variants_of(config: Config) -> list[Variant]:
    """Everything that a comparison runs, in order; without settings, the configuration's own method.

    A setting is run once for every combination of the swept parameters that its method has and that it does not set
    itself; one that matches the sigma of another, once for every point of that other.
    """
    listed = [(_label(config, s), s) for s in config.compare.settings or (Setting(label=config.privacy.method),)]
    if config.compare.equal_sigma:
        metric = [label for label, s in listed if _method(config, s) == "metric"]
        if not metric:
            raise FieldError("compare.equal_sigma", True, "needs a setting with the method 'metric'")
        extra = {"label": EQUAL_SIGMA, "match_sigma_of": metric[0], "method": "global"}
        listed.append((EQUAL_SIGMA, Setting.model_validate(extra)))
    variants: list[Variant] = []
    for label, setting in listed:
        if setting.match_sigma_of:
            matched = [v for v in variants if v.base == setting.match_sigma_of and v.swept]
            variants += [_point(label, setting, v.swept, {"match_sigma_of": v.label}) for v in matched]
            variants += [] if matched else [Variant(label, setting, label, {})]
            continue
        names = [k for k in config.compare.sweep if k not in setting.overrides and k in _parameters(config, setting)]
        for values in product(*(config.compare.sweep[name] for name in names)):
            swept = dict(zip(names, values, strict=True))
            variants.append(_point(label, setting, swept, swept))
    return variants


def configure(config: Config, label: str, setting: Setting, where: str = "compare", **forced: Any) -> Config:
    """The configuration of one setting.

    Parameters
    ----------
    config : Config
        Of the comparison.
    label : str
        Names the run.
    setting : Setting
        What differs.
    where : str
        Names the setting in a refusal.
    **forced
        Keys of ``[privacy]`` that override all others.

    Raises
    ------
    ConfigError
        If the setting does not fit.
    """
    base, method = config.privacy, _method(config, setting)
    values = config.to_dict()
    values.pop("compare", None)
    if method in METHODS:
        central = is_central(base.method) and is_central(method)
        shared = {k: v for k, v in base.options.items() if k in parameters(method)}
        carried = shared if method == base.method or central else {}
        if "sum" in setting.overrides:
            carried = fitting({**carried, "sum": setting.overrides["sum"]})
        if "aggregator" not in parameters(method):
            values.pop("aggregator", None)
    else:
        carried = {}
    if setting.match_sigma_of:  # until the sigma is known
        forced = {"noise_multiplier": 1.0, "derived_from": setting.match_sigma_of, **forced}
    budget = base.budget.model_dump(exclude_none=True)
    if method != base.method or forced.get("derived_from"):  # a budget that only some methods can be held to
        budget = {key: budget[key] for key in ("delta", "participations") if key in budget}
    if method == base.method and base.clients:
        carried = {**carried, "clients": [own.model_dump() for own in base.clients]}
    values["privacy"] = {"budget": budget, **carried, **setting.overrides, **forced, "method": method}
    if not isinstance(setting.local, Mapping):
        raise ConfigError([FieldError(f"{where}: local", setting.local, "must be a table, e.g. { lr = 0.5 }")])
    values["local"] = {**values["local"], **setting.local}
    values["name"] = f"{config.name}-{slug(label)}"
    try:
        return type(config).model_validate(values)
    except ValidationError as error:
        problems = problems_of(error)
        raise ConfigError([FieldError(f"{where}: {p.field}", p.value, p.accepted) for p in problems]) from error


def check_settings(config: Config) -> None:
    """Refuse settings that cannot run, before the first of them does."""
    if not config.compare.settings and not config.compare.equal_sigma and not config.compare.sweep:
        return
    _check_sweep(config)
    variants = variants_of(config)
    bases = list(dict.fromkeys(v.base for v in variants))
    seen: list[str] = []
    for variant in variants:
        label, setting = variant.label, variant.setting
        where = f"compare.settings[{bases.index(variant.base)}]"
        if slug(label) in map(slug, seen):
            raise FieldError(f"{where}.label", label, f"must differ from the others: {', '.join(seen)}")
        if setting.match_sigma_of:
            require_choice(f"{where}.method", _method(config, setting), ["global"])
            if setting.match_sigma_of not in seen:
                accepted = f"must be the label of an earlier setting; {nearest(setting.match_sigma_of, seen)}"
                raise FieldError(f"{where}.match_sigma_of", setting.match_sigma_of, accepted)
        try:
            configure(config, label, setting, where)
        except ConfigError as error:
            if not variant.swept:
                raise
            swept = [_of_sweep(problem, variant.swept) for problem in error.problems]
            raise ConfigError(swept) from error
        seen.append(label)


def _of_sweep(problem: FieldError, swept: Mapping[str, Any]) -> FieldError:
    """A problem of one point under the name that the user wrote, if the point's own value is what does not fit."""
    key = problem.field.rpartition("privacy.")[2]
    return FieldError(f"compare.sweep.{key}", problem.value, problem.accepted) if key in swept else problem


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "setting"


def _method(config: Config, setting: Setting) -> str:
    return str(setting.overrides.get("method", config.privacy.method))


def _label(config: Config, setting: Setting) -> str:
    return setting.label or _method(config, setting)


def _parameters(config: Config, setting: Setting) -> Collection[str]:
    method = _method(config, setting)
    return parameters(method) if method in METHODS else ()


def _point(base: str, setting: Setting, swept: Mapping[str, Any], changes: Mapping[str, Any]) -> Variant:
    """One point of a swept setting; without anything swept, the setting itself."""
    if not swept:
        return Variant(base, setting, base, {})
    shown = ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in swept.items())
    label = f"{base}, {shown}"
    made = {**setting.model_dump(exclude_defaults=True), **changes, "label": label}
    return Variant(label, Setting.model_validate(made), base, dict(swept))


def _check_sweep(config: Config) -> None:
    settings = config.compare.settings or (Setting(label=config.privacy.method),)
    known = {k for s in settings if not s.match_sigma_of for k in _parameters(config, s)} - {"aggregator"}
    for name, values in config.compare.sweep.items():
        if name not in known:
            accepted = f"is no parameter of a compared method; {nearest(name, known) if known else 'they have none'}"
            raise FieldError(f"compare.sweep.{name}", list(values), accepted)
        if not values:
            raise FieldError(f"compare.sweep.{name}", [], "needs at least one value")
