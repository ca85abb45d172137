"""docs/secure-sum-app.md, run as it stands: its code in one process, and all that a ward does before a study."""

import importlib
import sys

import pytest

pytest.importorskip("flwr")
from secure_sum_page import WARDS, blocks, set_up, shell, write_code

from fedveil.engines.lifetime import begin_ledger, read_ledger
from fedveil.engines.site_keys import make_key
from fedveil.flower import run_in_process

pytestmark = pytest.mark.flower


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The page's modules, of a folder of their own."""
    write_code(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("ward", "server_app")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield [importlib.import_module(name) for name in names]
    for name in names:
        sys.modules.pop(name, None)


def configurations(folder):
    """What the nodes' configurations and policies come to, of the page's policy."""
    *_, policy = blocks("toml")
    publics = [make_key(folder / f"ward{i}" / "study.key").public.hex() for i in range(WARDS)]
    found = []
    for i in range(WARDS):
        place, head = folder / f"ward{i}", folder / f"heads{i}"
        begin_ledger(place / "ledgers", f"ward{i}", by="the tests", head=head)
        peers = [key for j, key in enumerate(publics) if j != i]
        text = policy.replace("PUBLIC1", peers[0]).replace("PUBLIC2", peers[1])
        terms = text.partition("[node]")[
            0
        ]  # which is for `fedveil node`, and the rest for any node
        (place / "policy.toml").write_text(terms)
        keys = {
            "key": place / "study.key",
            "policy": place / "policy.toml",
            "ledger": place / "ledgers",
            "head": head,
            "dataset": f"ward{i}",
        }
        found.append({f"privacy.{name}": str(value) for name, value in keys.items()})
    return found


@pytest.mark.slow
def test_the_pages_app_learns_from_sums(code, tmp_path, capsys):
    ward, server = code
    config = {"out": str(tmp_path / "run")}
    run_in_process(
        server.app,
        ward.app,
        WARDS,
        run_config=config,
        node_configs=configurations(tmp_path),
    )
    said = capsys.readouterr().out
    assert "conditional eps=7.768 at delta=1e-05 (zero-out, record, secure sum, total" in said
    assert float(said.partition("accuracy ")[2][:4]) > 0.5
    for i in range(WARDS):
        ledger = tmp_path / f"ward{i}" / "ledgers" / f"ward{i}.jsonl"
        assert len(read_ledger(ledger)[0].all_entries) == ward.method.rounds


@pytest.mark.slow
def test_what_each_ward_does_before_a_study(tmp_path):
    write_code(tmp_path)
    for text in set_up(tmp_path):
        assert "ward:app alone runs" in text
        assert "trained: the sum of one step" in text
    shown = shell(tmp_path, blocks("sh")[-1])
    assert "agrees, 0 lines" in shown  # the rehearsal opened no ledger
