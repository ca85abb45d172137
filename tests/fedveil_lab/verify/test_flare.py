"""FLARE jobs: what their sites send is read whole, and what cannot be judged gets one sentence."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.flare import (
    FlareTable,
    Simulations,
    failure_in,
    final_model,
    is_flare_job,
    require_in_process,
    require_loaded,
    sites_of,
    transcript_of,
)
from fedveil_lab.verify.flare_probe import flare_watch
from fedveil_lab.verify.flare_probe.flare_watch import LOADED
from fedveil_lab.verify.isolation import NoVerdict
from fedveil_lab.verify.sections import section_beside
from verify_kit import EXAMPLES

JOB = EXAMPLES / "flare-job"
LOCAL = PrivacyClaim.parse("eps=1 delta=1e-5 replace-one client total local")


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """FLARE itself is not watched, where another test has imported it."""
    monkeypatch.setattr(flare_watch, "USERS", ("codec",))


def message(**headers):
    """A message of FLARE's, as far as the probe looks at it."""
    return SimpleNamespace(headers={f"cn__{k}": v for k, v in headers.items()}, payload=None)


class Codec(ModuleType):
    """FLARE's two functions."""

    def __init__(self):
        super().__init__("codec")
        self.seen = []
        self.encode_payload = lambda message, *rest, **options: self.seen.append(message.payload)
        self.decode_payload = self.decoded

    def decoded(self, message, *rest, **options):
        message.payload = {"DXO": {"kind": "WEIGHTS", "data": {"w": np.ones(3)}}}


def kept(folder):
    """What the probe has written down."""
    return [pickle.loads(file.read_bytes()) for file in sorted(folder.glob("*.pkl"))]


def test_weights_meta_headers_events_and_streams_are_read(tmp_path):
    codec = Codec()
    flare_watch.watch_messages(codec, flare_watch.SiteLog(str(tmp_path)), counts_as_nothing=False)
    sent = message(topic="submit")
    sent.payload = {
        "DXO": {"data": {"w": np.arange(3.0)}, "meta": {"rows": 7}},
        "__headers__": {"round": 1, "site": "a"},
        "event": {"loss": 0.5, "words": "abc"},
    }
    codec.encode_payload(sent)
    piece = message(channel=flare_watch.PIECES)
    piece.payload = b"again"
    codec.encode_payload(piece)  # of a message that was read whole
    codec.decode_payload(message(payload_encoding="fobs"))
    streamer = SimpleNamespace(
        ByteStreamer=type("ByteStreamer", (), {"send": lambda self, *a: a[-1].read(9)})
    )
    flare_watch.watch_streams(streamer, flare_watch.SiteLog(str(tmp_path / "s")))
    streamer.ByteStreamer().send(
        "c", "log", "t", {}, SimpleNamespace(read=lambda size: b"x" * size)
    )
    out, received = kept(tmp_path)
    assert (out["kind"], received["kind"]) == ("out", "in")
    assert out["values"]["DXO/meta/rows"] == 7
    assert out["values"]["__headers__/round"] == 1
    assert out["values"]["event/loss"] == 0.5
    assert out["values"]["event/words#text"][0] == 3
    assert out["values"]["DXO/data/w"].tolist() == [0, 1, 2]
    [stream] = kept(tmp_path / "s")
    assert (stream["kind"], stream["values"]["bytes#text"][0]) == ("stream", 9)
    assert len(codec.seen) == 2  # FLARE has encoded both


@pytest.mark.parametrize(("kind", "value"), [("WEIGHTS", 1.0), ("WEIGHT_DIFF", 0.0)])
def test_a_site_that_counts_as_nothing_answers_what_it_was_sent(tmp_path, kind, value):
    codec = Codec()
    flare_watch.watch_messages(codec, flare_watch.SiteLog(str(tmp_path)), counts_as_nothing=True)
    codec.decode_payload(message(payload_encoding="fobs"))
    answer = message()
    answer.payload = {"DXO": {"kind": kind, "data": {"w": np.full(3, 5.0)}}}
    codec.encode_payload(answer)
    assert answer.payload["DXO"]["data"]["w"].tolist() == [value] * 3


def test_a_turn_begins_when_a_model_arrives(tmp_path):
    folder = flare_watch.SiteLog(str(tmp_path / "a"))
    folder.add("out", "", {"hello": np.zeros(())})
    for number in range(2):
        folder.add("in", "task", {"DXO/data/w": np.full(2, number)})
        folder.add("out", "result", {"DXO/data/w": np.full(2, 10 + number)})
        folder.add("out", "event", {"loss": np.array(1.0)})
        folder.add("out", "event", {"loss": np.array(2.0)})
    np.save(tmp_path / "ignored.npy", np.zeros(2))
    (tmp_path / "ws" / "server").mkdir(parents=True)
    np.savez(tmp_path / "ws" / "server" / "model.npz", w=np.full(2, 20.0))
    found = transcript_of(tmp_path, ["a"], "said")
    assert [turn.sent["DXO/data/w"][0] for turn in found.sites["a"]] == [0, 1]
    assert [turn.left["DXO/data/w"][0] for turn in found.sites["a"]] == [10, 11]
    assert [float(v) for k, v in found.sites["a"][0].left.items() if "loss" in k] == [1, 2]
    assert found.final["w"].tolist() == [20, 20]
    (tmp_path / "ws" / "server" / "model.npz").write_bytes(b"no model")
    assert final_model(tmp_path / "ws") == {}


