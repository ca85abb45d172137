"""Hostile swarms in FLARE's simulator: nothing planted at a peer reaches the server or the other peers."""

import os
from pathlib import Path

import pytest

import fedveil as fv
from hello_kit import SITES
from intruder_kit import planted
from test_nvflare_recipes import HERE, RECORD, site
from test_nvflare_swarm import ROUNDS, swarm

from fedveil.nvflare import protect  # isort: skip

pytestmark = [pytest.mark.nvflare, pytest.mark.slow]
RECORDER = "recorder_kit.Recorder"


def played(folder, monkeypatch, parts=()):
    """Folders of a swarm whose second peer plants values, and the rounds that each peer kept."""
    from nvflare.recipe import SimEnv

    from recorder_kit import Recorder

    source = str(Path(fv.__file__).parents[1])
    path = [source, str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("FEDVEIL_SEEN", str(folder / "seen.bin"))
    (folder / "seen.bin").touch()
    training = {"data": "hostile_data:one_broken", "local": {"lr": 0.1}}
    own = site("record", RECORD, training=training, allow=[RECORDER])
    recipe = protect(swarm(), site=own, seed=1, sites=SITES, say=lambda text: None)
    recipe._job.to_server(Recorder(), id="recorder")
    for part in (Recorder(), *parts):
        recipe._add_to_client_apps(part, id=type(part).__name__.lower())
    recipe.execute(SimEnv(clients=SITES, workspace_root=str(folder / "work")))
    return sorted((folder / "work").rglob("fedveil/swarm.json"))


def test_a_peer_that_raises_with_what_it_holds_tells_nobody_of_it(tmp_path, monkeypatch):
    found = played(tmp_path, monkeypatch)
    assert f'"rounds": {ROUNDS}' in found[0].read_text()
    places = {path.name: path for path in (tmp_path / "work").rglob("*") if path.is_dir()}
    for name in ("server", "site-1", "site-3"):
        own = tmp_path / ("seen.bin" if name == "server" else f"seen.bin-{name}")
        assert own.stat().st_size > 10_000  # it was shown something
        assert planted(places[name], own) == []
    assert planted(places["site-2"], tmp_path / "seen.bin")  # so an empty search means something


def test_a_part_that_sends_events_lets_no_peer_learn(tmp_path, monkeypatch):
    from hostile_parts import Whisper

    try:
        found = played(tmp_path, monkeypatch, [Whisper()])
    except Exception:  # FLARE's simulator raises where its swarm ends early
        found = []
    assert found == []
