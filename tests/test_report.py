"""Tables and figures: what they say, and that they can be drawn for every kind of run."""

import io

import pytest
from rich.console import Console

from fedveil.experiments import compare, parse, run
from fedveil.report import figures
from fedveil.report.progress import LiveProgress, PlainProgress, progress_for
from fedveil.report.tables import comparison_notes, comparison_tables, run_table

LOCAL = [{"method": "vanilla"}, {"method": "group"}, {"method": "sga-ldp"}]


def config(**changes):
    base = {"name": "tiny", "rounds": 3, "data": {"name": "breast-cancer", "clients": 3}, "model": {"name": "logistic"}}
    return parse({**base, **changes})


@pytest.fixture(scope="module")
def central():
    settings = [{"method": m} for m in ("vanilla", "global", "metric")]
    return compare(config(privacy={"method": "global"}, compare={"settings": settings}), seeds=2)


@pytest.fixture(scope="module")
def local():
    return compare(config(compare={"settings": LOCAL}))


def printed(*tables, width=200):
    console = Console(file=io.StringIO(), width=width)
    for table in tables:
        console.print(table)
    return console.file.getvalue()


def test_the_table_holds_one_line_a_setting(central):
    [table] = comparison_tables(central, 200)
    text = printed(table)
    assert "mean over 2 seeds" in text
    lines = [line for line in text.splitlines() if line.startswith(("vanilla", "global", "metric"))]
    assert len(lines) == 3
    assert "vacuous" in lines[1]
    assert "eps" not in lines[2]


def test_a_narrow_terminal_loses_nothing(central):
    text = printed(*comparison_tables(central, 80), width=80)
    assert "…" not in text
    assert text.count("metric") == 2
    assert all(len(line) <= 80 for line in text.splitlines())


def test_notes_say_what_a_heuristic_is_and_where_the_noise_came_from(central):
    text = " ".join(comparison_notes(central))
    assert "there is no epsilon" in text
    assert "not for deployment" in text


def test_a_heuristic_has_no_epsilon_in_a_run_s_table(local):
    for summary in local:
        text = printed(run_table(summary))
        assert "epsilon =" not in text
        assert "eps=" not in text


def test_curves_have_one_line_a_setting_and_labels(central):
    figure = figures.curves(central)
    quality, sigma, distance = figure.axes
    assert [t.get_text() for t in quality.get_legend().get_texts()] == ["vanilla", "global", "metric"]
    assert quality.get_xlabel() == "round"
    assert "accuracy" in quality.get_ylabel()
    assert (len(quality.lines), len(sigma.lines), len(distance.lines)) == (3, 2, 1)


def test_only_proven_settings_are_drawn_against_epsilon(central):
    left, right = figures.pareto(central).axes
    assert [t.get_text() for t in left.get_legend().get_texts()] == ["vanilla (no noise)", "global", "metric"]
    assert [t.get_text() for t in right.get_legend().get_texts()] == ["vanilla (no noise)", "global (formal)"]
    assert "metric" in right.get_title()
    assert "delta" in right.get_xlabel()


def test_local_settings_and_regressions_can_be_drawn(local, tmp_path):
    assert all(file.stat().st_size > 10_000 for file in figures.draw(local, tmp_path))


def test_progress_is_plain_without_a_terminal():
    console = Console(file=io.StringIO())
    assert isinstance(progress_for(console), PlainProgress)
    run(config(rounds=60, clients_per_round=1), progress=progress_for(console))
    lines = console.file.getvalue().splitlines()
    assert 15 < len(lines) < 25
    assert lines[-1].startswith("vanilla  round 60/60")


def test_progress_is_live_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    progress = progress_for(console)
    assert isinstance(progress, LiveProgress)
    progress.say("before")
    run(config(), progress=progress)
    assert "3/3" in console.file.getvalue()
