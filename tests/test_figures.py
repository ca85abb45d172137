"""Figures of any size: no warning, nothing cut off, nothing that looks alike, and ticks where something can be."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedveil.attacks import ATTACKS, judge
from fedveil.experiments import Audit
from fedveil.experiments.audit_results import Judged, Verdict
from fedveil.report.audit_figures import PLAIN, audit_figure, evidence_figure
from fedveil.report.labels import Ends, columns_within, ems, legend_below, name_ends, wrapped
from fedveil.report.plots import draw_plot
from fedveil.reproduce.measure import Replicate
from fedveil.reproduce.study import Curve, Line, Plot

LONG = "metric privacy, distance=layer_frobenius, noise_multiplier={0}, clip={0}"


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def audited(settings, attacks, *, rounds=3, runs=6, named="global DP, z {}"):
    """An audit whose scores are drawn."""
    source = torch.Generator().manual_seed(0)
    labels = ("vanilla", *(named.format(i) for i in range(1, settings)))
    verdicts = []
    for attack in list(ATTACKS)[:attacks]:
        for label in labels:
            inside, outside = torch.randn(2, runs, rounds, generator=source, dtype=torch.float64)
            result = judge(attack, label, inside[:, -1].numpy() + 1, outside[:, -1].numpy(), threshold=0.0)
            verdicts.append(Verdict(result, inside, outside))
    return Audit({"name": "drawn", "replicates": runs, "target": 2}, Judged(verdicts), labels)


def drawn(figure):
    figure.draw_without_rendering()
    return figure


def inside(figure, artist):
    box, whole = artist.get_window_extent(), figure.get_figure(root=True).bbox
    return box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y0 >= whole.y0 and box.y1 <= whole.y1


@pytest.mark.parametrize(
    ("settings", "attacks", "named"),
    [(1, 1, ""), (7, 1, "global DP, z {}"), (12, 1, LONG), (2, 10, "metric"), (12, 3, "z {}")],
)
def test_an_audit_of_any_size_is_drawn_whole(settings, attacks, named):
    figure = drawn(audit_figure(audited(settings, attacks, named=named)))
    above, below = figure.subfigs
    [forest], [legend] = above.axes, above.legends
    assert len(legend.get_texts()) == settings
    assert inside(figure, legend)
    assert legend.get_window_extent().y0 > forest.get_window_extent().y1
    assert forest.get_window_extent().height / figure.dpi > 0.1 * settings * attacks
    panels = [axes for axes in below.axes if axes.get_visible()]
    assert len(panels) == attacks
    assert min(axes.get_window_extent().height for axes in panels) / figure.dpi > 1.2
    assert all(inside(figure, axes) for axes in panels)


def test_no_two_settings_of_an_audit_look_alike_and_only_one_is_grey():
    figure = audit_figure(audited(12, 1))
    above, below = figure.subfigs
    marks = [bars[0] for bars in above.axes[0].containers]
    looks = [(to_hex(mark.get_color()), mark.get_marker()) for mark in marks]
    assert len(set(looks)) == 12
    assert [colour.lower() for colour, _ in looks].count(PLAIN) == 1
    curves = [line for line in below.axes[0].lines if not line.get_label().startswith("_")]
    assert len({(to_hex(line.get_color()), line.get_linestyle()) for line in curves}) == 12


@pytest.mark.parametrize(("attacks", "rounds"), [(1, 1), (3, 2)])
def test_evidence_has_titles_and_counts_in_whole_numbers(attacks, rounds):
    figure = drawn(evidence_figure(audited(2, attacks, rounds=rounds)))
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(panels) == 2 * attacks
    assert all(axes.get_title() for axes in panels)
    words = [axes.get_xlabel() for axes in panels[::2]]
    assert all(word.startswith("mean of its scores") for word in words[:2])
    assert all(word.startswith("log-likelihood ratio") for word in words[2:])
    for counts, over in zip(panels[::2], panels[1::2], strict=True):
        ticks = [*counts.get_yticks(), *over.get_xticks()]
        assert all(tick == round(tick) for tick in ticks)
        assert {t for t in over.get_xticks() if 0.9 < t < rounds + 0.1} == set(range(1, rounds + 1))


def test_where_no_attack_was_judged_there_is_no_figure():
    nothing = Audit({"name": "none", "replicates": 4, "target": 2}, Judged(), ("vanilla",))
    assert audit_figure(nothing) is None
    assert evidence_figure(nothing) is None


def plot_of(panels, labels, *, printed=None, rounds=3):
    """A plot whose cells are called "panel label"."""

    def line(panel, label):
        cell = SimpleNamespace(key=f"{panel} {label}")
        points = Curve([float(r) for r in range(1, rounds + 1)], [0.1 * r for r in range(1, rounds + 1)])
        return Line(panel, label, (Replicate(0, (cell,)),), lambda outcomes: points, printed)

    lines = [line(panel, label) for panel in panels for label in labels]
    return Plot("D4: accuracy", "round", "accuracy", lines, printed="ticks at the right: the paper's mean")


def test_a_plot_of_which_nothing_is_finished_is_none():
    assert draw_plot(plot_of(["a"], ["FedAvg"], printed=0.9), {}) is None


def test_a_plot_says_briefly_what_is_not_finished_and_what_the_ticks_are():
    labels = [f"a rule with a long name {i}" for i in range(8)]
    plot = plot_of(["a", "b", "c"], labels, printed=0.9)
    figure = drawn(draw_plot(plot, {f"a {labels[0]}": None, f"a {labels[2]}": None}))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"{name}\nnot finished: {n} of 8 lines" for name, n in (("a", 6), ("b", 8), ("c", 8))]
    assert all(text.get_text() == "nothing finished" for axes in figure.axes[1:] for text in axes.texts)
    lines, ticks = ([text.get_text() for text in legend.get_texts()] for legend in figure.legends)
    assert lines == [labels[0], labels[2]]
    assert ticks == ["the paper's"]
    first, second = (legend.get_window_extent() for legend in figure.legends)
    assert first.x1 < second.x0
    assert all(inside(figure, legend) for legend in figure.legends)


def test_a_single_round_is_a_dot_at_a_whole_number():
    figure = drawn(draw_plot(plot_of(["a"], ["FedAvg"], rounds=1), {"a FedAvg": None}))
    [axes] = figure.axes
    assert axes.lines[0].get_marker() == "o"
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]


def test_legends_are_as_wide_as_the_figure_and_no_wider():
    assert columns_within(["a", "b", "c"], 10, 9) == 3
    assert columns_within(["x" * 80] * 3, 10, 9) == 1
    assert 4 < max(map(ems, wrapped("word " * 40, 5, 9).splitlines())) * 9 / 72 <= 5
    for labels in (
        ["vanilla", "metric"],
        [f"a setting, noise_multiplier={i}" for i in range(9)],
        ["w" * 30 + " x" * 90],
    ):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        handles = {label: axes.plot([0, 1], [0, 1])[0] for label in labels}
        legend_below(figure, handles)
        drawn(figure)
        assert inside(figure, figure.legends[0])
        assert axes.get_window_extent().height / figure.dpi > 1.8


def test_labels_cover_neither_points_nor_each_other():
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    lines = [Ends([(0.9, 0.9 + i / 200), (0.5 + i / 10, 0.5)], "z 0.1", "z 1", "#000000") for i in range(4)]
    for line in lines:
        axes.plot(*zip(*line.points, strict=True), marker="o", markersize=6)
    drawn(figure)
    name_ends(axes, lines)
    drawn(figure)
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # an annotation's own has its line in it
    assert 6 <= len(boxes) <= 8
    marks = [axes.transData.transform(point) for line in lines for point in line.points]
    assert not any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for box in boxes for x, y in marks)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert {text.get_text() for text in axes.texts} == {"z 0.1", "z 1"}
