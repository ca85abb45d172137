"""Runs and their folders: resuming to the same bits, refusals, ledgers, summaries."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from fedveil.accounting import Ledger
from fedveil.accounting.ledger import opening_digest
from fedveil.errors import FieldError, LedgerError
from fedveil.files import LedgerFiles
from fedveil_lab.config import load, parse
from fedveil_lab.grid import compare
from fedveil_lab.runs import deal, run
from fedveil_lab.runs.checkpoint import Checkpoint
from fedveil_lab.runs.runner import Silent

LINEAR = {"name": "breast-cancer", "clients": 3}
METHODS = {
    "global with fedadam": {
        "aggregator": {"name": "fedadam"},
        "privacy": {"method": "global", "noise_multiplier": 1.0, "clip": 1.0},
    },
    "sga-ldp": {"privacy": {"method": "sga-ldp", "epsilon_min": 5.0, "epsilon_max": 8.0}},
    "group": {"privacy": {"method": "group", "hypotheses": 2, "noise_multiplier": 1.0}},
    "metric": {"privacy": {"method": "metric"}, "clients_per_round": 2},
    "a model of its own": {
        "aggregator": {"name": "fedavgm"},
        "privacy": {
            "method": "global",
            "order": "printed",
            "step_from": "own",
            "noise_multiplier": 1.0,
            "clip": 1.0,
        },
    },
}


def config(**changes):
    base = {"name": "tiny", "rounds": 4, "data": LINEAR, "model": {"name": "logistic"}}
    return parse({**base, **changes})


class StopAfter(Silent):
    """Interrupts a run after a number of rounds, and remembers what it was told."""

    def __init__(self, rounds=None):
        self.rounds, self.said = rounds, []

    def advance(self, row):
        if row["round"] == self.rounds:
            raise KeyboardInterrupt

    def say(self, text):
        self.said.append(text)


def interrupt(spec, out, rounds):
    with pytest.raises(KeyboardInterrupt):
        run(spec, out, progress=StopAfter(rounds))


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def model_of(folder):
    return load_file(folder / "model.safetensors")


def assert_same_run(a, b):
    assert rows_of(a) == rows_of(b)
    assert model_of(a).keys() == model_of(b).keys()
    assert all(torch.equal(value, model_of(b)[name]) for name, value in model_of(a).items())
    for file in (a / "ledger").iterdir():
        assert file.read_bytes() == (b / "ledger" / file.name).read_bytes()


@pytest.mark.few(5)
@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("done", [1, 3])
def test_a_resumed_run_has_the_same_bits(tmp_path, name, done):
    spec = config(**METHODS[name])
    whole = run(spec, tmp_path / "whole")
    interrupt(spec, tmp_path / "parts", done)
    assert not (tmp_path / "parts" / "summary.json").exists()
    parts = run(spec, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert parts.values["guarantees"] == whole.values["guarantees"]
    assert parts.values["noise"] == whole.values["noise"]


@pytest.mark.flower
@pytest.mark.parametrize("name", ["global with fedadam", "sga-ldp"])
def test_flower_gives_the_same_bits_and_resumes_to_them(tmp_path, name):
    pytest.importorskip("flwr")
    run(config(**METHODS[name], trainer="sequential"), tmp_path / "local")
    spec = config(**METHODS[name], trainer="sequential", engine="flower")
    interrupt(spec, tmp_path / "flower", 2)
    run(spec, tmp_path / "flower", resume=True)
    assert rows_of(tmp_path / "local") == rows_of(tmp_path / "flower")
    local, flower = model_of(tmp_path / "local"), model_of(tmp_path / "flower")
    assert all(torch.equal(value, flower[key]) for key, value in local.items())


def test_a_crash_between_ledger_and_checkpoint_costs_nothing_twice(tmp_path):
    spec = config(**METHODS["sga-ldp"])
    run(spec, tmp_path / "whole")
    interrupt(spec, tmp_path / "parts", 2)
    for file in (
        tmp_path / "whole" / "ledger"
    ).iterdir():  # the third round's lines are written, its checkpoint not
        lines = file.read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line).get("round", 0) <= 3]
        (tmp_path / "parts" / "ledger" / file.name).write_text("".join(kept))
    run(spec, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.few(3)
@pytest.mark.parametrize("name", list(METHODS))
def test_a_finished_run_goes_on_for_more_rounds_to_the_same_bits(tmp_path, name):
    short, long = (config(**METHODS[name], rounds=rounds) for rounds in (3, 4))
    run(short, tmp_path / "parts")
    parts = run(long, tmp_path / "parts", resume=True)
    whole = run(long, tmp_path / "whole")
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    assert all(
        torch.equal(v, model_of(tmp_path / "whole")[k])
        for k, v in model_of(tmp_path / "parts").items()
    )
    assert parts.values["guarantees"] == whole.values["guarantees"]
    assert run(load(tmp_path / "parts"), tmp_path / "parts", resume=True).rows == parts.rows
    with pytest.raises(FieldError, match=r"see rounds"):
        run(short, tmp_path / "parts", resume=True)


def table_of(path, columns):
    """A configuration of a small table whose inputs come in the order of `columns`."""
    lines = [f"{row % 7},{row % 5},{row % 2}" for row in range(60)]
    path.write_text("\n".join(["cost,age,ill", *lines]))
    data = {"name": "table", "path": str(path), "target": "ill", "classes": 2, "clients": 2}
    return config(data={**data, "columns": {name: [0, 10] for name in columns}})


def forget_data():
    """Do as a new process does, which has read nothing yet."""
    deal._loaded.cache_clear()
    deal._digest.cache_clear()


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    file = tmp_path / "t.csv"
    spec = table_of(file, ("cost", "age"))
    forget_data()
    interrupt(spec, tmp_path / "run", 2)
    whole = file.read_text()
    file.write_text(whole.replace("6,", "5,"))
    forget_data()
    with pytest.raises(FieldError, match=r"^data ") as refused:
        run(spec, tmp_path / "run", resume=True)
    assert refused.value.field == "data"
    file.write_text(whole)
    forget_data()
    assert len(run(spec, tmp_path / "run", resume=True).rows) == 4


@pytest.mark.parametrize(("columns", "fits"), [(("cost", "age"), False), (("age", "cost"), True)])
def test_an_older_checkpoint_of_a_table_goes_on_where_its_inputs_are_the_same(
    tmp_path, columns, fits
):
    """Earlier versions fed a table's columns by their names' alphabet, and kept no digest of the data."""
    spec = table_of(tmp_path / "t.csv", columns)
    forget_data()
    interrupt(spec, tmp_path / "run", 2)
    kept = tmp_path / "run" / "checkpoint"
    replace(Checkpoint.read(kept), data="").write(kept)
    if fits:
        assert len(run(spec, tmp_path / "run", resume=True).rows) == 4
        return
    with pytest.raises(FieldError) as refused:
        run(spec, tmp_path / "run", resume=True)
    assert refused.value.field == "data"


def test_where_the_noise_follows_the_number_of_rounds_no_more_are_run(tmp_path):
    assignments = ["data.clients=3", "scoring.images=1", "scoring.method=signal"]
    run(load("digits-fedre", [*assignments, "rounds=1"]), tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(FieldError, match="made for 1 rounds"):
        run(load("digits-fedre", [*assignments, "rounds=2"]), tmp_path / "run", resume=True)
    assert {
        file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()
    } == before


def test_rounds_planned_for_an_epsilon_are_not_exceeded(tmp_path):
    planned = {"privacy": {"method": "global", "epsilon": 8.0, "rounds": 3, "clip": 1.0}}
    run(config(**planned, rounds=2), tmp_path / "run")
    run(config(**planned, rounds=3), tmp_path / "run", resume=True)
    with pytest.raises(FieldError, match="start anew"):
        run(config(**planned, rounds=4), tmp_path / "run", resume=True)
    held = {
        "privacy": {
            "method": "global",
            "noise_multiplier": 8.0,
            "clip": 1.0,
            "budget": {"epsilon": 1.2},
        }
    }
    first = run(config(**held, rounds=3), tmp_path / "held")
    more, whole = (
        run(config(**held, rounds=9), tmp_path / n, resume=n == "held") for n in ("held", "whole")
    )
    assert not first.values["stopped"]
    assert more.values["stopped"] == whole.values["stopped"] != ""
    assert more.values["rounds"] == whole.values["rounds"] < 9


def test_a_finished_run_resumes_to_itself(tmp_path):
    spec = config(**METHODS["metric"])
    first = run(spec, tmp_path / "run")
    again = run(spec, tmp_path / "run", resume=True)
    assert again.rows == first.rows
    assert again.values["metrics"] == first.values["metrics"]


def test_secure_noise_is_durable_line_by_line_and_drawn_again_after_a_crash(tmp_path):
    spec = config(**METHODS["global with fedadam"], source={"kind": "secure"})
    interrupt(spec, tmp_path / "run", 2)
    ids = json.loads((tmp_path / "run" / "checkpoint" / "run.json").read_text())
    summary = run(spec, tmp_path / "run", resume=True)
    assert summary.values["source"] == "secure"
    assert summary.values["rounds"] == 4
    lines = (tmp_path / "run" / "ledger" / "server.jsonl").read_text().splitlines()
    assert {json.loads(line)["run"] for line in lines} == {ids["run_id"]}
    fresh = run(spec, tmp_path / "other")
    assert fresh.values["metrics"] != summary.values["metrics"]


def test_what_is_there_is_never_overwritten(tmp_path):
    spec = config()
    run(spec, tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(
        FieldError,
        match=r"holds a run already; go on with it by .* --resume, or give another --out",
    ):
        run(spec, tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FieldError, match="is not empty"):
        run(spec, tmp_path / "mine")
    with pytest.raises(FieldError, match="is a file"):
        run(spec, tmp_path / "mine" / "notes.txt")
    with pytest.raises(FieldError, match="holds no run to go on with"):
        run(spec, tmp_path / "mine", resume=True)


def test_another_configuration_is_not_resumed(tmp_path):
    interrupt(config(), tmp_path / "run", 1)
    with pytest.raises(FieldError, match=r"another configuration \(see local.lr, seed\)"):
        run(config(seed=3, local={"lr": 0.3}), tmp_path / "run", resume=True)


def test_refusals_come_before_the_folder_is_made(tmp_path):
    with pytest.raises(FieldError, match=r"model\.input_shape"):
        run(config(model={"name": "small_cnn"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    interrupt(config(**METHODS["global with fedadam"]), folder, 2)
    return folder


@pytest.fixture
def ledger(interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path / "run")
    return tmp_path / "run" / "ledger" / "server.jsonl"


def resume(ledger, progress=None):
    return run(
        config(**METHODS["global with fedadam"]), ledger.parents[1], resume=True, progress=progress
    )


def test_an_interrupted_run_leaves_its_rounds_as_a_table(interrupted):
    assert [row["round"] for row in csv.DictReader((interrupted / "metrics.csv").open())] == [
        "1",
        "2",
    ]


def test_a_refused_resumption_leaves_the_folder_as_it_was(interrupted, tmp_path, monkeypatch):
    shutil.copytree(interrupted, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    first = metrics.read_text().splitlines()[0]
    metrics.write_text(
        metrics.read_text() + "half a line"
    )  # of a process that was killed: tidied by a run that goes on
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    monkeypatch.setattr(
        "fedveil_lab.runs.runner.prepare",
        lambda *_: (_ for _ in ()).throw(FieldError("data", 1, "is gone")),
    )
    with pytest.raises(FieldError, match="is gone"):
        resume(tmp_path / "run" / "ledger" / "server.jsonl")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    monkeypatch.undo()
    resume(tmp_path / "run" / "ledger" / "server.jsonl")
    assert metrics.read_text().splitlines()[0] == first
    assert [row["round"] for row in rows_of(tmp_path / "run")] == [1, 2, 3, 4]


def test_an_edited_ledger_is_refused(ledger):
    ledger.write_text(ledger.read_text().replace('"scale": [', '"scale": [1'))
    with pytest.raises(LedgerError, match="was edited"):
        resume(ledger)


def test_an_unreadable_whole_line_is_refused(ledger):
    ledger.write_text(ledger.read_text() + "half a li\n")
    with pytest.raises(LedgerError, match="cannot be read"):
        resume(ledger)
    ledger.write_bytes(b"\xff\xfe\n")
    with pytest.raises(LedgerError, match="no text"):
        resume(ledger)


def test_a_shortened_or_missing_ledger_is_refused(ledger):
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])
    with pytest.raises(LedgerError, match="has 1 whole lines, fewer than the 3"):
        resume(ledger)
    ledger.unlink()
    with pytest.raises(LedgerError, match="has 0 whole lines"):
        resume(ledger)


def test_the_ledger_of_another_run_is_refused(ledger, tmp_path):
    interrupt(config(**METHODS["global with fedadam"], seed=9), tmp_path / "other", 2)
    shutil.copy(tmp_path / "other" / "ledger" / "server.jsonl", ledger)
    with pytest.raises(LedgerError, match="belongs to run"):
        resume(ledger)


def test_a_torn_line_that_never_left_is_removed(ledger):
    third = ledger.read_text().splitlines()[-1][:200]
    ledger.write_text(ledger.read_text() + third)
    progress = StopAfter()
    resume(ledger, progress)
    assert any(
        "half-written last line was removed; its release never left" in text
        for text in progress.said
    )
    assert len(ledger.read_text().splitlines()) == 5


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_torn_line_that_its_checksum_proves_whole_counts_as_spent(ledger, missing):
    whole = ledger.read_text()
    ledger.write_text(whole[:-missing])  # the line end, and one or two brackets
    said = []
    book = LedgerFiles(ledger.parent, _run_id(ledger), durable=False, message=said.append)
    book.resume({"server": 3})
    assert "completed and counts as spent" in said[0]
    assert ledger.read_text() == whole


def test_a_torn_line_that_the_checkpoint_knows_is_refused(ledger):
    ledger.write_text(ledger.read_text()[:-40])
    with pytest.raises(LedgerError, match="whole lines"):
        resume(ledger)


def test_a_torn_line_of_the_metrics_is_done_again(ledger):
    metrics = ledger.parents[1] / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"round": 3, "met')
    resume(ledger)
    assert [row["round"] for row in rows_of(ledger.parents[1])] == [1, 2, 3, 4]


def test_a_damaged_checkpoint_is_refused(ledger):
    (ledger.parents[1] / "checkpoint" / "round.safetensors").write_bytes(b"nothing")
    with pytest.raises(FieldError, match="cannot be read"):
        resume(ledger)


def _run_id(ledger):
    return json.loads(ledger.read_text().splitlines()[0])["run"]


def test_a_failed_write_leaves_whole_lines_and_loses_none(tmp_path, monkeypatch):
    files = LedgerFiles(tmp_path, "r", durable=True, message=print)
    _, store = files.open("server")
    store("first")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            store("second")
    assert (tmp_path / "server.jsonl").read_text() == "first\n"
    store("third")
    assert (tmp_path / "server.jsonl").read_text() == "first\nsecond\nthird\n"


def test_the_server_s_budget_ends_the_run_with_the_last_released_model(tmp_path):
    privacy = {"method": "global", "noise_multiplier": 2.0, "budget": {"epsilon": 3.0}}
    summary = run(config(privacy=privacy), tmp_path / "run")
    assert "budget is used up" in summary.stopped
    assert summary.values["rounds"] < 4
    found = summary.values["guarantees"]["server"]
    assert found["epsilon"] <= 3.0
    last = run(
        config(privacy={**privacy, "budget": {}}, rounds=summary.values["rounds"]),
        tmp_path / "short",
    )
    assert all(
        torch.equal(v, model_of(tmp_path / "short")[k])
        for k, v in model_of(tmp_path / "run").items()
    )
    assert last.stopped == ""


def test_clients_stop_at_their_caps():
    summary = run(config(privacy={"method": "group", "budget": {"participations": 3}}, rounds=3))
    assert summary.values["replies"]["refused"] == 0
    summary = run(
        config(privacy={"method": "group", "budget": {"participations": 2, "leakage_cap": 9e9}})
    )
    assert "round 3: every client declined" in summary.stopped
    assert summary.values["rounds"] == 2
    leakage = 62 / 5
    summary = run(config(privacy={"method": "group", "budget": {"leakage_cap": 1.5 * leakage}}))
    assert "round 2: every client declined" in summary.stopped


def test_a_client_s_epsilon_under_local_trust_is_held():
    privacy = {"method": "sga-ldp", "similarity": "released", "budget": {"epsilon": 2.5}}
    summary = run(config(privacy=privacy))
    assert "every client declined" in summary.stopped
    assert all(
        g.get("epsilon", 0.0) <= 2.5 * (1 + 1e-9) for g in summary.values["guarantees"].values()
    )


def test_summaries_say_what_holds_and_nothing_more(tmp_path):
    spec = config(privacy={"method": "metric", "order": "printed"})
    summary = run(spec, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored == summary.values
    assert stored["guarantees"]["server"]["status"] == "heuristic"
    assert "epsilon" not in json.dumps(stored["guarantees"])
    assert "eps" not in stored["guarantee"]
    assert stored["source"] == "reproducible, not for deployment"
    assert {"fedveil", "torch", "numpy", "python"} <= set(stored["versions"])
    assert set(stored["noise"]) == {"sigma", "distance", "noise_to_clip", "signal_to_noise"}
    assert set(stored["noise"]["sigma"]) == {"first", "last", "mean"}
    assert stored["last_rounds"]["accuracy"]["rounds"] == 1
    sigma = stored["noise"]["sigma"]["mean"]
    assert stored["noise"]["noise_to_clip"]["mean"] == pytest.approx(sigma * 62**0.5 / 5)


def test_local_guarantees_are_those_of_the_worst_and_the_median_client():
    summary = run(
        config(privacy={"method": "group", "noise_multiplier": 2.0}, clients_per_round=2, rounds=3)
    )
    worst = summary.values["guarantees"]["worst client"]
    assert (
        worst["participations"] >= summary.values["guarantees"]["median client"]["participations"]
    )
    assert worst["leakage"] == pytest.approx(worst["participations"] * 62 / 2)
    assert worst["status"] == "heuristic"
    sound = run(config(privacy={"method": "group", "radius": 0.5}, rounds=1)).values["guarantees"][
        "worst client"
    ]
    assert sound["status"] == "conditional"
    assert sound["epsilon_per_distance"] == pytest.approx(62 / (5 * 0.5))
    assert "epsilon" not in sound


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(config()).values["guarantee"] == "none"
    assert list(tmp_path.iterdir()) == []


def test_fedre_runs_on_public_examples_set_aside():
    summary = run(
        config(
            rounds=1,
            data={"name": "digits", "clients": 3, "region": [3, 3, 4, 4], "public_examples": 8},
            model={"name": "small_cnn", "channels": [2], "dense": 4},
            privacy={"method": "fedre", "epsilon": 1e4},
        )
    )
    assert summary.values["replies"]["used"] == 3
    assert 0 < summary.noise("noise_to_clip") < 1


SETTINGS = {
    "settings": [
        {"method": "vanilla"},
        {"label": "global DP", "method": "global", "noise_multiplier": 0.01},
        {"method": "metric"},
    ],
    "equal_sigma": True,
}
COMPARISON = {
    "privacy": {"method": "global", "order": "printed", "noise_multiplier": 1.0},
    "compare": SETTINGS,
}


def test_equal_sigma_is_equal_and_a_heuristic():
    found = {s.setting: s for s in compare(config(**COMPARISON))}
    metric, equal = found["metric"], found["global (equal sigma)"]
    assert equal.noise("sigma") == pytest.approx(metric.noise("sigma"))
    assert equal.noise("sigma", "first") == equal.noise("sigma", "last")
    assert equal.values["guarantees"]["server"]["status"] == "heuristic"
    assert "derived from private runs of 'metric'" in equal.values["guarantees"]["server"]["reason"]
    assert "epsilon" in found["global DP"].values["guarantees"]["server"]


def test_a_comparison_goes_on_where_it_stopped(tmp_path):
    spec = config(**COMPARISON)
    whole = compare(spec, tmp_path / "whole", seeds=2)

    class Third(StopAfter):
        begun = 0

        def begin(self, label, done, rounds):
            self.begun += 1
            self.rounds = 2 if self.begun == 3 else None

    with pytest.raises(KeyboardInterrupt):
        compare(spec, tmp_path / "parts", seeds=2, progress=Third())
    with pytest.raises(FieldError, match="go on with it by fedveil compare"):
        compare(spec, tmp_path / "parts", seeds=2)
    with pytest.raises(FieldError, match="another configuration"):
        compare(config(**COMPARISON, seed=1), tmp_path / "parts", resume=True)
    parts = compare(spec, tmp_path / "parts", resume=True)  # no fewer seeds than were begun
    for a, b in zip(whole, parts, strict=True):
        assert (a.setting, a.values["seed"], a.values["metrics"]) == (
            b.setting,
            b.values["seed"],
            b.values["metrics"],
        )
    stored = json.loads((tmp_path / "parts" / "comparison.json").read_text())
    assert [(s["setting"], s["seed"]) for s in stored] == [
        (s.setting, s.values["seed"]) for s in whole
    ]
    assert len(list((tmp_path / "parts" / "cells").glob("global-dp-*/summary.json"))) == 2


def test_thousands_of_clients_share_one_file_unless_each_line_has_to_be_durable(tmp_path):
    run(config(**METHODS["sga-ldp"]), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "ledger").iterdir()} == {
        "clients.jsonl",
        "server.jsonl",
    }
    run(config(**METHODS["sga-ldp"], source={"kind": "secure"}), tmp_path / "secure")
    assert {"0.jsonl", "1.jsonl"} < {
        path.name for path in (tmp_path / "secure" / "ledger").iterdir()
    }


@pytest.mark.parametrize("cut", [1, 2, 30, 200])
def test_a_torn_line_of_the_shared_file_is_completed_or_drawn_again(tmp_path, cut):
    spec = config(**METHODS["sga-ldp"])
    run(spec, tmp_path / "whole")
    interrupt(spec, tmp_path / "parts", 2)
    whole, parts = (tmp_path / name / "ledger" / "clients.jsonl" for name in ("whole", "parts"))
    lines = whole.read_text().splitlines(keepends=True)
    written = len(parts.read_text().splitlines())
    parts.write_text("".join(lines[: written + 2])[:-cut])
    run(spec, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_runs_folder_is_its_owners_and_names_what_carries_no_noise(tmp_path):
    data, out = {"name": "breast-cancer", "clients": 3}, tmp_path / "new" / "run"
    tiny = {"name": "tiny", "rounds": 1, "data": data, "model": {"name": "logistic"}}
    values = run(parse(tiny), out).values
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    for path in (out, *out.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    named = (out / "PRIVATE.txt").read_text()
    for name in values["private"]:
        assert "*" in name or (out / name).exists()  # the command writes tables afterwards
        assert name in named
    assert {"metrics.jsonl", "summary.json", "checkpoint"} <= set(values["private"])


@pytest.mark.parametrize(
    ("name", "parties"),
    [("global with fedadam", {"server"}), ("sga-ldp", {"server", "0", "1", "2"})],
)
@pytest.mark.parametrize("kind", ["reproducible", "secure"])
def test_the_first_line_of_each_ledger_binds_the_parties_of_the_run(tmp_path, name, parties, kind):
    run(config(**METHODS[name], source={"kind": kind}), tmp_path / "run")
    ledgers = LedgerFiles(
        tmp_path / "run" / "ledger", _run_id_of(tmp_path / "run"), durable=False, message=print
    )
    ledgers.resume({})
    opening = ledgers.books["server"].opening
    assert set(opening["parties"]) == parties <= ledgers.books.keys()
    assert (opening["trust"], opening["delta"]) == (
        "local" if name == "sga-ldp" else "central",
        1e-5,
    )
    rest = [ledgers.books[party].opening for party in parties - {"server"}]
    assert all(one == {"of": opening_digest(opening)} for one in rest)


def test_a_run_whose_ledgers_bind_nothing_goes_on_without(tmp_path):
    """As an earlier version left it."""
    spec, folder = config(**METHODS["global with fedadam"]), tmp_path / "run"
    interrupt(spec, folder, 2)
    ledger = folder / "ledger" / "server.jsonl"
    old = Ledger(_run_id_of(folder), "server")
    entries = Ledger.parse(old.run, "server", ledger.read_text().splitlines()).entries
    ledger.write_text("".join(f"{old.commit(entry)}\n" for entry in entries))
    checkpoint = Checkpoint.read(folder / "checkpoint")
    replace(checkpoint, lines={"server": 2}).write(folder / "checkpoint")
    assert run(spec, folder, resume=True).values["rounds"] == 4
    assert Ledger.parse(old.run, "server", ledger.read_text().splitlines()).opening is None


def _run_id_of(folder):
    return json.loads((folder / "checkpoint" / "run.json").read_text())["run_id"]


def test_with_early_stopping_the_best_model_lies_beside_the_last(tmp_path):
    data = {**LINEAR, "clients": 6}
    stopping = {"clients": 0.4, "patience": 9, "losses": "public"}
    never_better = {"data": data, "stopping": {**stopping, "min_delta": 1e6}}
    run(config(**never_better), tmp_path / "long")
    run(config(**never_better, rounds=1), tmp_path / "first")
    best = load_file(tmp_path / "long" / "best.safetensors")
    first, last = model_of(tmp_path / "first"), model_of(tmp_path / "long")
    assert all(torch.equal(best[name], first[name]) for name in first)
    assert any(not torch.equal(best[name], last[name]) for name in last)
