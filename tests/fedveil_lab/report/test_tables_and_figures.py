"""Tables and figures: what they say, and that they can be drawn for every kind of run."""

import io

import pytest
from matplotlib.colors import to_rgb
from rich.console import Console

from fedveil.errors import FedVeilError
from fedveil.evidence import last_rounds
from fedveil.registry import optional
from fedveil_lab.config import parse
from fedveil_lab.grid import compare
from fedveil_lab.report import figures
from fedveil_lab.report.figures import pareto
from fedveil_lab.report.progress import Display
from fedveil_lab.report.tables import comparison_notes, comparison_tables, run_table
from fedveil_lab.runs import Summary, run

LOCAL = [{"method": "vanilla"}, {"method": "group"}, {"method": "sga-ldp"}]


def config(**changes):
    base = {
        "name": "tiny",
        "rounds": 3,
        "data": {"name": "breast-cancer", "clients": 3},
        "model": {"name": "logistic"},
    }
    return parse({**base, **changes})


@pytest.fixture(scope="module")
def central():
    settings = [{"method": m} for m in ("vanilla", "global", "metric")]
    return compare(
        config(
            privacy={"method": "global", "noise_multiplier": 0.01}, compare={"settings": settings}
        ),
        seeds=2,
    )


@pytest.fixture(scope="module")
def local():
    return compare(config(compare={"settings": LOCAL}))


def printed(*tables, width=200):
    return "\n".join(table.text(width) for table in tables)


def test_the_table_holds_one_line_a_setting(central):
    [table] = comparison_tables(central, 200)
    text = printed(table)
    assert "over 2 seeds" in text
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
    assert "no epsilon" in text
    assert "not for deployment" in text


def test_a_heuristic_has_no_epsilon_in_a_run_s_table(local):
    for summary in local:
        text = printed(run_table(summary))
        assert "epsilon =" not in text
        assert "eps=" not in text


def test_curves_have_one_line_a_setting_and_labels(central):
    figure = figures.curves(central)
    quality, sigma, distance = figure.axes
    assert legend(figure) == ["vanilla", "global", "metric"]
    assert quality.get_xlabel() == "round"
    assert "AUC" in quality.get_ylabel()  # of two classes
    assert (len(quality.lines), len(sigma.lines), len(distance.lines)) == (3, 2, 1)


def test_only_proven_settings_are_drawn_against_epsilon(central):
    figure = pareto(central)
    noise, epsilon = figure.axes
    assert sorted(legend(figure)) == ["global", "metric", "vanilla (no noise)"]
    assert [bars.get_label() for bars in noise.containers] == ["global", "metric"]
    assert [bars.get_label() for bars in epsilon.containers] == ["global"]
    assert all(
        part in " ".join(epsilon.get_title().split())
        for part in ("client, central: formal", "1 of 3")
    )
    assert "delta" in epsilon.get_xlabel()


def test_a_swept_setting_is_one_line_and_the_front_leaves_out_what_is_beaten(central):
    figure = pareto(swept(central))
    attack, noise, _ = figure.axes
    assert [bars.get_label() for bars in attack.containers] == ["vanilla", "global", "metric"]
    line = next(bars for bars in attack.containers if bars.get_label() == "global")[0]
    assert list(line.get_xdata()) == [0.9, 0.6]
    [front] = [line for line in attack.lines if line.get_label() == "Pareto front"]
    assert list(front.get_xdata()) == [0.6, 0.7, 0.95]  # not .9, which metric privacy beats in both
    assert len(noise.containers) == 2
    assert len(figures.curves(swept(central)).axes[0].lines) == 5


def test_the_table_has_the_strongest_attack_and_says_which(central):
    found = swept(central)
    assert "0.900 (0.80-1.00)" in printed(*comparison_tables(found, 200))
    assert any(
        "loss (4 settings), noise-size (1 settings)" in note for note in comparison_notes(found)
    )


