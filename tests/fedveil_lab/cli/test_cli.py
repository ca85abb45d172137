"""The command line: exit codes, one clear line on stderr, plain lines when piped, speed of --help."""

import csv
import json
import re
import subprocess
import sys

import pytest
import tomli_w
import torch
from click.testing import CliRunner

import fedveil
from fedveil.cli import app
from fedveil_lab.config import load, presets
from fedveil_lab.runs import Summary
from fedveil_lab.runs import runner as runner_module

TINY = """
name = "tiny"
rounds = 3
[data]
name = "breast-cancer"
clients = 3
[model]
name = "logistic"
[privacy]
method = "global"
order = "printed"
noise_multiplier = 1.0
[compare]
settings = [
    { label = "vanilla", method = "vanilla" },
    { label = "global DP", method = "global" },
    { label = "metric privacy", method = "metric" },
]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_run_prints_plain_lines_and_what_holds(here):
    result = call("run", "tiny.toml", "--set", "privacy.method=metric", "--seed", "4")
    assert result.exit_code == 0, result.output
    assert "round 3/3  accuracy" in result.stdout
    assert "heuristic" in result.stdout
    assert not re.search(r"eps(ilon)?\W*\d", result.stdout)  # no figure: a hint may name the word
    assert all(ord(c) >= 32 or c == "\n" for c in result.stdout)
    summary = json.loads((here / "runs" / "tiny" / "summary.json").read_text())
    assert (summary["seed"], summary["method"]) == (4, "metric")
    assert summary["guarantee"].startswith("heuristic")


def test_a_folder_that_looks_like_an_option_is_refused(here):
    for command in (
        ["run", "tiny.toml"],
        ["compare", "tiny.toml"],
        ["reproduce", "metric-privacy"],
    ):
        result = call(*command, "--out", "--help")
        assert result.exit_code == 2
        assert "looks like an option" in result.stderr
    assert not (here / "--help").exists()


def test_a_second_run_is_refused_and_resume_is_not(here):
    assert call("run", "tiny.toml", "--out", "r").exit_code == 0
    again = call("run", "tiny.toml", "--out", "r")
    assert again.exit_code == 2
    assert again.stderr == (
        "fedveil: --out = 'r': holds a run already; go on with it by fedveil run r --resume, or give another --out\n"
    )
    assert call("run", "r", "--resume").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["run", "tiny.toml", "--out", "audit"],
            "holds an audit already; go on with it by the fedveil audit command that",
        ),
        (
            ["run", "tiny.toml", "--out", "lost"],
            "holds a run that has lost its config.toml; restore it, or run it again with another --out",
        ),
        (["run", "torn", "--resume"], "torn/checkpoint/run.json': cannot be read"),
        (
            ["compare", "torn", "--resume"],
            "holds a run, not a comparison; go on with it by fedveil run torn --resume",
        ),
        (
            ["run", "tiny.toml", "--out", "a run"],
            "go on with it by fedveil run 'a run' --resume, or",
        ),
        (["run", "tiny.toml", "--out", "mine"], "is not empty; give another --out"),
        (
            ["run", "comparison", "--resume"],
            "not a run; go on with it by fedveil compare comparison --resume",
        ),
        (
            ["compare", "run", "--resume"],
            "holds a run, not a comparison; go on with it by fedveil run run --resume",
        ),
        (
            ["compare", "audit", "--resume"],
            "holds an audit, not a comparison; go on with it by the fedveil",
        ),
        (
            ["compare", "tiny.toml", "--out", "study"],
            "holds a study already; go on with it by fedveil reproduce",
        ),
        (
            ["compare", "tiny.toml", "--out", "empty", "--resume"],
            "holds no comparison to go on with; leave --resume",
        ),
        (["audit", "tiny.toml", "--out", "run"], "holds a run, not an audit; give another --out"),
        (
            ["audit", "tiny.toml", "--out", "mine"],
            "holds other files, not an audit; give another --out",
        ),
        (["audit", "tiny.toml", "--out", "tiny.toml"], "is a file; give the path of a folder"),
        (
            ["reproduce", "metric-privacy", "--out", "run"],
            "holds a run, not a study; give another --out",
        ),
        (
            ["reproduce", "metric-privacy", "--out", "run", "--dry-run"],
            "holds a run, not a study; give another --out",
        ),
        (
            ["reproduce", "metric-privacy", "--out", "tables"],
            "holds tables of a study, and not its runs (cells/)",
        ),
        (
            ["reproduce", "metric-privacy", "--out", "mine"],
            "holds other files, not a study; give another --out",
        ),
        (
            ["reproduce", "metric-privacy", "--out", "tiny.toml"],
            "is a file; give the path of a folder",
        ),
        (
            ["reproduce", "metric-privacy", "--table", "7", "--out", "empty", "--no-run"],
            "holds no runs yet: leave --no-run out",
        ),
    ],
)
def test_what_a_folder_holds_is_named_and_left_alone(here, arguments, expected):
    (here / "study" / "cells" / "a-cell").mkdir(parents=True)
    (here / "empty").mkdir()
    files = [
        "run/checkpoint/run.json",
        "a run/metrics.jsonl",
        "audit/spec.json",
        "mine/notes.txt",
        "lost/summary.json",
    ]
    files += ["torn/metrics.jsonl", "tables/table-5.json"]
    files += [f"{folder}/config.toml" for folder in ("run", "a run", "torn", "comparison", "audit")]
    for file in files:
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / file).write_bytes((here / "tiny.toml").read_bytes())
    before = sorted(here.rglob("*"))
    result = call(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert [path for path in sorted(here.rglob("*")) if path.name != ".lock"] == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["run", "tiny.tml"],
            "CONFIG = 'tiny.tml': is neither a file nor a run folder nor a preset",
        ),
        (
            ["run", "tiny.toml", "--set", "rouds=2"],
            "rouds = 2: is no key here; did you mean 'rounds'?",
        ),
        (["run", "tiny.toml", "--set", "rounds"], "--set = 'rounds': must look like key=value"),
        (["run", "tiny.toml", "--resume"], "--resume = 'runs/tiny': holds no run to go on with"),
        (
            ["run", "tiny.toml", "--set", "data.holdout=2"],
            "data.holdout = 2.0: must be at least 0 and below 1",
        ),
        (
            ["run", "tiny.toml", "--set", "data.partition=counts"],
            "data.counts is missing: it is needed by the scheme 'counts'",
        ),
        (["run", "tiny.toml", "--seed", "-1"], "seed = -1: must be a whole number of at least 0"),
        (
            [
                "compare",
                "tiny.toml",
                "--set",
                "privacy.method=metric",
                "--set",
                "compare.sweep.distance=['mean']",
            ],
            "compare.sweep.distance = 'mean': accepted: cosine, euclidean, layer_frobenius",
        ),
        (
            ["compare", "tiny.toml", "--seeds", "0"],
            "--seeds = 0: must be a whole number of at least 1",
        ),
        (["plan", "--delta", "1e-5", "--rounds", "3"], "epsilon is missing: give either epsilon"),
        (
            ["plan", "--delta", "2", "--rounds", "3", "--epsilon", "1"],
            "delta = 2.0: must be a number strictly between",
        ),
        (["data", "prepare", "digit"], "data.name = 'digit': did you mean 'digits'?"),
    ],
)
def test_refusals_are_one_line_on_stderr_with_exit_code_2(here, arguments, expected):
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"fedveil: {expected}")
    assert len(result.stderr.splitlines()) == 1
    assert not (here / "runs").exists()


def test_unknown_options_have_exit_code_2_too(here):
    assert call("run", "tiny.toml", "--engine", "cloud").exit_code == 2
    assert call("run", "tiny.toml", "--colour").exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(here):
    result = call("run", "tiny.toml", "--device", "cuda")
    assert (result.exit_code, "there is no GPU" in result.stderr) == (2, True)
    assert call("run", "tiny.toml", "--device", "auto").exit_code == 0
    assert 'device = "cpu"' in (here / "runs" / "tiny" / "config.toml").read_text()


def test_the_budget_s_end_has_exit_code_3(here):
    result = call("run", "tiny.toml", "--set", "privacy.budget.epsilon=9.0", "--set", "rounds=30")
    assert result.exit_code == 3
    assert "stopped early: round" in result.stderr
    assert (here / "runs" / "tiny" / "model.safetensors").exists()


def test_no_reply_has_exit_code_4(here):
    result = call("run", "tiny.toml", "--set", "local.lr=1e39")  # every client diverges
    assert result.exit_code == 4
    assert "round 1: no usable reply" in result.stderr


def test_clients_that_all_decline_have_exit_code_3(here):
    result = call("run", "tiny.toml", "--set", "privacy.budget.participations=1")
    assert result.exit_code == 3
    assert "round 2: every client declined" in result.output


def test_an_interruption_has_exit_code_130_and_says_how_to_go_on(here, monkeypatch):
    real = runner_module.row_of

    def interrupting(record, *its):
        if record.round.number == 3:
            raise KeyboardInterrupt
        return real(record, *its)

    with monkeypatch.context() as patch:
        patch.setattr(runner_module, "row_of", interrupting)
        result = call("run", "tiny.toml", "--out", "r")
    assert result.exit_code == 130
    assert result.stderr == "fedveil: interrupted; go on with: fedveil run r --resume\n"
    resumed = call("run", "r", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "going on after round 2 of 3" in resumed.stdout


def test_an_edited_ledger_is_one_line_too(here):
    assert call("run", "tiny.toml", "--out", "r").exit_code == 0
    file = here / "r" / "ledger" / "server.jsonl"
    file.write_text(file.read_text().replace('"round": 2', '"round": 9'))
    result = call("run", "r", "--resume")
    assert result.exit_code == 2
    assert "was edited" in result.stderr


@pytest.mark.few(0)
def test_compare_end_to_end(here):
    result = call("compare", "tiny.toml", "--set", "compare.equal_sigma=true", "--out", "demo")
    assert result.exit_code == 0, result.output
    for word in (
        "accuracy",
        "AUC",
        "sigma",
        "noise/clip",
        "guarantee",
        "seconds",
        "vanilla",
        "global",
        "heuristic",
    ):
        assert word in result.stdout
    assert "metric privacy" in result.stdout
    assert "global (equal sigma)" in result.stdout
    assert "a study, not a deployment" in result.stdout
    assert "zero-out, client, central, total" in result.stdout
    assert "who replies with a usable model does not depend on private data" in result.stdout
    stored = json.loads((here / "demo" / "comparison.json").read_text())
    assert [s["setting"] for s in stored] == [
        "vanilla",
        "global DP",
        "metric privacy",
        "global (equal sigma)",
    ]
    for name in ("curves.png", "pareto.png"):
        assert (here / "demo" / name).read_bytes().startswith(b"\x89PNG")
    for folder in ("vanilla", "global-dp", "metric-privacy", "global-equal-sigma"):
        assert len(list((here / "demo" / "cells").glob(f"{folder}-*/summary.json"))) == 1
    assert call("compare", "tiny.toml", "--out", "demo").exit_code == 2
    assert call("compare", "demo", "--resume").exit_code == 0


@pytest.mark.usefixtures("undrawn")
def test_compare_without_out_takes_the_next_free_folder(here):
    for _ in range(2):
        assert call("compare", "tiny.toml", "--set", "rounds=1").exit_code == 0
    assert (here / "runs" / "tiny" / "comparison.json").exists()
    assert (here / "runs" / "tiny-2" / "comparison.json").exists()


def test_plan_gives_the_noise_of_a_budget_with_everything_it_means():
    budget = ["--epsilon", "8", "--delta", "1e-5", "--rounds", "20", "--relation", "replace-one"]
    result = call("plan", *budget, "--clients", "4", "--clip", "5", "--dimension", "6517476")
    assert result.exit_code == 0
    assert "6.71" in result.stdout  # per coordinate; 2 sqrt(20) / mu(8, 1e-5) * 5 / 4
    meanings = (
        "per coordinate",
        "replace-one",
        "client: all data",
        "central",
        "total over all 20 rounds",
        "hopeless",
    )
    for words in meanings:
        assert words in result.stdout


def test_plan_gives_the_budget_of_a_noise():
    result = call(
        *[
            "plan",
            "--noise-multiplier",
            "0.01",
            "--delta",
            "1e-5",
            "--rounds",
            "20",
            "--clients",
            "4",
        ]
    )
    assert result.exit_code == 0
    assert "vacuous" in result.stdout


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_configuration_is_named_with_the_way_out(here):
    assert call("run", "tiny.toml", "--out", "r").exit_code == 0
    assert call("compare", "tiny.toml", "--set", "rounds=1", "--out", "c").exit_code == 0
    for content in ("x =", "rouds = 2"):
        for folder in ("r", "c"):
            (here / folder / "config.toml").write_text(content)
        said = call("run", "r", "--resume").stderr
        assert "CONFIG = 'r/config.toml': cannot be read (" in said
        assert "restore it, or run it again with another --out" in said
        assert "finished runs are kept" in call("compare", "c", "--resume").stderr


def test_help_is_plain_text():
    shown = call("run", "--help").stdout
    assert "[required]" in shown
    assert "\\[" not in shown


def test_lists():
    listed = call("presets").stdout
    assert "each with 30 + 30 runs of 20 rounds a setting." in " ".join(listed.split())
    assert "begin" not in listed  # the second sentence of a comment
    data = call("data", "list").stdout
    assert "digits" in data
    assert "alzheimer" in data
    assert "needs no preparation" in call("data", "prepare", "digits").stdout


def test_help_needs_none_of_the_heavy_libraries():
    code = (
        "import sys, fedveil.cli\n"
        "try:\n    fedveil.cli.app(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'scipy', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_help_explains_arguments_too():
    assert "A run folder, a TOML file, or a preset's name." in call("audit", "--help").stdout


@pytest.mark.parametrize("module", ["fedveil", "fedveil.cli"])
def test_the_version_from_either_module(module):
    found = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout == f"fedveil {fedveil.__version__}\n"


def test_what_trains_nothing_does_not_wait_for_pytorch(tmp_path):
    program = (
        "import sys; from click.testing import CliRunner; from fedveil.cli import app\n"
        "for line in ['presets', 'run nowhere.toml', 'compare nowhere', 'audit nowhere', '--version',"
        " 'plan --epsilon 8 --delta 1e-5 --rounds 2', 'advise --clip 1 --sigma 2.4 --rounds 20 --epsilon 10']:\n"
        "    code = CliRunner().invoke(app, line.split()).exit_code\n"
        "    assert code == (2 if 'nowhere' in line else 0), line\n"
        "    assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules), line\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


@pytest.mark.slow
def test_a_run_at_record_level_loads_no_compiler(tmp_path):
    """They took longer than everything else up to the first round."""
    program = (
        "import sys; from click.testing import CliRunner; from fedveil.cli import app\n"
        "assert CliRunner().invoke(app, 'run digits-record --set rounds=1'.split()).exit_code == 0\n"
        "assert not {'torch._dynamo', 'sympy', 'scipy.stats', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_advise_names_everything_that_is_missing(here):
    said = call("advise", "--clients", "10").stderr
    assert all(name in said for name in ("--examples", "--dimension", "--rounds", "--epsilon"))
    assert "--clients" not in said


def test_verify_says_when_so_few_runs_test_nothing(here, monkeypatch):
    from fedveil_lab.attacks import Verdict
    from fedveil_studies.own_methods.game import PartyGame

    def game(mu):
        details = {"dimension": 1, "epsilon at delta 0": 0.0, "ceiling": 1.0, "broken": 0.0}
        about = {
            "attack": "a",
            "setting": "m",
            "figure": "mu",
            "n": 8,
            "replication": "one",
            "notes": ["mu = 1"],
        }
        verdict = Verdict.of(mu, details=details, **about)
        return PartyGame("game", [lambda: [verdict]], {"runs": 8})

    monkeypatch.setattr(
        "fedveil_studies.own_methods.noise_game", lambda: PartyGame("noise", [], {})
    )
    monkeypatch.setattr("fedveil_studies.own_methods.guarantees_game", lambda runs: game(0.0))
    assert "--runs" in call("verify", "--runs", "8").stdout
    monkeypatch.setattr("fedveil_studies.own_methods.guarantees_game", lambda runs: game(0.5))
    assert "--runs" not in call("verify", "--runs", "8").stdout


@pytest.mark.usefixtures("undrawn")
def test_tables_are_lines_of_json_and_quiet_prints_nothing(tmp_path):
    result = CliRunner().invoke(app, ["--json", "presets"])
    assert {row["preset"] for row in json.loads(result.stdout)} == set(presets())
    short = ["digits-compare", "--set", "rounds=2", "--out"]
    result = CliRunner().invoke(app, ["--json", "run", *short, str(tmp_path / "a")])
    told = json.loads(result.stdout)
    assert told["replies"]["used"] == 20
    assert told == json.loads((tmp_path / "a" / "summary.json").read_text())
    compared = CliRunner().invoke(
        app, ["--json", "compare", *short, str(tmp_path / "c"), "--set", "data.clients=4"]
    )
    assert [s["setting"] for s in json.loads(compared.stdout)][:2] == ["vanilla", "global DP"]
    assert json.loads(compared.stdout)[1]["noise"]["sigma"]["mean"] > 0
    result = CliRunner().invoke(app, ["-q", "run", *short, str(tmp_path / "b")])
    assert (result.exit_code, result.output) == (0, "")
    rows = list(csv.DictReader((tmp_path / "b" / "metrics.csv").open()))
    assert [row["round"] for row in rows] == ["1", "2"]
    assert (
        float(rows[-1]["accuracy"]) == Summary.read(tmp_path / "b").rows[-1]["metrics"]["accuracy"]
    )


def test_a_plan_is_read_from_a_configuration_and_options_come_first():
    plan = lambda *more: json.loads(  # noqa: E731
        CliRunner().invoke(app, ["--json", "plan", "digits-compare", *more]).stdout
    )
    config = load("digits-compare")
    assert plan()["clients"] == config.data.clients
    z = fedveil.accounting.plan(
        epsilon=8, delta=config.privacy.budget.delta, rounds=config.rounds
    ).noise_multiplier
    assert plan("--epsilon", "8")["noise_multiplier"] == pytest.approx(z)
    result = CliRunner().invoke(app, ["plan", "digits-sga-ldp"])
    assert result.exit_code == 2
    assert "advise" in result.output


def test_options_for_all_commands_stand_behind_a_command_too():
    assert call("presets", "--json").stdout == call("--json", "presets").stdout
    assert call("presets", "-q").output == ""
    assert (
        call("presets", "--", "--json").exit_code == 2
    )  # an argument, which the command does not take


@pytest.mark.usefixtures("undrawn")
def test_a_run_whose_epsilon_excludes_nothing_says_what_would_be_useful(here):
    small = "privacy.noise_multiplier=0.1"
    said = json.loads(call("run", "tiny.toml", "--json", "--set", small).stdout)["to be useful"]
    assert "record (record, trusted sum) possible" in said
    assert "global (client, central) hard" in said
    assert "epsilon 8 in total: " in call("compare", "tiny.toml", "--set", small).stdout
    strong = call(
        "run", "tiny.toml", "--json", "--set", "privacy.noise_multiplier=5", "--out", "strong"
    )
    assert "to be useful" not in json.loads(strong.stdout)


def test_advice_on_data_with_ids_says_which_unit_is_meant(here):
    for people, said in ((["data.made_up_people=3"], True), ([], False)):
        config = load("digits-record", people).to_dict()
        (here / "people.toml").write_bytes(tomli_w.dumps(config).encode())
        found = " ".join(call("advise", "people.toml").stdout.split())
        assert ('unit = "person" promises people' in found) == said
    assert 'unit = "person" promises' not in " ".join(
        call("advise", "digits-person").stdout.split()
    )


def test_advice_on_a_file_plans_for_the_sizes_that_it_plans_for(here):
    own = ["privacy.people=31", "privacy.records_per_person=9"]  # 9 at most: most people have fewer
    (here / "people.toml").write_bytes(tomli_w.dumps(load("digits-person", own).to_dict()).encode())
    said = json.loads(call("--json", "advise", "people.toml").stdout.splitlines()[1])
    persons = [one["privacy"] for one in said if one["unit"] == "person"]
    assert {one["people"] for one in persons if "people" in one} == {
        31
    }  # a client's promise may serve persons, too
    (here / "images.toml").write_bytes(
        tomli_w.dumps(load("digits-record", ["privacy.examples=90"]).to_dict()).encode()
    )
    said = json.loads(call("--json", "advise", "images.toml").stdout.splitlines()[1])
    assert {one["privacy"]["examples"] for one in said if one["unit"] == "record"} == {90}


def test_advice_on_a_run_folder_or_preset():
    assert "vacuous" in call("advise", "digits-cia").stdout
    assert call("advise", "digits-ci").exit_code == 2


def test_a_header_in_brackets_is_shown():
    named = "--clients 3 --examples 9 --dimension 9 --rounds 1 --epsilon 1"
    assert "in [privacy]" in call("advise", *named.split()).stdout


def test_pipes_break_no_row():
    text = CliRunner().invoke(app, ["reproduce", "--list"]).stdout
    assert all(
        title in text
        for title in ("Group privacy for personalised federated learning: Laplace noise on each",)
    )


@pytest.mark.usefixtures("undrawn")
def test_what_is_finished_is_shown_when_a_comparison_is_interrupted(tmp_path, monkeypatch):
    from fedveil_lab import grid

    short = ["compare", "digits-compare", "--set", "rounds=1", "--out", str(tmp_path / "c")]
    assert CliRunner().invoke(app, short).exit_code == 0

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "compare", interrupted)
    result = CliRunner().invoke(app, [*short, "--resume"])
    assert result.exit_code == 130
    assert all(s.label in result.output for s in load("digits-compare").compare.settings)


@pytest.mark.parametrize("command", [["reproduce", "--list"], ["data", "list"]])
def test_listing_needs_no_torch(command):
    code = f"import sys; from fedveil.cli import app; app({command}, standalone_mode=False)"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], capture_output=True
    )
    assert run.returncode == 0, run.stderr.decode()[-500:]
