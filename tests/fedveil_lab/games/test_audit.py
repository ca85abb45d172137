"""Audits from end to end: attacks that succeed where they must and fail where they must, folders, what is printed."""

import json
import os

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.files import AUDIT
from fedveil_lab.attacks.bounds import epsilon_ceiling
from fedveil_lab.attacks.statistics import auc_interval
from fedveil_lab.config import load
from fedveil_lab.config.sections import Data
from fedveil_lab.games import ParticipationGame, participation, play
from fedveil_lab.games.scoring import HONEST as BEHAVED
from fedveil_lab.games.scoring import Case, Replicate
from fedveil_lab.grid import Store
from fedveil_lab.report.audit_tables import compared
from fedveil_lab.runs.runner import Silent

SMALL = (
    "rounds=2",
    f"data.counts={[[10] * 10, [10] * 10, [0] * 5 + [20] * 5]}",
)
HONEST = ("loss", "calibrated-loss", "own-update", "adaptive", "colluding")


def audit(config, out=None, progress=None, **options):
    return play(ParticipationGame(config, **options), out, progress)


def small(*changes):
    return load("digits-cia", [*SMALL, *changes])


def figures(found, setting):
    return {v.attack: v for v in found.verdicts if v.setting == setting}


def played(folder):
    return sorted(path.parent.name for path in (folder / "cells").glob("*/summary.json"))


@pytest.fixture
def few(monkeypatch):
    """As few rehearsals as can be."""
    monkeypatch.setattr(participation, "REHEARSALS", 4)


@pytest.fixture(scope="module")
def hidden():
    """So much noise that nothing is left to see, beside the federation without it."""
    return audit(
        small("privacy.noise_multiplier=1000.0"), attacks=(*HONEST, "side-channel"), replicates=12
    )


def test_without_defence_the_attacks_win_clearly(hidden):
    found = figures(hidden, "vanilla")
    for attack in HONEST:
        assert found[attack].auc.low > 0.6, attack
        assert found[attack].valid
        assert found[attack].runs == (12, 12)
    assert found["own-update"].epsilon.lower > 0.5
    assert hidden.together["vanilla"].lower > 0


def test_the_last_note_sets_the_promise_beside_what_was_measured_for_the_same_relation(hidden):
    assert (
        hidden.values["settings"]["global"]["guarantee_relation"]
        == hidden.values["relation"]
        == "zero-out"
    )
    [last] = compared(hidden)
    assert hidden.values["settings"]["global"]["guarantee"] in last
    assert f"{hidden.together['global'].ceiling:.2f}" in last


def test_noise_that_hides_everything_leaves_nothing(hidden):
    for attack, result in figures(hidden, "global").items():
        assert result.auc.low <= 0.5 <= result.auc.high, attack
        assert not result.succeeds
        assert result.epsilon.ceiling == pytest.approx(epsilon_ceiling(12, 1e-5))
    assert hidden.together["global"].lower == 0


@pytest.mark.few(0)
def test_with_the_target_in_both_worlds_every_attack_fails():
    found = audit(
        load("digits-cia", [*SMALL, "privacy.noise_multiplier=0.01"]),
        attacks=HONEST,
        replicates=12,
        world="itself",
    )
    for setting in found.settings:
        assert found.together[setting].lower == 0
    for v in found.verdicts:  # ten of them: each at 99.9%
        interval = auc_interval(v.inside[:, -1].numpy(), v.outside[:, -1].numpy(), confidence=0.999)
        assert interval.low <= 0.5 <= interval.high, v
    assert found.values["relation"].startswith("no relation")