def test_an_audit_in_which_nothing_works_is_said(central):
    found = [Summary({**s.values, "audits": [], "audited": True}, s.rows) for s in swept(central)]
    assert "attack AUC" in printed(*comparison_tables(found, 200))
    assert any("no attack evidently works here" in note for note in comparison_notes(found))
    assert len(pareto(found).axes) == 2


def swept(central):
    """Five settings of one seed, as if two of them had been swept and all of them attacked."""
    runs = {s.setting: s for s in reversed(central)}
    made = []
    for base, z, auc, accuracy, attack in (
        ("vanilla", None, 0.95, 0.9, "loss"),
        ("global", 0.1, 0.9, 0.7, "loss"),
        ("global", 1.0, 0.6, 0.5, "loss"),
        ("metric", 0.1, 0.7, 0.8, "noise-size"),
        ("metric", 1.0, 0.8, 0.4, "loss"),
    ):
        values = dict(runs[base].values)
        values["setting"] = base if z is None else f"{base}, noise_multiplier={z}"
        values |= {"base": base, "swept": {} if z is None else {"noise_multiplier": z}}
        values["audits"] = [
            {
                "attack": attack,
                "auc": auc,
                "low": auc - 0.1,
                "high": min(1.0, auc + 0.1),
                "runs": 30,
            }
        ]
        values["audited"] = True
        judged = {
            key: {"mean": accuracy, "deviation": 0.01, "rounds": 3} for key in ("accuracy", "auc")
        }
        values["last_rounds"] = {**values["last_rounds"], **judged}
        made.append(Summary(values, runs[base].rows))
    return made


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_local_settings_and_regressions_can_be_drawn(local, tmp_path):
    assert all(file.stat().st_size > 10_000 for file in figures.draw(local, tmp_path))


def test_progress_is_plain_without_a_terminal():
    console = Console(file=io.StringIO())
    run(config(rounds=60, clients_per_round=1), progress=Display(console))
    lines = console.file.getvalue().splitlines()
    assert 15 < len(lines) < 25
    assert lines[-1].startswith("vanilla  round 60/60")


def test_progress_is_live_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    progress = Display(console)
    progress.say("before")
    run(config(), progress=progress)
    assert "3/3" in console.file.getvalue()


def test_a_missing_library_is_named_with_the_command_that_installs_it():
    assert optional("json", "this", "nothing").dumps([1]) == "[1]"
    with pytest.raises(FedVeilError, match=r"^dreams need it: pip install pillow-of-feathers$"):
        optional("pillow_of_feathers.deep", "dreams need it", "pillow-of-feathers")


def test_a_round_without_a_distance_is_said():
    settings = {"settings": [{"method": "metric"}]}
    [summary] = compare(config(data={"name": "breast-cancer", "clients": 1}, compare=settings))
    said = "global DP's noise in 3 of 3 rounds: there were no two different models to compare"
    assert any(said in note for note in comparison_notes([summary]))
    assert said in printed(run_table(summary))
    [several] = compare(config(compare=settings))
    assert not any("no two different" in note for note in comparison_notes([several]))


def test_where_only_some_settings_are_audited_the_panel_says_how_many_are_not(central):
    found = [
        audited_as(s, {"vanilla": False, "metric": None}.get(s.values["base"], True))
        for s in swept(central)
    ]
    attack, noise, _ = pareto(found).axes
    assert [bars.get_label() for bars in attack.containers] == ["global"]
    assert [bars.get_label() for bars in noise.containers] == ["global", "metric"]
    assert "2 of 5" in attack.get_title()
    assert legend(pareto(found)).count("vanilla") == 0


def audited_as(summary, state):
    """As it is; without an audit (False); with one in which no attack works (None)."""
    values = summary.values if state else {**summary.values, "audits": [], "audited": state is None}
    return Summary(values, summary.rows)


