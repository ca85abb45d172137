"""List the settings of a comparison (``[compare]``), and make the configuration of each."""

import re
from collections.abc import Collection, Mapping, Sequence
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
    """One setting that a comparison runs, or one point of a parameter sweep.

    Attributes
    ----------
    label : str
        Label of the run.
    setting : Setting
        The setting, including the swept values.
    base : str
        Label of the setting in the file.
    swept : mapping
        Values of the swept parameters; empty without a sweep.
    """

    label: str
    setting: Setting
    base: str
    swept: Mapping[str, Any]


def variants_of(config: Config) -> list[Variant]:
    """List everything that a comparison runs, in order; without settings, the configuration's own method.

    A setting runs once for every combination of swept parameters. Parameters that its method lacks, or that it sets
    itself, are not swept. A setting that matches another's sigma runs once for every point of the other.
    """
    variants: list[Variant] = []
    for label, setting in _listed(config):
        if setting.match_sigma_of:
            variants += _matching(label, setting, variants)
            continue
        has = _parameters(config, setting)
        swept = {
            k: values
            for k, values in config.compare.sweep.items()
            if k in has and k not in setting.overrides
        }
        for values in product(*swept.values()):
            point = dict(zip(swept, values, strict=True))
            variants.append(_point(label, setting, point, point))
    return variants


def _listed(config: Config) -> list[tuple[str, Setting]]:
    """Return the settings with their labels; a setting of equal sigma comes last."""
    settings = config.compare.settings or (Setting(label=config.privacy.method),)
    listed = [(_label(config, setting), setting) for setting in settings]
    if config.compare.equal_sigma:
        metric = [label for label, setting in listed if _method(config, setting) == "metric"]
        if not metric:
            raise FieldError(
                "compare.equal_sigma", True, "needs a setting with the method 'metric'"
            )
        extra = {"label": EQUAL_SIGMA, "match_sigma_of": metric[0], "method": "global"}
        listed.append((EQUAL_SIGMA, Setting.model_validate(extra)))
    return listed


def _matching(label: str, setting: Setting, variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants of a setting that matches another's sigma: one for every point of the other."""
    points = []
    for other in variants:
        if other.base == setting.match_sigma_of and other.swept:
            points.append(_point(label, setting, other.swept, {"match_sigma_of": other.label}))
    return points or [Variant(label, setting, label, {})]


def configure(
    config: Config, label: str, setting: Setting, where: str = "compare", **forced: Any
) -> Config:
    """Make the configuration of one setting.

    Parameters
    ----------
    config : Config
        Configuration of the comparison.
    label : str
        Label of the run.
    setting : Setting
        Keys that differ from the comparison's.
    where : str
        Name of the setting in error messages.
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
    if method in METHODS and "aggregator" not in parameters(method):
        values.pop("aggregator", None)
    if setting.match_sigma_of:  # until the sigma is known
        forced = {"noise_multiplier": 1.0, "derived_from": setting.match_sigma_of, **forced}
    budget = base.budget.model_dump(exclude_none=True)
    if method != base.method or forced.get(
        "derived_from"
    ):  # a budget that only some methods can be held to
        budget = {key: budget[key] for key in ("delta", "participations") if key in budget}
    carried = _carried(config, setting)
    values["privacy"] = {
        "budget": budget,
        **carried,
        **setting.overrides,
        **forced,
        "method": method,
    }
    if not isinstance(setting.local, Mapping):
        raise ConfigError(
            [FieldError(f"{where}: local", setting.local, "must be a table, e.g. { lr = 0.5 }")]
        )
    values["local"] = {**values["local"], **setting.local}
    values["name"] = f"{config.name}-{slug(label)}"
    try:
        return type(config).model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in problems_of(error):
            problems.append(
                FieldError(f"{where}: {problem.field}", problem.value, problem.accepted)
            )
        raise ConfigError(problems) from error


def _carried(config: Config, setting: Setting) -> dict[str, Any]:
    """Return the keys of ``[privacy]`` that a setting keeps: those of the same method, or shared ones if both trust the server."""
    base, method = config.privacy, _method(config, setting)
    carried: dict[str, Any] = {}
    if method not in METHODS:
        return carried
    if method == base.method or (is_central(base.method) and is_central(method)):
        carried = {key: value for key, value in base.options.items() if key in parameters(method)}
    if "sum" in setting.overrides:
        carried = fitting({**carried, "sum": setting.overrides["sum"]})
    if method == base.method and base.clients:
        carried = {**carried, "clients": [own.model_dump() for own in base.clients]}
    return carried


def check_settings(config: Config) -> None:
    """Refuse settings that cannot run, before the first run starts."""
    if not config.compare.settings and not config.compare.equal_sigma and not config.compare.sweep:
        return
    _check_sweep(config)
    variants = variants_of(config)
    bases = list(dict.fromkeys(variant.base for variant in variants))
    seen: list[str] = []
    for variant in variants:
        label, setting = variant.label, variant.setting
        where = f"compare.settings[{bases.index(variant.base)}]"
        if slug(label) in map(slug, seen):
            raise FieldError(
                f"{where}.label", label, f"must differ from the others: {', '.join(seen)}"
            )
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
    """Name a swept key as the user wrote it, if a point's swept value caused the problem."""
    key = problem.field.rpartition("privacy.")[2]
    if key not in swept:
        return problem
    return FieldError(f"compare.sweep.{key}", problem.value, problem.accepted)


def slug(label: str) -> str:
    """Turn a label into the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "setting"


def _method(config: Config, setting: Setting) -> str:
    return str(setting.overrides.get("method", config.privacy.method))


def _label(config: Config, setting: Setting) -> str:
    return setting.label or _method(config, setting)


def _parameters(config: Config, setting: Setting) -> Collection[str]:
    method = _method(config, setting)
    if method in METHODS:
        return parameters(method)
    return ()


def _point(
    base: str, setting: Setting, swept: Mapping[str, Any], changes: Mapping[str, Any]
) -> Variant:
    """Make one point of a parameter sweep; without swept values, the setting itself."""
    if not swept:
        return Variant(base, setting, base, {})
    label = base
    for key, value in swept.items():
        if isinstance(value, float):
            shown = f"{value:g}"
        else:
            shown = str(value)
        label += f", {key}={shown}"
    made = {**setting.model_dump(exclude_defaults=True), **changes, "label": label}
    return Variant(label, Setting.model_validate(made), base, dict(swept))


def _check_sweep(config: Config) -> None:
    known: set[str] = set()
    for setting in config.compare.settings or (Setting(label=config.privacy.method),):
        if not setting.match_sigma_of:
            known |= set(_parameters(config, setting))
    known.discard("aggregator")
    for name, values in config.compare.sweep.items():
        if name not in known:
            accepted = f"is no parameter of a compared method; {nearest(name, known) if known else 'they have none'}"
            raise FieldError(f"compare.sweep.{name}", list(values), accepted)
        if not values:
            raise FieldError(f"compare.sweep.{name}", [], "needs at least one value")