def test_what_publishing_would_show_is_what_it_shows_and_costs_what_the_ledger_says(hidden):
    supposed = {v.attack for v in hidden.verdicts if v.supposed}
    assert supposed == {"side-channel (noised)", "side-channel (clear)"}
    cases = [Case("global", BEHAVED, "run", inside, 0) for inside in (True, False)]
    played = {}
    for mode in ("off", "noised", "clear"):
        cells = ParticipationGame(small(f"publish.metrics='{mode}'")).of_case
        found = Store(None).run([cells[case] for case in cases], together=True).outcomes
        played[mode] = [Replicate.of(case, found[cells[case].key]) for case in cases]
    for mode in ("noised", "clear"):
        for off, on in zip(played["off"], played[mode], strict=True):
            assert off.scores == on.scores
    off, noised, clear = (
        played[mode][0].summary.values["guarantee"] for mode in ("off", "noised", "clear")
    )
    epsilon = [float(text.split("eps=")[1].split()[0]) for text in (off, noised)]
    assert epsilon[1] > epsilon[0]
    assert "heuristic" in clear
    assert "eps" not in clear


@pytest.mark.few(0)
def test_every_setting_of_a_comparison_is_audited_and_sigma_matched(tmp_path, few):
    config, asked = (
        small("rounds=1"),
        {"attacks": ("noise-size",), "replicates": 4, "compare": True},
    )
    found = audit(config, tmp_path / "a", **asked)
    assert found.settings == ("vanilla", "global DP", "metric privacy", "global (equal sigma)")
    about = found.values["settings"]
    assert about["vanilla"]["sigma"] is None
    assert about["global DP"]["sigma"] == pytest.approx(2.0 * 0.5 / 3)
    metric = {}
    for file in (tmp_path / "a" / "cells").glob("metric-privacy-*/summary.json"):
        world = load(file.parent).world
        values = json.loads(file.read_text())
        metric[values["seed"]] = (world.inside, values["noise"]["sigma"]["mean"])
    game = ParticipationGame(config, **asked)

    def mean(phase):
        seeds = [
            case.seed(config.seed)
            for case in game.cases
            if (case.phase, case.inside) == (phase, True)
        ]
        assert all(metric[seed][0] for seed in seeds)
        return sum(metric[seed][1] for seed in set(seeds)) / len(set(seeds))

    assert about["global (equal sigma)"]["sigma"] == pytest.approx(mean("rehearsal"))
    assert about["metric privacy"]["sigma"] == pytest.approx(mean("run"))
    assert "heuristic" in about["global (equal sigma)"]["guarantee"]
    assert audit(config, tmp_path / "a", **asked).values["results"] == found.values["results"]


