"""Summary of a run, in summary.json: metrics, guarantees, noise."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import read_off
from fedveil.data import DataSet
from fedveil.engines import Federation
from fedveil.errors import damaged, require_a
from fedveil.evidence import (
    MEASURES,
    METRICS_FILE,
    REPRODUCIBLE,
    Row,
    by_present_names,
    core_of,
    parse_row,
)
from fedveil.files import Ledgers, remedy
from fedveil.learning import ClientData, evaluate, evaluate_clients, weights_in
from fedveil.reading import json_of
from fedveil_lab.runs.deal import data_digest
from fedveil_lab.runs.folder import UNNOISED
from fedveil_lab.runs.prepare import Setup
from fedveil_lab.runs.promised import guarantees_of

MEASURED = ("metrics", "last_rounds", "test_metrics")  # tables of figures by name


@dataclass(frozen=True)
class Summary:
    """Results of a finished run: the content of summary.json and metrics.jsonl.

    Attributes
    ----------
    values : dict
        Content of summary.json.
    rows : list of dict
        Metrics of each round, as in metrics.jsonl.
    """

    values: Mapping[str, Any]
    rows: Sequence[Row] = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> "Summary":
        """Read a finished run from its folder.

        Raises
        ------
        FieldError
            If summary.json or metrics.jsonl is missing or damaged.
        """
        require_a("folder", folder, (str, Path), "must be the path of a run's folder")
        folder = Path(folder)
        file = folder / "summary.json"
        try:
            values = _by_present_names(json_of(file.read_bytes()))
            rounds = int(values["rounds"])
            file = folder / METRICS_FILE
            rows = []
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                file = Path(f"{folder / METRICS_FILE}, line {number}")
                rows.append(parse_row(line))
            if len(rows) != rounds:
                file = folder / METRICS_FILE
                raise ValueError(f"it has {len(rows)} lines, and there were {rounds} rounds")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise damaged("run", file, error, remedy(folder)) from error
        return cls(values, rows)

    @property
    def setting(self) -> str:
        """Label of the run in a comparison."""
        return str(self.values["setting"])

    @property
    def stopped(self) -> str:
        """Why the run ended early, or ""."""
        return str(self.values["stopped"])

    def averaged(self, figure: str) -> float | None:
        """Mean of a figure over the last rounds; None if it does not exist for the task."""
        averages = self.values["last_rounds"].get(figure)
        if averages is None:
            return None
        return float(averages["mean"])

    def noise(self, figure: str, when: str = "mean") -> float | None:
        """Return sigma, distance, noise_to_clip or another figure of the noise (first, last or mean); None without noise."""
        recorded = self.values["noise"].get(figure)
        if recorded is None:
            return None
        return float(recorded[when])


def over_rounds(
    runs: Sequence[Summary], figure: Callable[[Row], float | None]
) -> dict[int, list[float]]:
    """Return a figure of each seed by round, for the rounds that all seeds have."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for row in run.rows:
            value = figure(row)
            if value is not None:
                values.setdefault(row["round"], []).append(value)
    return {round_: own for round_, own in sorted(values.items()) if len(own) == len(runs)}


def _by_present_names(values: Any) -> dict[str, Any]:
    """Return the content of summary.json with figures renamed to their present names."""
    if values.get("measures", 1) >= MEASURES:
        return dict(values)
    renamed = _renamed(values)
    if values.get("public_model"):
        renamed["public_model"] = _renamed(values["public_model"])
    return {**renamed, "measures": MEASURES}


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename measured figures to their present names."""
    renamed = dict(values)
    for name in MEASURED:
        if name in values:
            renamed[name] = by_present_names(values[name])
    return renamed


def majority_of(clients: Sequence[ClientData], classes: int) -> dict[str, Any]:
    """Score of a constant prediction on the clients' held-out examples: the most frequent class, or the mean."""
    held = [
        client.test_y.reshape(-1)
        for client in clients
        if client.test_y is not None and len(client.test_y)
    ]
    if not held:
        return {}
    together = torch.cat(held)
    if classes:
        return {"classes": classes, "majority": _largest(together)}
    if not together.is_floating_point() or any(
        c.test_y is not None and c.test_y.dim() > 1 for c in clients
    ):
        return {}
    return {"mean_rmse": float(together.double().std(correction=0))}


def _positive(dataset: DataSet, named: str | None) -> dict[str, Any]:
    """Return the positive class of two, and whether the configuration names it."""
    if dataset.classes != 2:
        return {}
    return {"positive": dataset.names()[1], "positive_named": named is not None}


