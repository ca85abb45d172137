"""Forecast, before data are used, which settings of a configuration end no better than chance."""

import math

from fedveil.accounting import REGIONS
from fedveil.methods import Method, RecordDP
from fedveil_lab.config import Config
from fedveil_lab.config.foresight import (
    REACH,
    Shape,
    evenness,
    foresee,
    least_reach,
    pull_of,
    weighing,
)
from fedveil_lab.config.variants import configure, variants_of
from fedveil_lab.runs.prepare import Setup
from fedveil_lab.runs.promised import prepared

LINEAR = ("logistic", "regression")


def foreseen(config: Config, reach: float | None = None) -> list[str]:
    """Forecast each noisy setting in a sentence; none for models that are not linear.

    Parameters
    ----------
    config : Config
        Configuration of a run or comparison. Only shapes, planned sizes and declared columns are read; for units above
        a record also the number of rows.
    reach : float, optional
        Score that is possible without privacy, as published for such data. Default: that of an easy task.

    Raises
    ------
    FieldError
        If `reach` is not above chance, or the configuration cannot be run.
    """
    if config.model.name not in LINEAR:
        return []
    setup = prepared(config)
    classes = setup.dealt.dataset.classes or 0
    possible = REACH["classes" if classes else "numbers"] if reach is None else reach
    said = []
    for label, side in _sides(config).items():
        if isinstance(side, RecordDP) and side.unit in REGIONS:
            continue  # the formula was tried on whole records alone
        pull = pull_of(side, setup.cohort)
        if pull is not None:
            said.append(f"{label}: {sentence(shape_of(setup, side), pull, possible)}")
    if not said:
        return []
    assumed = " (assumed; --reach replaces it)"
    if reach is not None:
        assumed = ""
    figure = "a share of the mean's error"
    if classes:
        figure = "balanced accuracy"
    first = f"Forecast before anything is trained. Without privacy {figure} {possible:.2f} is possible{assumed}:"
    read = private_numbers(setup)
    rests = f"conditional: this forecast rests on private numbers ({', '.join(read)})"
    return [first, *said, *[rests] * bool(read)]


def private_numbers(setup: Setup) -> tuple[str, ...]:
    """Name the numbers of a shape that nobody declared: values read off the data, and the row count above record level."""
    side = noisy_side(setup.method)
    planned = isinstance(side, RecordDP) and side.unit == "record"
    if planned:
        return tuple(setup.config.read_off)
    return ("how many rows there are", *setup.config.read_off)


def sentence(shape: Shape, pull: float, reach: float) -> str:
    """Write the forecast score of a setting, and the least `reach` with which it is better than chance."""
    found, least = foresee(shape, pull, reach), least_reach(shape, pull)
    if not found.useless:
        return f"about {found.score:.2f}; better than chance if a model without privacy reaches {least:.2f}"
    guess = "the mean"
    if shape.classes:
        guess = "the most frequent class"
    needed = "no task is clear enough"
    if least < 1:
        needed = f"it takes a task where a model without privacy reaches {least:.2f}"
    return f"no better than {guess} (about {found.score:.2f}, 95% from {found.low:.2f}); {needed}"


def shape_of(setup: Setup, side: object) -> Shape:
    """Make the shape of a setup's task, for the side that adds the noise."""
    dataset, clients, held = setup.dealt.dataset, setup.clients, setup.config.data.holdout
    rows = sum(client.examples for client in clients)
    units, weights = len(clients), 1.0
    if isinstance(side, RecordDP):
        units = max(1, round(side.planned * len(clients)))
        weights = weighing(setup.config.local.class_weights)
    if isinstance(side, RecordDP) and side.unit == "record":
        rows = units
    image = len(dataset.input_shape) == 3
    return Shape(
        classes=dataset.classes or 0,
        inputs=math.prod(dataset.input_shape),
        image=image,
        colours=dataset.input_shape[0] if image else 1,
        units=units,
        rows=rows / units,
        held_out=max(1.0, rows * held / (1 - held)),
        weighing=weights,
        even=evenness(setup.config.local.class_weights),
    )


def _sides(config: Config) -> dict[str, object]:
    """Return the side that adds the noise, by setting; without settings, the configuration's own."""
    singles = {config.privacy.method: config}
    if config.compare.settings or config.compare.sweep:
        singles = {
            variant.label: configure(config, variant.label, variant.setting)
            for variant in variants_of(config)
            if not variant.setting.match_sigma_of
        }
    return {
        label: noisy_side(single.privacy.build(single.aggregator))
        for label, single in singles.items()
    }


def noisy_side(method: Method) -> object:
    """Return the side that adds the noise."""
    if method.noisy is None:
        return method.server
    return method.client