def test_an_average_says_over_how_many_rounds_it_is(central):
    several = {
        name: {"mean": 0.5, "deviation": 0.1, "rounds": 3}
        for name in central[0].values["last_rounds"]
    }
    longer = [Summary({**s.values, "last_rounds": several}, s.rows) for s in central]
    assert (
        pareto(longer).axes[0].get_ylabel().startswith("ROC AUC, mean of the last 3 rounds\n(bars:")
    )
    assert pareto(central[::2]).axes[0].get_ylabel() == "ROC AUC, last round"
    assert "last 1 to 3 rounds" in pareto([*longer, *central]).axes[0].get_ylabel()


def test_epsilons_of_another_unit_or_trust_stand_in_another_panel(central):
    proven = [s for s in swept(central) if s.values["base"] == "global"]
    [worst] = proven[1].values["guarantees"].values()
    record = {"guarantees": {"worst client": {**worst, "unit": "record", "trust": "local"}}}
    found = [proven[0], Summary({**proven[1].values, **record}, proven[1].rows)]
    panels = pareto(found).axes[2:]
    assert len(panels) == 2
    for axes, own in zip(panels, found, strict=True):
        [bars] = axes.containers
        assert list(bars.lines[0].get_ydata()) == [own.averaged("auc")]
        assert not [line for line in axes.lines if line.get_label() == "Pareto front"]


def test_a_figure_without_noise_or_distance_has_no_empty_panel(central):
    plain = [s for s in central if s.values["base"] == "vanilla"]
    assert len(figures.curves(plain).axes) == 1
    assert len(figures.curves(central).axes) == 3


@pytest.mark.parametrize(
    ("rounds", "covered"), [(1, 1), (5, 1), (9, 1), (10, 2), (24, 4), (25, 5), (100, 5)]
)
def test_the_last_fifth_of_a_run_is_averaged_at_most_five_rounds(rounds, covered):
    rows = [{"metrics": {"accuracy": float(i)}} for i in range(rounds)]
    found = last_rounds(rows)["accuracy"]
    assert found["rounds"] == covered
    assert found["mean"] == pytest.approx(rounds - 1 - (covered - 1) / 2)
    assert last_rounds(rows, 5)["accuracy"]["rounds"] == min(5, rounds)  # what studies state


def test_the_front_can_be_seen_where_epsilon_is_vacuous(central):
    epsilon = pareto(swept(central)).axes[2]
    [vacuous] = epsilon.patches
    attack = pareto(swept(central)).axes[0]
    [front] = [line for line in attack.lines if line.get_label() == "Pareto front"]
    red, green, blue = to_rgb(front.get_color())
    assert max(red, green, blue) - min(red, green, blue) > 0.5  # a colour, on grey
    assert len(set(vacuous.get_facecolor()[:3])) == 1
    assert vacuous.get_zorder() < front.get_zorder()


def test_curves_say_which_line_is_which_swept_value(central):
    figure = figures.curves(swept(central))
    settings, values = figure.legends
    assert [text.get_text() for text in settings.get_texts()] == ["vanilla", "global", "metric"]
    assert [text.get_text() for text in values.get_texts()] == ["z 0.1", "z 1"]
    keys = [line.get_alpha() for line in values.get_lines()]
    assert keys == [line.get_alpha() for line in figure.axes[0].lines[1:3]]
    assert keys[0] < keys[1] == 1
    assert len(figures.curves(central).legends) == 1


def test_two_classes_show_what_accuracy_hides_and_a_model_of_one_class_is_named(central):
    [table] = comparison_tables(central, 200)
    assert list(table.header)[1:6] == ["accuracy", "AUC", "balanced", "sens.", "spec."]
    guess = table.rows[-1]
    assert guess[:4] == ["majority class", f"{central[0].values['majority']:.3f}", "0.500", "0.500"]
    assert 0.5 < central[0].values["majority"] < 1
    assert not any("names one class" in note for note in comparison_notes(central))
    stuck = {**central[0].values, "metrics": {**central[0].values["metrics"], "sensitivity": 0.0}}
    notes = comparison_notes([Summary(stuck, central[0].rows), *central[1:]])
    assert any("names one class" in note and central[0].setting in note for note in notes)