def test_data_are_replaced_as_soon_as_their_module_is_imported(tmp_path, monkeypatch):
    (tmp_path / "loads_rows.py").write_text(
        "import numpy as np\ndef load():\n    return np.ones((2, 3)), np.zeros(2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    run = {"data": "loads_rows:load", "unit": "record", "relation": "add/remove", "base": ""}
    run |= {"rows": 1, "neighbours": "", "worlds": {"a": {"units": [(0, True)]}}}
    run["folder"] = str(tmp_path)
    flare_watch.watch_loading(run, "a")
    import loads_rows

    assert not (tmp_path / "a").exists()
    assert len(loads_rows.load()[0]) == 3
    assert (tmp_path / "a" / flare_watch.LOADED).is_file()


def test_sockets_reach_this_machine_alone():
    script = """
import socket, sys
sys.path.insert(0, sys.argv[1])
import flare_watch
flare_watch.close_network()
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
for ask in (
    lambda: socket.create_connection(("203.0.113.1", 80)),
    lambda: socket.socket().connect_ex(("203.0.113.1", 80)),
    lambda: socket.getaddrinfo("example.org", 80),
):
    try:
        ask()
    except OSError as error:
        assert flare_watch.CLOSED in str(error), error
    else:
        raise SystemExit(1)
"""
    probe = str(Path(flare_watch.__file__).parent)
    subprocess.run([sys.executable, "-c", script, probe], check=True)


def test_the_example_says_what_it_is():
    assert is_flare_job(JOB)
    assert not is_flare_job(EXAMPLES / "flower-app")
    table = FlareTable.of(section_beside(JOB).flare, JOB)
    asked = json.loads((JOB / "app" / "config" / "config_fed_server.json").read_text())
    assert len(table.names) == asked["workflows"][0]["args"]["num_clients"]


def test_sites_that_a_job_names_are_taken(tmp_path):
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps({"deploy_map": {"a": ["server"], "b": ["x"], "c": ["y", "z"]}}))
    assert sites_of(tmp_path) == ["x", "y", "z"]
    assert FlareTable.of({"data": "t:f"}, tmp_path).names == ("x", "y", "z")
    meta.write_text("[")
    with pytest.raises(FieldError):
        sites_of(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"data": "load"},
        {"data": "t:f", "sites": 2},
        {"data": "t:f", "sites": ["a"]},
        {"data": "t:f", "site": 3},
        {"data": "t:f", "rows": 0},
    ],
)
def test_a_table_that_says_too_little_is_refused(values, tmp_path):
    with pytest.raises(FieldError):
        FlareTable.of(values, tmp_path)


@pytest.mark.parametrize("word", ["external_process", "SubprocessLauncher"])
def test_a_job_that_trains_in_processes_of_its_own_is_refused_before_it_runs(tmp_path, word):
    folder = shutil.copytree(JOB, tmp_path / "job")
    require_in_process(folder)
    config = folder / "app" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace("in_process", word))
    with pytest.raises(FieldError, match=word):
        require_in_process(folder)


def test_a_site_whose_data_were_never_replaced_gets_no_verdict(tmp_path):
    table = FlareTable(data="clinic_task:load_data", sites=3)
    for name in table.names:
        (tmp_path / name).mkdir()
        (tmp_path / name / LOADED).touch()
    require_loaded(tmp_path, table)
    (tmp_path / "site-2" / LOADED).unlink()
    with pytest.raises(NoVerdict, match="site-2"):
        require_loaded(tmp_path, table)


def test_the_first_error_of_a_log_is_told():
    log = "12 - ERROR - aborted\nTraceback (most recent call last):\nValueError: no such column\nLateError: 3"
    assert failure_in(log) == "ValueError: no such column"
    assert failure_in("12 - ERROR - first\n13 - ERROR - then") == "12 - ERROR - first"


def changed(tmp_path, old, new):
    """The example's job with another line in its data."""
    folder = shutil.copytree(JOB, tmp_path / "job")
    task = folder / "app" / "custom" / "clinic_task.py"
    task.write_text(task.read_text().replace(old, new))
    return folder


@pytest.mark.slow
@pytest.mark.nvflare
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raise ValueError('no such column')", "no such column"),
        ("import socket; socket.create_connection(('203.0.113.1', 80))", "network"),
        ("import time; time.sleep(600)", "hangs"),
    ],
)
def test_a_job_that_does_not_run_gets_no_verdict(tmp_path, line, why):
    pytest.importorskip("nvflare")
    folder = changed(tmp_path, "    draw = ", f"    {line}\n    draw = ")
    table = FlareTable(data="clinic_task:load_data", sites=3)
    worlds = {name: {"units": [(0, False)], "zeroed": False} for name in table.names}
    with Simulations(folder, table, LOCAL, 60) as simulations, pytest.raises(NoVerdict, match=why):
        simulations.run(worlds, shared=True)


@pytest.mark.slow
@pytest.mark.nvflare
def test_the_example_is_refuted_in_a_few_runs(tmp_path):
    pytest.importorskip("nvflare")
    command = ["verify", str(JOB), "--canaries", "40", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert {one["by"] for one in verdict["caught"]} == {"worst-case world", "inspection"}
    assert verdict["effort"]["runs"] == 7
