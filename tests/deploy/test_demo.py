"""A deployment to watch: three hospitals with TLS, keys and policies; one dies in mid-round; what gets nowhere."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chain import BIN, Chain, certificates, end, node_key, wait, write_app
from flwr.cli.build import build_fab_from_disk

from fedveil.engines.lifetime import read_head, read_ledger
from fedveil.node.bundle import Bundle
from fedveil.node.guard import WORDS
from fedveil.node.site import begin_site

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
HERE = Path(__file__).resolve().parents[2] / "examples" / "deployment"
POLICY = """\
trust = ["local"]
methods = ["record"]
deadline = 60

[release]
record_epsilon = 5.0

[total]
record_epsilon = 8.5

[node]
client = "hospital:app"
apps = ["{app}"]
projects = ["hospitals/study"]
ledger = "ledgers"
head = "{head}"
dataset = "ward-{number}"
"""


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def fedveil(*words):
    command = [sys.executable, "-m", "fedveil", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_three_hospitals(tmp_path, monkeypatch):
    began = time.monotonic()
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])  # where each hospital's own client is installed
    app = Bundle(build_fab_from_disk(HERE / "study")).sha256
    say(f"the study's app bundle: {app}")
    keys = [node_key(tmp_path / f"node{i}.pem") for i in range(4)]
    sites = []
    for number in range(3):
        folder, head = tmp_path / f"hospital{number}", tmp_path / f"disk{number}"
        policy = begin_site(folder, head, f"ward-{number}", "Dr. Roe: the study, approved")
        policy.write_text(POLICY.format(app=app, head=head, number=number))
        sites.append(folder)
    checked = fedveil("node", "check", sites[0])
    say(f"`fedveil node check` at the first hospital:\n{checked}")
    assert "hospital:app alone runs" in checked

    with Chain(tmp_path, certificates(tmp_path / "tls"), auth=True) as chain:
        for _, public in keys[:3]:
            done = subprocess.run([BIN / "flwr", "supernode", "register", public, "here"], env=chain.env, timeout=60)
            assert done.returncode == 0
        say("a SuperLink with TLS and node authentication; three keys are registered")
        nodes = [chain.supernode(i, sites[i], of=3, more="demo=1", key=keys[i][0]) for i in range(3)]
        chain.supernode(4, of=3, more="demo=1", key=keys[3][0], name="stranger")
        chain.supernode(5, of=3, more="demo=1", secure=False, name="no-tls")
        wait(lambda: all("SuperNode ID" in (tmp_path / f"node{i}.log").read_text() for i in range(3)), 300, *chain.logs)
        for name in ("stranger", "no-tls"):
            assert "SuperNode ID" not in (tmp_path / f"{name}.log").read_text()
            say(f"{name}: gets nowhere: {last(tmp_path / f'{name}.log')}")

        other = write_app(tmp_path / "other", "other", (HERE / "study" / "study" / "client.py").read_text())
        asked = time.monotonic()
        arrived = chain.run(other, tmp_path / "other.json", 400)
        patience = max(60.0, 1.5 * (time.monotonic() - asked))  # a round on this machine
        assert [reply["reason"] for reply in arrived["replies"]] == [WORDS[901]] * 3
        say(f"an app that no policy lists: three times {WORDS[901]!r}; the ledgers are untouched")
        assert not any(lines(site) for site in sites)

        out = tmp_path / "run"
        config = f'out="{out}" patience={patience:.1f}'
        chain.begin("study", [BIN / "flwr", "run", HERE / "study", "here", "--stream", "--run-config", config])
        log = tmp_path / "node2.log"
        before = log.read_text().count("Receiving: train")
        wait(lambda: log.read_text().count("Receiving: train") >= before + 3, 600, *chain.logs)
        end(nodes[2])
        say("the third hospital's node is killed in round 2")
        time.sleep(3)
        chain.supernode(2, sites[2], of=3, more="demo=1", key=keys[2][0], name="node2-back")
        say("and comes back")
        wait((out / "summary.json").exists, 900, *chain.logs)
        time.sleep(1)
    summary = json.loads((out / "summary.json").read_text())
    rounds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in rounds:
        say(f"round {row['round']}: failed {row['failed']}")
    assert summary["rounds"] == 4
    assert "2" in rounds[1]["failed"]
    for number, site in enumerate(sites):
        ledger, head = site / "ledgers" / f"ward-{number}.jsonl", tmp_path / f"disk{number}"
        book, _, _ = read_ledger(ledger)
        assert read_head(ledger, head).count == lines(site)
        assert len({entry.key for entry in book.all_entries}) in ((4,) if number < 2 else (3, 4))
        say(
            f"hospital {number}:\n{fedveil('ledger', 'show', ledger, '--head', head, '--policy', site / 'policy.toml')}"
        )
    told = re.search(r"test accuracy (0\.\d+).*", (tmp_path / "study.log").read_text())
    assert told, (tmp_path / "study.log").read_text()[-3000:]
    assert float(told[1]) > 0.6  # .78 to .80 over three seeds
    say(f"the server's folder: {sorted(p.name for p in out.iterdir())}; guarantee: {summary['guarantee']}")
    say(f"{told[0]}; {time.monotonic() - began:.0f} seconds")


def lines(site):
    [ledger] = (site / "ledgers").glob("*.jsonl")
    return ledger.read_text().count("\n") - 1


def last(log):
    found = [line for line in log.read_text().splitlines() if line.strip()]
    return found[-1].strip() if found else "not a word"