class Interrupting(Silent):
    """Presses Ctrl-C after so many rounds."""

    def __init__(self, after):
        self.left = after

    def advance(self, row):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_audit_goes_on_to_the_same_figures(tmp_path, monkeypatch, few):
    monkeypatch.setattr("fedveil_lab.grid.store.block_size", lambda setup, probes, seconds: 6)
    asked = {"attacks": ("adaptive",), "replicates": 4}
    config = small("rounds=1")
    whole = audit(config, tmp_path / "whole", **asked)
    with pytest.raises(KeyboardInterrupt):
        audit(config, tmp_path / "cut", progress=Interrupting(4), **asked)
    assert 0 < len(played(tmp_path / "cut")) < len(played(tmp_path / "whole"))
    [unfinished] = played(tmp_path / "cut")[:1]
    (
        tmp_path / "cut" / "cells" / unfinished / "summary.json"
    ).unlink()  # killed before it was whole
    resumed = audit(config, tmp_path / "cut", **asked)
    for key in ("results", "settings", "together"):
        assert resumed.values[key] == whole.values[key]
    assert played(tmp_path / "cut") == played(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedveil_lab.grid.store.run_together", lambda *_: pytest.fail("is played again")
        )
        audit(config, tmp_path / "cut", **asked)
        audit(
            config, tmp_path / "cut", attacks=("loss", "own-update", "side-channel"), replicates=4
        )
    with pytest.raises(FieldError, match="shadow"):  # another question takes another folder
        audit(config, tmp_path / "cut", attacks=("loss",), replicates=4, shadow="noisy")
    assert audit(config, tmp_path / "cut", **asked).values["results"] == whole.values["results"]


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FieldError, match="holds other files, not an audit"):
        audit(small(), tmp_path, attacks=("loss",), replicates=4)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "notes.txt").rename(tmp_path / ".spec.json.part")  # by an audit that was killed
    (tmp_path / "cells").mkdir()
    Store(tmp_path).refuse_others(AUDIT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--set", "data.clients=1", "--set", f"data.counts={[[9] * 10]}"],
            "needs at least two clients",
        ),
        (
            ["--set", f"data.counts={[[9] * 10, [9] * 10, [0] * 10]}"],
            "it never trains; choose another client",
        ),
        (["--attack", "lose"], "did you mean 'loss'"),
        (["--replicates", "3"], "at least 4"),
        (
            ["--attack", "colluding", "--colluders", "1"],
            "needs what a semi-honest client lacks: 'colluders'",
        ),
        (["--attack", "paper-single-shot", "--set", "data.holdout=0.0"], "set data.holdout"),
        (
            [
                "--attack",
                "side-channel",
                "--set",
                "privacy={method='sga-ldp'}",
                "--set",
                "compare={}",
            ],
            "under local trust no metric leaves",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["audit", "digits-cia", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_target_that_is_in_no_cohort_is_refused():
    one_of_many = {"name": "digits", "clients": 60, "holdout": 0.2}
    config = load("digits-cia", ["rounds=1", "clients_per_round=1"]).model_copy(
        update={"data": Data(**one_of_many)}
    )
    with pytest.raises(FieldError, match=r"--target = 59: is in no round's cohort in any run"):
        audit(config, attacks=("loss",), replicates=4)


@pytest.mark.few(0)
def test_the_command_prints_what_was_found_and_what_it_means(tmp_path, monkeypatch, few):
    monkeypatch.chdir(tmp_path)
    changes = [
        part for change in (*SMALL, "publish.metrics='noised'") for part in ("--set", change)
    ]
    attacks = [
        part
        for name in ("adaptive", "informed", "side-channel", "active")
        for part in ("--attack", name)
    ]
    result = CliRunner().invoke(
        app,
        [
            "audit",
            "digits-cia",
            *changes,
            *attacks,
            "--replicates",
            "4",
            "--shadow",
            "partial",
            "--out-world",
            "empty",
        ],
    )
    assert result.exit_code == 0, result.output
    for words in (
        "vanilla: guarantee none",
        "AUC without defence",
        "side-channel (clear) *",
        "informed (clear) *",
        "a client without examples",
        "4 runs can prove 0.00 at most",
        "4 runs in each world are few: one attack can prove an epsilon of at most 0.00",
        "All together prove, at 95%",
        "Metrics that clients see after each round: noised: z = 1",
        "shadow data lack classes that the target has (5, 6, 7, 8, 9)",
        "sequential test for errors of 5%",
        "written to runs/digits-cia-audit: audit.json, audit.md, audit.csv",
        "audit.png, audit.pdf, evidence.png, evidence.pdf",
    ):
        assert words in " ".join(result.output.split()), words
    assert result.output.index("attacks that work") < result.output.index("vanilla: guarantee none")
    assert (
        "cannot be compared" not in result.output
    )  # the guarantee is for zero-out, and "empty" plays that
    assert "(noised) *" not in result.output
    assert all(ord(c) >= 32 or c == "\n" for c in result.stdout)
    folder = tmp_path / "runs" / "digits-cia-audit"
    assert min((folder / name).stat().st_size for name in ("audit.png", "evidence.png")) > 20_000
    assert os.name != "posix" or {
        p.stat().st_mode & 0o777 for p in folder.iterdir() if p.is_file()
    } == {0o600}
    values = json.loads((folder / "audit.json").read_text())
    assert values["unit"] == "one run of the federation"
    assert {r["valid_without_defence"] for r in values["results"]} <= {True, False}


def test_ctrl_c_meets_a_clear_message(tmp_path, monkeypatch):
    def met(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedveil_lab.grid.store.run_together", met)
    changes = [part for change in SMALL for part in ("--set", change)]
    asked = [
        "audit",
        "digits-cia",
        *changes,
        "--attack",
        "loss",
        "--replicates",
        "4",
        "--out",
        str(tmp_path / "a"),
    ]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 130
    assert result.stderr.strip() == "fedveil: interrupted; go on with: the same command"