def _largest(labels: Tensor) -> float:
    """Return the share of the most frequent class among valid labels."""
    counts = labels[labels >= 0].bincount()
    if not len(counts):
        return 0.0
    return float(counts.max()) / max(1, int(counts.sum()))


def summary_of(
    setup: Setup,
    federation: Federation,
    stopped: str,
    ledgers: Ledgers,
    rows: list[Row],
    label: str,
    seconds: float,
    concluded: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of summary.json for a finished run."""
    config, dataset = setup.config, setup.dealt.dataset
    method, delta = federation.method, config.privacy.budget.delta
    guarantee, parties = guarantees_of(method, ledgers.books, delta, read_off(config.read_off))
    core = core_of(label, method, federation.layout, rows, guarantee, delta, config.trainer)
    return {
        **core,
        "name": config.name,
        "method": config.privacy.method,
        "aggregator": config.aggregator.name if config.aggregator else "",
        "task": "regression" if federation.task == "values" else "classification",
        "test_metrics": _test_metrics(setup, federation, federation.models),
        **_of_public_model(setup, federation),
        **majority_of(federation.clients, dataset.classes),
        **_positive(dataset, config.data.positive),
        "guarantees": parties,
        "participations": _participations(federation, ledgers),
        "private": dict(UNNOISED),
        "published_metrics": {"mode": config.publish.metrics, "text": config.publish.describe()},
        "rounds_planned": config.rounds,
        "stopped": stopped,
        **best_of(federation),
        "clients": len(federation.clients),
        "examples": int(median(client.examples for client in federation.clients)),
        **_malicious(setup, federation),
        "data": {
            "name": dataset.name,
            "note": dataset.note,
            "licence": dataset.licence,
            "digest": data_digest(config.data),
            "largest_class": setup.dealt.largest_class,
            "warnings": [*setup.warnings, *federation.warnings.said.values()],
        },
        "derived_from": config.privacy.options.get("derived_from", ""),
        **_weights(setup),
        "seed": config.seed,
        "source": REPRODUCIBLE if config.source.kind == "reproducible" else "secure",
        "engine": config.engine,
        "device": config.device,
        "workers": config.workers,
        **({"concluded": concluded} if concluded else {}),
        "seconds": {**core["seconds"], "this_call": round(seconds, 3)},
    }


def _malicious(setup: Setup, federation: Federation) -> dict[str, Any]:
    """Return how well malicious clients succeeded; empty if there are none."""
    if setup.poisoning is None:
        return {}
    return {"malicious": setup.poisoning.values(federation)}


def _weights(setup: Setup) -> dict[str, Any]:
    """Return the declared weights file of the model, which is assumed to be public."""
    known = weights_in(setup.learner.model)
    if known is None:
        return {}
    return {"weights": asdict(known)}


def _participations(federation: Federation, ledgers: Ledgers) -> dict[str, int]:
    """Count clients by their number of releases, if clients protect themselves."""
    if federation.method.client.trust == "central":
        return {}
    made = Counter[int]()
    for partition in range(len(federation.clients)):
        book = ledgers.books.get(str(partition))
        made[0 if book is None else len(book.entries)] += 1
    return {str(count): made[count] for count in sorted(made)}


def best_of(federation: Federation) -> dict[str, Any]:
    """Return the lowest validation loss that was released, and the round of its model."""
    if federation.validators is None or not federation.validators.best.round:
        return {}
    best = federation.validators.best
    return {"best": {"validation": best.loss, "round": best.round}}


def _of_public_model(setup: Setup, federation: Federation) -> dict[str, Any]:
    """Measure the first public model on the clients' held-out examples and on the test half."""
    if setup.config.model.start != "public":
        return {}
    first, clients = setup.starts[:1], federation.clients
    chosen = [0] * len(clients)
    model, layout, names = federation.learner.model, federation.layout, federation.metrics
    pooled = evaluate_clients(
        model, layout, first, clients, chosen, names, federation.learner.local.loss
    )[1]
    return {
        "public_model": {"metrics": pooled, "test_metrics": _test_metrics(setup, federation, first)}
    }


def _test_metrics(setup: Setup, federation: Federation, models: Tensor) -> dict[str, float]:
    """Measure a single model on the data set's test half, if there is one."""
    data = setup.dealt.dataset
    if data.test_x is None or data.test_y is None or len(models) != 1:
        return {}
    model = federation.learner.model
    loss, names = federation.learner.local.loss, federation.metrics
    return evaluate(model, federation.layout, models[0], data.test_x, data.test_y, names, loss=loss)
