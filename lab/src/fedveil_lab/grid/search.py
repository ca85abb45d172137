"""Choose among private settings at no privacy cost, by runs on synthetic or public rows.

Whoever sees several private runs is exposed to the privacy cost of all of them, and their held-out figures have no
noise. So private runs are not read here. Private selection (arXiv 1811.07971, 2110.03620) needs a server that hides all
runs but one, and their number. A user who compares settings sees all runs, so it is not offered.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from fedveil.errors import FieldError, require_count
from fedveil_lab import runs
from fedveil_lab.config import Config, load, parse
from fedveil_lab.config.foresight import REACH, made_up
from fedveil_lab.config.variants import Variant, configure, variants_of
from fedveil_lab.runs.foreseen import noisy_side, private_numbers, shape_of
from fedveil_lab.runs.prepare import Setup
from fedveil_lab.runs.promised import prepared, promised
from fedveil_lab.runs.summary import Summary

By = Literal["rehearsal", "public"]
ROWS = {"rehearsal": "made-up rows of the declared shape", "public": "public rows"}
SHARED = ("clients", "partition", "holdout", "positive")  # of [data], what a rehearsal keeps


@dataclass(frozen=True)
class Chosen:
    """The chosen setting, and how it was chosen.

    Attributes
    ----------
    label : str
        Label of the best setting.
    scores : mapping of str to float
        Score of each setting, as the mean over seeds: balanced accuracy (or accuracy), or minus the RMSE.
    by : {"rehearsal", "public"}
        Kind of rows on which it was chosen: synthetic or public.
    read : tuple of str
        Private numbers on which the choice depends; empty if there are none.

    Examples
    --------
    >>> print(fv.Chosen(label="slow", scores={"slow": 0.9, "fast": 0.8}, by="public", read=()))
    chosen on public rows: slow (slow 0.900, fast 0.800); which costs no privacy
    """

    label: str
    scores: Mapping[str, float]
    by: By
    read: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{label} {score:.3f}" for label, score in self.scores.items())
        free = "which costs no privacy"
        if self.read:
            free = f"conditional: choices made on private numbers ({', '.join(self.read)})"
        return f"chosen on {ROWS[self.by]}: {self.label} ({shown}); {free}"


def search(
    config: Config | str | Path,
    by: By = "rehearsal",
    *,
    seeds: int = 1,
    reach: float | None = None,
) -> Chosen:
    """Choose the best private setting of a comparison without using private rows.

    Parameters
    ----------
    config : Config, str or path
        Comparison whose settings (``[compare]``) promise the same total epsilon and differ in their training.
    by : {"rehearsal", "public"}
        Synthetic rows of the declared shape, or ``data.public_examples``; the number of clients stays the same.
    seeds : int
        Number of runs per setting.
    reach : float, optional
        Score that is possible without privacy in the synthetic task. Default: that of an easy task.

    Returns
    -------
    Chosen
        The best setting, and the basis of the choice.

    Raises
    ------
    FieldError
        If there are fewer than two private settings with one promise, no public rows, or `by` is unknown.

    Examples
    --------
    >>> try:
    ...     fv.search("digits-record", by="private")
    ... except fv.FieldError as error:
    ...     print(error.field)
    by
    """
    if by not in get_args(By):
        why = "figures of private runs have no noise, and no total covers them"
        raise FieldError("by", by, f"{why}; accepted, and free: {', '.join(get_args(By))}")
    require_count("seeds", seeds)
    if not isinstance(config, Config):
        config = load(str(config))
    variants = _private(config)
    setup = prepared(config)
    _same_promise(config, variants)
    scores: dict[str, list[float]] = {variant.label: [] for variant in variants}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(config.seed, config.seed + seeds):
            file = Path(folder) / f"{seed}.npz"
            _write(file, setup, by, reach, seed)
            for variant in variants:
                single = configure(config, variant.label, variant.setting)
                played = _on(single, file, setup, seed)
                scores[variant.label].append(_score(runs.run(played, None)))
    means = {label: fmean(own) for label, own in scores.items()}
    if by == "rehearsal":
        read = private_numbers(setup)
    else:
        read = config.read_off
    return Chosen(max(means, key=means.__getitem__), means, by, read)


def only(config: Config, label: str) -> Config:
    """Return a comparison with one private setting, and the settings without privacy."""
    kept = [
        variant.setting
        for variant in variants_of(config)
        if variant.label == label or _method(config, variant) == "vanilla"
    ]
    compare = config.compare.model_copy(update={"settings": tuple(kept), "sweep": {}})
    return config.model_copy(update={"compare": compare})


def _private(config: Config) -> list[Variant]:
    """List the private settings among which to choose."""
    found = [variant for variant in variants_of(config) if _method(config, variant) != "vanilla"]
    lent = [variant for variant in found if variant.setting.match_sigma_of]
    if len(found) < 2 or lent:
        accepted = "needs two private settings or more, each with a noise of its own"
        labels = [variant.label for variant in found]
        raise FieldError("compare.settings", labels, accepted)
    return found


def _method(config: Config, variant: Variant) -> str:
    """Return the name of a setting's method."""
    return str(variant.setting.overrides.get("method", config.privacy.method))


