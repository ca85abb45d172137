"""Figures of any size: no warning, nothing cut off, nothing that looks alike, and ticks where something can be."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from fedveil_lab.attacks import ATTACKS, judge
from fedveil_lab.games import Audit
from fedveil_lab.games.scoring import Scored
from fedveil_lab.report.audit_figures import DEFENDED, PLAIN, audit_figure, evidence_figure, in_turn
from fedveil_lab.report.canvas import legend_below, wrapped
from fedveil_studies.frame.plots import Curve, Line, Plot, draw_plot

LONG = "metric privacy, distance=layer_frobenius, noise_multiplier={0}, clip={0}"


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


MIXED = ("loss", "calibrated-loss", "likelihood-ratio")


def audited(
    settings, attacks, *, known=tuple(ATTACKS), rounds=3, runs=6, named="global DP, z {}", gap=1
):
    """An audit whose scores are drawn, so far apart."""
    source = torch.Generator().manual_seed(0)
    labels = ("vanilla", *(named.format(i) for i in range(1, settings)))
    verdicts = []
    for attack in known[:attacks]:
        for label in labels:
            inside, outside = torch.randn(2, runs, rounds, generator=source, dtype=torch.float64)
            inside += gap
            result = judge(
                attack, label, inside[:, -1].numpy(), outside[:, -1].numpy(), threshold=0.0
            )
            verdicts.append(Scored(**vars(result), inside=inside, outside=outside))
    values = {"name": "drawn", "replicates": runs, "target": 2}
    return Audit(verdicts, values=values, settings=labels)


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
    [forest], [legend] = above.axes, figure.legends
    assert len(legend.get_texts()) == settings
    assert inside(figure, legend)
    assert legend.get_window_extent().y1 < min(axes.get_window_extent().y0 for axes in below.axes)
    assert forest.get_window_extent().height / figure.dpi > 0.1 * settings * attacks
    panels = below.axes
    assert len(panels) == min(attacks, 5)
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


def test_curves_that_coincide_are_seen_in_turn_and_others_are_whole():
    perfect, poor = (
        (np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0])),
        (np.array([0.0, 1.0]),) * 2,
    )
    curves = in_turn([perfect, poor, perfect])
    seen, whole, too = (np.isfinite(true)[1:-1] for _, true in curves)  # all begin and end together
    assert whole.all()
    assert (seen ^ too).all()
    assert 0.4 < seen.mean() < 0.6
    assert np.abs(np.diff(seen.astype(int))).sum() > 20


@pytest.mark.parametrize("settings", [2, 4, 7])
def test_every_setting_is_seen_where_an_attack_is_perfect_in_all(settings):
    figure = audit_figure(audited(settings, 2, gap=20))
    FigureCanvasAgg(figure).draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[:, :, :3] / 255
    for axes in figure.subfigs[1].axes:
        box = axes.get_window_extent()
        top = pixels[
            len(pixels) - int(box.y1) : len(pixels) - int(box.y0 + 0.6 * box.height),
            int(box.x0) : int(box.x1),
        ]
        for colour in (PLAIN, *DEFENDED[: settings - 1]):
            there = (np.abs(top - to_rgb(colour)).max(axis=2) < 0.05).any(axis=0).sum()
            assert there > 0.5 * box.width / settings


@pytest.mark.few(3)
@pytest.mark.parametrize("attacks", [1, 2, 3, 4, 5, 6, 9, 10])
def test_the_grid_of_an_audit_is_as_large_as_its_panels_need(attacks):
    figure = drawn(audit_figure(audited(2, attacks)))
    boxes = [axes.get_window_extent() for axes in figure.subfigs[1].axes]
    assert len(boxes) == min(attacks, 5)  # six panels with that of the areas
    top = [box for box in boxes if abs(box.y0 - boxes[0].y0) < 5]
    assert sum(box.width for box in top) / figure.bbox.width > (0.7 if attacks > 1 else 0.45)


def test_the_strongest_attacks_are_drawn():
    found = audited(2, 10)
    verdicts = [v for v in found.verdicts if v.setting == found.settings[-1]]
    best = sorted(verdicts, key=lambda v: -v.point)[:3]
    titles = "".join(axes.get_title() for axes in drawn(evidence_figure(found)).axes)
    assert all(v.attack in titles for v in best)


@pytest.mark.parametrize(("attacks", "rounds"), [(1, 1), (3, 2)])
def test_evidence_has_titles_and_counts_in_whole_numbers(attacks, rounds):
    figure = drawn(evidence_figure(audited(2, attacks, known=MIXED, rounds=rounds)))
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
    nothing = Audit(
        [], values={"name": "none", "replicates": 4, "target": 2}, settings=("vanilla",)
    )
    assert audit_figure(nothing) is None
    assert evidence_figure(nothing) is None


def plot_of(panels, labels, finished, *, printed=None, rounds=3):
    """A plot in which the lines "panel label" are finished."""

    def line(panel, label):
        points = Curve(
            [float(r) for r in range(1, rounds + 1)], [0.1 * r for r in range(1, rounds + 1)]
        )
        return Line(panel, label, [points] if f"{panel} {label}" in finished else [], printed)

    lines = [line(panel, label) for panel in panels for label in labels]
    return Plot(
        "D4: accuracy", "round", "accuracy", lines, printed="ticks at the right: the paper's mean"
    )


def roc_of(areas, *, several="FedAvg", single="FedYogi"):
    """ROC curves of a label with so many seeds and of another with one."""

    def line(label, own):
        return Line("vanilla", label, [Curve([0.0, 1.0], [area, 1.0], area) for area in own])

    lines = [line(several, areas), line(single, areas[:1])]
    return Plot("C2: ROC", "false positive rate", "true positive rate", lines, diagonal=True)


def test_a_roc_curve_of_several_seeds_says_their_mean_range_and_number_also_if_some_are_equal():
    areas = [0.51, 0.5101, 0.54]
    figure = drawn(draw_plot(roc_of(areas)))
    [axes] = figure.axes
    legend = axes.get_legend()
    said = ["FedAvg (AUC 0.520; 0.510 to 0.540 over 3 seeds)", "FedYogi (AUC 0.510)"]
    assert [text.get_text() for text in legend.get_texts()] == said
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0  # below: it hides no curve
    assert inside(figure, legend)


def test_a_figure_says_what_its_bands_are_and_nothing_of_bands_without_any():
    areas = [0.51, 0.52, 0.54]
    titles = [draw_plot(roc_of(areas[:n])).get_suptitle() for n in (3, 1)]
    bands = "lines: mean of 1 to 3 seeds; bands: from the lowest to the highest of them at each false positive rate"
    assert " ".join(titles[0].split()) == f"C2: ROC {bands}"
    assert titles[1] == "C2: ROC"


def test_only_lines_that_are_drawn_have_the_ticks_of_the_paper():
    labels = [f"rule {i}" for i in range(6)]
    plot = plot_of(["a", "b"], labels, {f"a {labels[2]}"}, printed=0.9)
    figure = draw_plot(plot)
    first, second = figure.axes
    [line, tick] = sorted(first.lines, key=lambda line: len(line.get_xdata()), reverse=True)
    assert line.get_label() == labels[2]
    assert tick.get_color() == line.get_color()
    assert not second.lines
    assert "ticks" in figure.get_suptitle()
    plot.lines[2] = replace(plot.lines[2], printed=None)
    bare = draw_plot(plot)
    assert "ticks" not in bare.get_suptitle()
    assert len(bare.legends) == 1


def test_a_plot_of_which_nothing_is_finished_is_none():
    assert draw_plot(plot_of(["a"], ["FedAvg"], {}, printed=0.9)) is None


def test_a_plot_says_briefly_what_is_not_finished_and_what_the_ticks_are():
    labels = [f"a rule with a long name {i}" for i in range(8)]
    plot = plot_of(["a", "b", "c"], labels, {f"a {labels[0]}", f"a {labels[2]}"}, printed=0.9)
    figure = drawn(draw_plot(plot))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        f"{name}\nnot finished: {n} of 8 lines" for name, n in (("a", 6), ("b", 8), ("c", 8))
    ]
    assert all(
        text.get_text() == "nothing finished" for axes in figure.axes[1:] for text in axes.texts
    )
    lines, ticks = ([text.get_text() for text in legend.get_texts()] for legend in figure.legends)
    assert lines == [labels[0], labels[2]]
    assert ticks == ["the paper's"]
    first, second = (legend.get_window_extent() for legend in figure.legends)
    assert first.x1 < second.x0
    assert all(inside(figure, legend) for legend in figure.legends)


def test_a_single_round_is_a_dot_at_a_whole_number():
    figure = drawn(draw_plot(plot_of(["a"], ["FedAvg"], {"a FedAvg"}, rounds=1)))
    [axes] = figure.axes
    assert axes.lines[0].get_marker() == "o"
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]


def test_a_run_that_ended_earlier_keeps_its_last_value_and_cuts_no_line_short():
    curves = [Curve([1.0, 2.0], [4.0, 2.0]), Curve([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 0.0])]
    [axes] = draw_plot(Plot("t", "round", "y", [Line("a", "b", curves)])).axes
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert axes.lines[0].get_ydata().tolist() == [3, 2, 2, 1]


def test_legends_are_as_wide_as_the_figure_and_no_wider():
    for labels, columns in (
        (["vanilla", "metric"], 2),
        ([f"a setting, noise_multiplier={i}" for i in range(9)], 2),
        (["x" * 60 + str(i) for i in range(3)], 1),
        (["w" * 30 + " x" * 90], 1),
    ):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        handles = {label: axes.plot([0, 1], [0, 1])[0] for label in labels}
        legend_below(figure, handles)
        drawn(figure)
        assert figure.legends[0]._ncols == columns
        assert inside(figure, figure.legends[0])
        figure.suptitle(wrapped("word " * 40, 6, 9), fontsize=9)
        assert inside(drawn(figure), figure._suptitle)
        assert axes.get_window_extent().height / figure.dpi > 1.8


def test_a_map_has_a_square_for_every_place_and_none_for_what_is_not_finished():
    def line(panel, label, *points):
        return Line(panel, label, [Curve([x], [y]) for x, y in points])

    lines = [
        line("a", "24", (30, 0.2), (30, 0.4)),
        line("a", "24", (100, 0.5)),
        line("a", "40", (100, 0.7)),
    ]
    figure = drawn(
        draw_plot(Plot("map", "clients", "parameters", [*lines, line("b", "24")], heat=True))
    )
    first, second = figure.axes
    assert [text.get_text() for text in first.texts] == ["0.30", "0.50", "", "0.70"]
    assert [text.get_text() for text in first.get_xticklabels()] == ["30", "100"]
    assert not any(text.get_text() for text in second.texts)
