"""The settings of a comparison: one configuration each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedveil.errors import FieldError, nearest, require_choice
from fedveil.experiments.options import ConfigError, problems_of
from fedveil.experiments.sections import Setting
from fedveil.methods import METHODS, parameters

if TYPE_CHECKING:
    from fedveil.experiments.config import Config

EQUAL_SIGMA = "global (equal sigma)"


def settings_of(config: Config) -> list[tuple[str, Setting]]:
    """Labels and settings of a comparison, in order; without any, the configuration's own method is the only one."""
    listed = list(config.compare.settings) or [Setting(label=config.privacy.method)]
    settings = [(s.label or str(s.overrides.get("method", config.privacy.method)), s) for s in listed]
    if config.compare.equal_sigma:
        metric = [label for label, s in settings if _method(config, s) == "metric"]
        if not metric:
            raise FieldError("compare.equal_sigma", True, "needs a setting with the method 'metric'")
        extra = Setting.model_validate({"label": EQUAL_SIGMA, "match_sigma_of": metric[0], "method": "global"})
        settings.append((EQUAL_SIGMA, extra))
    return settings


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
    from fedveil.experiments.config import Config

    base, method = config.privacy, _method(config, setting)
    values = config.to_dict()
    values.pop("compare", None)
    if method in METHODS:
        central = base.trust == METHODS[method].client.trust == "central"
        shared = {k: v for k, v in base.options.items() if k in parameters(method)}
        carried = shared if method == base.method or central else {}
        if "aggregator" not in parameters(method):
            values.pop("aggregator", None)
    else:
        carried = {}
    budget = base.budget.model_dump(exclude_none=True)
    if method != base.method or forced.get("derived_from"):  # a budget that only some methods can be held to
        budget = {key: budget[key] for key in ("delta", "participations") if key in budget}
    values["privacy"] = {"budget": budget, **carried, **setting.overrides, **forced, "method": method}
    values["name"] = f"{config.name}-{slug(label)}"
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problems = problems_of(error)
        raise ConfigError([FieldError(f"{where}: {p.field}", p.value, p.accepted) for p in problems]) from error


def check_settings(config: Config) -> None:
    """Refuse settings that cannot run, before the first of them does."""
    if not config.compare.settings and not config.compare.equal_sigma:
        return
    seen: list[str] = []
    for index, (label, setting) in enumerate(settings_of(config)):
        where = f"compare.settings[{index}]"
        if slug(label) in map(slug, seen):
            raise FieldError(f"{where}.label", label, f"must differ from the others: {', '.join(seen)}")
        if setting.match_sigma_of:
            require_choice(f"{where}.method", _method(config, setting), ["global"])
            if setting.match_sigma_of not in seen:
                accepted = f"must be the label of an earlier setting; {nearest(setting.match_sigma_of, seen)}"
                raise FieldError(f"{where}.match_sigma_of", setting.match_sigma_of, accepted)
        configure(config, label, setting, where)
        seen.append(label)


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "setting"


def labels_of(config: Config) -> Sequence[str]:
    """The labels of a comparison, in order."""
    return [label for label, _ in settings_of(config)]


def _method(config: Config, setting: Setting) -> str:
    return str(setting.overrides.get("method", config.privacy.method))