def _same_promise(config: Config, variants: list[Variant]) -> None:
    """Refuse settings with different promises, as one could win by promising less."""
    found = {}
    for variant in variants:
        single = configure(config, variant.label, variant.setting)
        guarantee = promised(prepared(single)).guarantee
        found[variant.label] = guarantee.describe(single.privacy.budget.delta)
    if len(set(found.values())) > 1:
        accepted = (
            "promise differently: choose among settings of one promise, a comparison for each"
        )
        raise FieldError("compare.settings", found, accepted)


def _write(file: Path, setup: Setup, by: By, reach: float | None, seed: int) -> None:
    """Write the rows on which settings are run to a file."""
    public = setup.dealt.public
    if by == "public":
        if public is None:
            raise FieldError(
                "by", by, "needs data.public_examples, or another source of public rows"
            )
        np.savez(file, x=public.x.numpy(), y=public.y.numpy())
        return
    shape = shape_of(setup, noisy_side(setup.method))
    possible = reach
    if possible is None and shape.classes:
        possible = REACH["classes"]
    elif possible is None:
        possible = REACH["numbers"]
    x, y, unit = made_up(shape, possible, seed)
    np.savez(file, x=_shaped(x, setup).numpy(), y=y.numpy(), unit=unit.numpy())


def _shaped(x: Tensor, setup: Setup) -> Tensor:
    """Reshape rows to the shape of the data."""
    return x.reshape(len(x), *setup.dealt.dataset.input_shape)


def _on(config: Config, file: Path, setup: Setup, seed: int) -> Config:
    """Make the configuration for other rows, with the same number of clients."""
    data: dict[str, Any] = {
        "name": "npz",
        "path": str(file),
        "clients": len(setup.clients),
        "holdout": config.data.holdout,
    }
    classes = setup.dealt.dataset.classes
    if classes:
        data["classes"] = classes
    if setup.method.noisy is not None and setup.method.noisy.noisy_steps.images:
        data["person"] = "unit"
    values = {**config.to_dict(), "data": data, "seed": seed, "read_off": []}
    values.pop("compare", None)
    return parse(values)


def _score(summary: Summary) -> float:
    """Return the figure by which a setting is judged."""
    metrics = summary.values["metrics"]
    if "rmse" in metrics:
        return -float(metrics["rmse"])
    figures = summary.values.get("classified", {}).get("pooled", {}).get("figures", {})
    balanced = figures.get("balanced_accuracy")
    if balanced:
        return float(balanced["value"])
    return float(metrics["accuracy"])
