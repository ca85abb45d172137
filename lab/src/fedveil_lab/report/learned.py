"""Check by a run's figures whether it learned anything, and whether a baseline has settled.

Intervals are over held-out rows of one seed, so they do not cover differences between seeds.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedveil_lab.runs.summary import Summary

WIDTH = 1.96  # deviations of a 95% interval


def chance_level(runs: Sequence[Summary]) -> str:
    """Write a warning if runs of one setting are no better than a constant prediction, else "".

    Classification: the interval of balanced accuracy, averaged over seeds, reaches down to that of one class.
    Regression: the error is not evidently below that of predicting the mean.
    """
    lows, values = list[float](), list[float]()
    for run in runs:
        found = _figure(run, "balanced_accuracy")
        if found:
            lows.append(found["low"])
            values.append(found["value"])
    if values:
        low, value = fmean(lows), fmean(values)
        chance = 1 / int(runs[0].values["classes"])
        if low > chance:
            return ""
        return (
            f"no better than the most frequent class: balanced accuracy is {value:.3f} (its 95% interval begins at "
            f"{low:.3f}), and always naming one class has {chance:.3f}."
        )
    errors, rows = list[float](), math.inf
    for run in runs:
        metrics = run.values["metrics"]
        if "mean_rmse" in run.values and "rmse" in metrics:
            errors.append(float(metrics["rmse"]))
            rows = min(rows, float(metrics["examples"]))
    if not errors:
        return ""
    base = fmean([float(run.values["mean_rmse"]) for run in runs])
    error = fmean(errors)
    if error * (1 + WIDTH / math.sqrt(2 * rows)) < base:
        return ""
    return f"no better than the mean: RMSE {error:.3f}, and whoever always says the mean has {base:.3f}."


def unstable(runs: Sequence[Summary]) -> str:
    """Write a warning if the last rounds of runs without privacy differ by more than their held-out rows explain."""
    name = "balanced_accuracy"
    if not all(name in run.values["last_rounds"] for run in runs):
        name = "accuracy"
    deviations, widths = [], []
    for run in runs:
        last, figure = run.values["last_rounds"].get(name), _figure(run, name)
        if last and figure:
            deviations.append(last["deviation"])
            widths.append(figure["high"] - figure["low"])
    if not widths:
        return ""
    moved, width = fmean(deviations), fmean(widths)
    if 2 * WIDTH * moved <= width:
        return ""
    return f"{name.replace('_', ' ')} still moves by {moved:.3f} from round to round, more than its held-out rows explain."


def price_unreadable(settings: Mapping[str, Sequence[Summary]]) -> list[str]:
    """Write why a comparison cannot show the price of privacy: its baselines without privacy have faults."""
    said = []
    for label, runs in settings.items():
        if any(run.values["method"] != "vanilla" for run in runs):
            continue
        why = chance_level(runs) or unstable(runs)
        if why:
            said.append(
                f'The price of privacy cannot be read: the baseline "{label}" is unstable or learned nothing: {why}'
            )
    return said


def _figure(run: Summary, name: str) -> dict[str, Any]:
    """Return a figure with its interval over all held-out rows; empty if it has none."""
    pooled = run.values.get("classified", {}).get("pooled", {})
    found: dict[str, Any] = pooled.get("figures", {}).get(name, {})
    return found
