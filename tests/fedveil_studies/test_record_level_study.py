"""The study of record-level privacy: which runs it makes, and that its lines over epsilon are those of its tables."""

import pytest

from fedveil.accounting import StepFilter, step_event
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.record_level import study

LEVELS = {8.0, 4.0, 2.0, 1.0, 0.5}
pytestmark = pytest.mark.usefixtures("coarse")


@pytest.fixture(scope="module")
def planned():
    return Reproduction(study, Choices(seed=1, seeds=1))


def cells(measurements):
    return [cell for m in measurements for cell in m.cells]


def test_runs_that_begin_with_the_public_model_have_the_settings_of_their_own_split(planned):
    settings = set()
    for seed in (1, 2, 3):
        for one in cells(Reproduction(study, Choices(seed=seed, seeds=1)).measurements("public")):
            config = one.config
            assert (config.model.start, config.privacy.method) == ("public", "record")
            if (config.privacy.options["sum"], config.privacy.options["epsilon"]) == (
                "trusted",
                0.5,
            ):
                settings.add((seed, config.rounds, config.local.lr))
    assert settings == {(1, 30, 0.2), (2, 10, 0.6), (3, 10, 0.6)}
    assert {
        c.config.privacy.options["epsilon"] for c in cells(planned.measurements("public"))
    } == LEVELS


@pytest.mark.parametrize("table", ["blood", "scratch", "alzheimer", "breast"])
def test_every_level_is_run_under_both_trust_models_and_once_without_privacy(planned, table):
    found = {
        (c.config.privacy.options.get("sum"), c.config.privacy.options.get("epsilon"))
        for c in cells(planned.measurements(table))
    }
    assert found == {(None, None)} | {(s, e) for s in ("none", "trusted") for e in LEVELS}


def test_a_line_over_epsilon_needs_no_run_of_its_own(planned):
    tables = {
        c.key
        for name in ("blood", "scratch", "alzheimer")
        for c in cells(planned.measurements(name))
    }
    assert {c.key for c in cells(planned.lines("epsilon"))} == tables


def test_the_totals_planned_are_the_levels_whatever_the_rounds_chosen(planned):
    for cell in cells(planned.measurements("breast")):
        options = cell.config.privacy.options
        if cell.config.privacy.method != "vanilla":
            assert options["rounds"] == cell.config.rounds
            side = cell.config.privacy.build(cell.config.aggregator).client
            event = step_event(side.multiplier, side.rate)
            assert (
                StepFilter.within(event, options["epsilon"] + 1e-6, 1e-5, "zero-out").steps
                == cell.config.rounds
            )
