"""Audits that are asked again in one folder, and how little an interruption loses."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from fedveil import experiments
from fedveil.accounting import Release
from fedveil.cli import app
from fedveil.errors import FedVeilError, FieldError, NoReplyError
from fedveil.experiments import audit, audit_plan, audit_play, load
from fedveil.experiments.audit_folder import CONFIG, SPEC, Earlier
from fedveil.experiments.audit_paper import play_single_shot
from fedveil.experiments.audit_plan import NAMES, plan_settings, stage_of, with_earlier
from fedveil.experiments.audit_play import Quiet
from fedveil.experiments.replicates import Stage
from fedveil.experiments.replicates_blocks import block_size, operations
from fedveil.experiments.replicates_record import Recording
from fedveil.experiments.replicates_roles import Roles
from fedveil.experiments.sections import Comparison

SMALL = ("rounds=1", f"data.counts={[[10] * 10, [10] * 10, [0] * 5 + [20] * 5]}")


class Listening(Quiet):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def few(monkeypatch):
    for module in (audit_plan, audit_play):
        monkeypatch.setattr(module, "REHEARSALS", 4)


def stage(*changes):
    config = load("digits-cia", [SMALL[1], *changes])
    return stage_of(plan_settings(config, False)[-1], Roles.of(3), config.seed)


def rows(found):
    return {(r["attack"], r["setting"]): r for r in found["results"]}


def test_a_later_call_keeps_the_attacks_and_the_replicates_of_the_folder(tmp_path, monkeypatch, few):
    config, folder = load("digits-cia", SMALL), tmp_path / "a"
    audit(config, folder, attacks=("side-channel", "paper-single-shot"), replicates=5)
    first = json.loads((folder / "audit.json").read_text())
    listening = Listening()
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "play", lambda self, cases, tick: pytest.fail(f"{len(cases)} replicates are played again"))
        audit(config, folder, attacks=("loss",), replicates=4, progress=listening)
    second = json.loads((folder / "audit.json").read_text())
    said = "kept from the audit in this folder: its attacks (side-channel, paper-single-shot) and its 5 replicates,"
    assert listening.said[0] == f"{said} instead of 4"
    assert second["replicates"] == 5
    assert {attack for attack, _ in rows(second)} == {"loss", "side-channel (noised)", "side-channel (clear)"}
    assert rows(first).items() <= rows(second).items()
    assert second["paper"] == first["paper"]
    listening, every = Listening(), ("side-channel", "loss", "paper-single-shot")
    audit(config, folder, attacks=every, replicates=5, progress=listening)
    assert not any("kept" in line for line in listening.said)
    assert json.loads((folder / "audit.json").read_text())["results"] == second["results"]
    audit(config, folder, attacks=("loss",), replicates=6)
    third = json.loads((folder / "audit.json").read_text())
    assert third["replicates"] == 6
    assert rows(third).keys() == rows(second).keys()
    (folder / "audit.json").write_text('{"results": 3}')
    with pytest.raises(FieldError, match=r"audit\.json'.*delete it, and ask again"):
        audit(config, folder, attacks=("loss",), replicates=4)


def test_nothing_is_kept_of_a_folder_without_results():
    assert with_earlier(("loss",), 4, Earlier()) == (("loss",), 4, "")
    names, runs, said = with_earlier(("active", "loss"), 30, Earlier(frozenset({"loss"}), 30))
    assert (names, runs, said) == (("loss", "active"), 30, "")
    assert with_earlier(("loss",), 4, Earlier(frozenset({"loss"}), 9))[1:] == (
        9,
        "kept from the audit in this folder: its 9 replicates, instead of 4",
    )


def test_blocks_are_as_small_as_replicates_are_slow():
    fast = stage()
    assert fast.block == 20
    wide = "model={name='small_cnn',channels=[32,64]}"
    assert stage(wide, "rounds=5").block > 1
    assert stage(wide, "rounds=100").block == 1
    assert stage(wide, "rounds=100", "workers=2").block == 2  # or one of them would be idle
    assert block_size(fast.config, fast.setup, kept=10**6, alone=0) == 1  # of memory
    assert block_size(fast.config, fast.setup, kept=1, alone=10**8) == 1  # of the adversary's own model


def test_operations_are_two_for_each_use_of_a_weight():
    dense = stage()
    x, vector = dense.setup.dataset.x, dense.setup.arguments["initial"][0]
    assert operations(dense.learner, vector, x) == 2 * 650
    small = stage("model={name='small_cnn',channels=[2,3],dense=5}")
    by_hand = 9 * 2 * 64 + 9 * 2 * 3 * 16 + 12 * 5 + 5 * 10  # images of 8x8 and 4x4, then two dense layers
    assert operations(small.learner, small.setup.arguments["initial"][0], x) == 2 * by_hand
    assert not any(part._forward_hooks for part in small.model.modules())


def test_an_interruption_in_the_second_block_keeps_the_first(tmp_path, monkeypatch, few):
    monkeypatch.setattr(Stage, "block", 1)
    config = load("digits-cia", SMALL)

    class Interrupting(Quiet):
        ticks = 0

        def advance(self, text):
            self.ticks += 1
            if self.ticks == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(config, tmp_path / "a", attacks=("loss",), replicates=4, progress=Interrupting())
    assert len((tmp_path / "a" / "replicates.jsonl").read_text().splitlines()) == 1


def test_a_reply_that_the_server_drops_counts_as_nothing_sent():
    federation = SimpleNamespace(models=torch.zeros(1, 3))
    sent = {0: torch.tensor([1.0, 2.0, 3.0]), 1: torch.tensor([1.0, float("nan"), 0.0])}
    record = SimpleNamespace(client_metrics=(), published={}, round=SimpleNamespace(report={}), metrics=None)
    played = SimpleNamespace(
        asked=SimpleNamespace(broadcast=SimpleNamespace(models=torch.zeros(1, 3)), partitions=(0, 1)),
        collected=SimpleNamespace(replies={p: (Release("model", v),) for p, v in sent.items()}),
        record=record,
    )
    recording = Recording(federation, (0, 1))
    recording.add(federation, played)
    assert recording.observation(2).sent[:, 0].tolist() == [[1, 2, 3], [0, 0, 0]]


def test_the_papers_shadow_is_its_own_whatever_is_asked():
    config = load("digits-cia", SMALL)
    clean, public = (play_single_shot(config, Roles.of(3, shadow=s), lambda: None) for s in ("clean", "public"))
    assert clean == public


def test_seed_and_device_are_those_of_the_other_commands(tmp_path, monkeypatch):
    asked = []

    def stop(config, folder, **options):
        asked.append(config)
        raise FedVeilError("asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiments, "audit", stop)
    for options in ([], ["--seed", "7", "--device", "auto"]):
        assert CliRunner().invoke(app, ["audit", "digits-cia", *options]).stderr == "fedveil: asked\n"
    assert [(c.seed, c.device) for c in asked] == [(0, "cpu"), (7, "auto")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["audit", "digits-cia", "--device", "cuda"])
    assert result.exit_code == 2
    assert "device = 'cuda': there is no GPU" in result.stderr


def test_its_help_names_every_attack():
    shown = CliRunner().invoke(app, ["audit", "--help"]).stdout
    listed = shown.partition("Attacks:")[2].partition("(")[0].split()
    assert set(listed) == set(NAMES)


def test_a_folder_of_an_earlier_version_goes_on(tmp_path, monkeypatch, few):
    config, folder = load("digits-cia", SMALL), tmp_path / "a"
    audit(config, folder, attacks=("loss",), replicates=4)
    stored = json.loads((folder / SPEC).read_text())
    stored["fingerprint"] = "of a version that knew fewer options"
    (folder / SPEC).write_text(json.dumps(stored))
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text("\n".join(line for line in text.splitlines() if not line.startswith("step_from")))
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "play", lambda self, cases, tick: pytest.fail("is played again"))
        audit(config, folder, attacks=("loss",), replicates=4)
    with pytest.raises(FieldError, match="another configuration"):
        audit(load("digits-cia", [*SMALL, "rounds=2"]), folder, attacks=("loss",), replicates=4)


def no_reply(*_):
    raise NoReplyError("round 1 ended without a reply")


def test_a_statistic_that_cannot_be_computed_is_refused_and_the_rest_stays(tmp_path, monkeypatch, few):
    config, folder = load("digits-cia", SMALL), tmp_path / "a"
    monkeypatch.setattr(audit_play, "play_single_shot", lambda *_: ([float("nan")], [1.0]))
    monkeypatch.setattr(audit_play, "play_multi_round", no_reply)
    found = audit(config, folder, attacks=("loss", "paper-single-shot", "paper-multi-round"), replicates=4)
    refused = {(r.attack, r.setting): r.reason for r in found.judged.refused}
    assert set(refused) == {(a, s) for a in ("paper-single-shot", "paper-multi-round") for s in ("vanilla", "global")}
    assert "the losses are nan and 1" in refused["paper-single-shot", "global"]
    assert "without a reply" in refused["paper-multi-round", "vanilla"]
    again = audit(config, folder, attacks=("loss",), replicates=4)  # from the folder
    assert {(r.attack, r.setting): r.reason for r in again.judged.refused} == refused
    assert again.judged.verdicts


def test_lines_of_another_version_are_not_dropped(tmp_path, few):
    config, folder = load("digits-cia", SMALL), tmp_path / "a"
    audit(config, folder, attacks=("loss",), replicates=4)
    lines = folder / "replicates.jsonl"
    torn = lines.read_text().splitlines()
    lines.write_text("\n".join(torn[:-1]) + "\n" + torn[-1][:20])
    audit(config, folder, attacks=("loss",), replicates=4)  # the torn one is played again
    newer = lines.read_text().replace('"stopped"', '"ended"', 1)
    lines.write_text(newer)
    with pytest.raises(FieldError, match=r"replicates\.jsonl, line 1 = .*|replicates\.jsonl, line 1.*another version"):
        audit(config, folder, attacks=("loss",), replicates=4)
    assert lines.read_text() == newer


def test_an_attack_that_only_some_defences_exclude_is_played_against_the_others(few):
    local = {"label": "local", "method": "sga-ldp"}
    config = load("digits-cia", SMALL)
    compared = config.model_copy(
        update={"compare": Comparison.model_validate({"settings": [{"method": "global"}, local]})}
    )
    found = audit(compared, attacks=("side-channel",), replicates=4, compare=True)
    assert {r.setting for r in found.judged.refused} == {"local"}
    assert {v.result.setting for v in found.judged.verdicts} >= {"global"}


def test_finished_runs_of_a_comparison_are_read(tmp_path, monkeypatch):
    config = load("digits-cia", SMALL)
    first = experiments.compare(config, tmp_path / "a")
    monkeypatch.setattr(sys.modules[experiments.compare.__module__], "run", lambda *_, **__: pytest.fail("run again"))
    again = experiments.compare(config, tmp_path / "a", resume=True)
    assert [s.values for s in again] == [s.values for s in first]
