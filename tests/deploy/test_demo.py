"""A deployment to watch: three hospitals with TLS, keys and policies; one dies in mid-round; what gets nowhere."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from chain import BIN, Chain, certificates, end, node_key, wait, write_app
from flwr.cli.build import build_fab_from_disk

from fedveil.engines.lifetime import read_head, read_ledger
from fedveil.engines.site_keys import make_key, read_key
from fedveil.methods import Broadcast, PublicFacts
from fedveil.node.bundle import Bundle
from fedveil.node.guard import WORDS
from fedveil.node.site import begin_site

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
HERE = Path(__file__).resolve().parents[2] / "examples" / "deployment"
POLICY = """\
trust = ["secure sum"]
methods = ["record"]
deadline = 60

[total]
person_epsilon = 8.1

[sum]
peers = {peers}
least_sites = 3
colluding = 1
attempts = 3

[node]
client = "hospital:app"
apps = ["{app}"]
projects = ["hospitals/study"]
ledger = "ledgers"
head = "{head}"
dataset = "ward-{number}"
"""


STRANGERS = ("stranger", "no-tls")


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def fedveil(*words):
    command, found = (
        [sys.executable, "-m", "fedveil", *map(str, words)],
        os.pathsep.join(filter(None, sys.path)),
    )
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": found}
    ).stdout.strip()


def test_three_hospitals(tmp_path, monkeypatch):
    began = time.monotonic()
    monkeypatch.setattr(
        sys, "path", [str(HERE), *sys.path]
    )  # where each hospital's own client is installed
    app = Bundle(build_fab_from_disk(HERE / "study")).sha256
    say(f"the study's app bundle: {app}")
    keys = [node_key(tmp_path / f"node{i}.pem") for i in range(4)]
    sites, heads = [[tmp_path / f"{what}{i}" for i in range(3)] for what in ("hospital", "disk")]
    policies = [
        begin_site(sites[i], heads[i], f"ward-{i}", "Dr. Roe: the study, approved")
        for i in range(3)
    ]
    publics = [make_key(site / "study.key").public.hex() for site in sites]  # fedveil keys new
    for i, policy in enumerate(policies):
        peers = json.dumps([key for key in publics if key != publics[i]])
        policy.write_text(POLICY.format(app=app, head=heads[i], number=i, peers=peers))
    say(f"three keys for the secure sum; each policy pins the other two: {publics}")
    checked = fedveil("node", "check", sites[0])
    say(f"`fedveil node check` at the first hospital:\n{checked}")
    assert "hospital:app alone runs" in checked

    with Chain(tmp_path, certificates(tmp_path / "tls"), auth=True) as chain:
        for _, public in keys[:3]:
            done = subprocess.run(
                [BIN / "flwr", "supernode", "register", public, "here"], env=chain.env, timeout=60
            )
            assert done.returncode == 0
        say("a SuperLink with TLS and node authentication; three keys are registered")

        def supernode(i, name=None, **more):
            own = f'privacy.key="{sites[i] / "study.key"}"' if i < 3 else "demo=1"
            return chain.supernode(
                i, sites[i] if i < 3 else None, of=3, more=own, name=name, **more
            )

        nodes = [supernode(i, key=keys[i][0]) for i in range(3)]
        supernode(3, "stranger", key=keys[3][0])
        supernode(4, "no-tls", secure=False)
        wait(
            lambda: all(
                "SuperNode ID" in (tmp_path / f"node{i}.log").read_text() for i in range(3)
            ),
            300,
            *chain.logs,
        )
        wait(
            lambda: all("retrying" in (tmp_path / f"{n}.log").read_text() for n in STRANGERS),
            60,
            *chain.logs,
        )
        for name in STRANGERS:
            say(f"{name}: gets nowhere: {last(tmp_path / f'{name}.log')}")

        other = write_app(
            tmp_path / "other", "other", (HERE / "study" / "study" / "client.py").read_text()
        )
        asked = time.monotonic()
        arrived = chain.run(other, tmp_path / "other.json", 400)
        patience = max(
            80.0, 2 * (time.monotonic() - asked)
        )  # longer than a node that is gone counts as there
        assert [reply["reason"] for reply in arrived["replies"]] == [WORDS[901]] * 3
        say(f"an app that no policy lists: three times {WORDS[901]!r}; the ledgers are untouched")
        assert not any(lines(site) for site in sites)

        out, log = tmp_path / "run", tmp_path / "node2.log"
        before = log.read_text().count("Receiving: train")
        config = f'out="{out}" patience={patience:.1f}'
        chain.begin(
            "study",
            [BIN / "flwr", "run", HERE / "study", "here", "--stream", "--run-config", config],
        )
        wait(lambda: log.read_text().count("Receiving: train") >= before + 3, 600, *chain.logs)
        end(nodes[2])
        say(
            "the third hospital's node is killed in round 2: two shares without the third are random numbers"
        )
        say("the server asks all three another question once it is back")
        comes_back(
            lambda: supernode(2, "node2-back", key=keys[2][0]),
            tmp_path / "node2-back.log",
            chain.logs,
        )
        wait((out / "summary.json").exists, 900, *chain.logs)
        wait(lambda: "test accuracy" in (tmp_path / "study.log").read_text(), 60, *chain.logs)
        assert not any(
            "SuperNode ID" in (tmp_path / f"{name}.log").read_text() for name in STRANGERS
        )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 3
    for i, site in enumerate(sites):
        ledger = site / "ledgers" / f"ward-{i}.jsonl"
        book, _, _ = read_ledger(ledger)
        assert read_head(ledger, heads[i]).count == lines(site)
        questions = len({entry.key for entry in book.all_entries})
        assert (
            questions == 4 if i < 2 else questions in (3, 4)
        )  # one round was asked twice, and both were paid for
        shown = fedveil("ledger", "show", ledger, "--head", heads[i], "--policy", policies[i])
        say(f"hospital {i}:\n{shown}")
    told = re.search(r"test accuracy (0\.\d+).*", (tmp_path / "study.log").read_text())
    assert told, (tmp_path / "study.log").read_text()[-3000:]
    assert float(told[1]) > 0.65  # .74 to .76 over three seeds
    run = re.search(r"the sums of run '(.*)'", (tmp_path / "study.log").read_text())[1]
    first, _, _ = read_ledger(sites[0] / "ledgers" / "ward-0.jsonl")
    asked = [len({e.key for e in first.all_entries if e.key[0] == number}) for number in (1, 2, 3)]
    assert torch.equal(load_model(out / "model.safetensors"), plain_model(sites, run, asked))
    say(
        "the model is that of the plain integer sums, computed once more with all three keys, to the bit"
    )
    say(
        f"the server's folder: {sorted(p.name for p in out.iterdir())}; guarantee: {summary['guarantee']}"
    )
    took = time.monotonic() - began
    say(f"{told[0]}; {took:.0f} seconds")


def load_model(path):
    from hospital import LAYOUT, network
    from safetensors.torch import load_file

    module = network()
    module.load_state_dict(
        {
            name: value.reshape(module.state_dict()[name].shape)
            for name, value in load_file(path).items()
        }
    )
    return LAYOUT.read(module)


def plain_model(sites, run, asked):
    """What rounds that were `asked` so many times come to without a mask, for whoever has all keys."""
    from hospital import LAYOUT, METHOD, TRAINER, network, patients

    model, keys = LAYOUT.read(network()), [read_key(site / "study.key") for site in sites]
    for number, times in enumerate(asked, start=1):
        roster = tuple(sorted(key.public for key in keys))
        about = {"round": number, "rounds": 3, "cohort": 3, "dimension": LAYOUT.size}
        public = PublicFacts(**about, run=run, attempt=times - 1, roster=roster)
        broadcast = Broadcast(models=model[None], public=public)
        context, total = (
            METHOD.question(broadcast, LAYOUT),
            torch.zeros(LAYOUT.size, dtype=torch.int64),
        )
        for partition, key in enumerate(keys):
            source = key.source(context.digest)
            [made] = TRAINER.train_noisily(
                broadcast.models, [patients(partition)], [(0,)], [source.child("train")]
            )
            mark = int.from_bytes(hashlib.sha256(made.total.numpy().tobytes()).digest(), "big")
            total += made.total + context.terms.noise.sample(
                LAYOUT.size, source=source.child("noise", mark)
            )
        step = total.double() * context.terms.grid / (METHOD.denominator * len(keys))
        model = model + (-METHOD.lr * step).to(model.dtype)
    return model


def comes_back(start, log, logs):
    """Start a node again until the SuperLink takes it: for a minute it believes that the one which died is there."""
    tried, began = [start()], time.monotonic()

    def there():
        if "SuperNode ID" in log.read_text():
            return True
        if tried[-1].poll() is not None:
            time.sleep(8)
            tried.append(start())
        return False

    wait(there, 150, *logs)
    say(f"it is back after {time.monotonic() - began:.0f} s, at the start no. {len(tried)}")


def lines(site):
    [ledger] = (site / "ledgers").glob("*.jsonl")
    return ledger.read_text().count("\n") - 1


def last(log):
    found = [line for line in log.read_text().splitlines() if line.strip()]
    return found[-1].strip() if found else "not a word"
