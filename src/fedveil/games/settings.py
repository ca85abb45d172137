"""The settings of a game: the undefended federation, then the one of ``[privacy]``, or each of ``[compare]``."""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.config import Config
from fedveil.config.sections import Comparison, Randomness, Setting
from fedveil.config.variants import configure, variants_of
from fedveil.runs.prepare import resolve_device

VANILLA = "vanilla"


@dataclass(frozen=True)
class Planned:
    """One setting: its label, its configuration, and the setting whose average sigma it takes, or ""."""

    label: str
    config: Config
    matches: str = ""


def settings_of(config: Config, compare: bool) -> list[Planned]:
    """The undefended federation, then the one of ``[privacy]``, or each of ``[compare]``."""
    fixed = {"compare": Comparison(), "engine": "local", "device": resolve_device(config.device)}
    fixed["source"] = Randomness()
    single = config.model_copy(update=fixed)
    found = [Planned(config.privacy.method, single)]
    if compare:
        found = []
        for variant in variants_of(config):
            one = configure(config, variant.label, variant.setting).model_copy(update=fixed)
            found.append(Planned(variant.label, one, variant.setting.match_sigma_of))
    plain = [p for p in found if p.config.privacy.method == VANILLA]
    if not plain:
        plain = [Planned(VANILLA, configure(single, VANILLA, Setting.model_validate({"method": VANILLA})))]
    return [*plain, *(p for p in found if p not in plain)]
