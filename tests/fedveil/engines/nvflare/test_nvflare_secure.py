"""A secure sum under FLARE as sites deploy it: a key file, a policy that pins peers, a ledger for the data's life."""

import json

import pytest
import torch

from fedveil.engines.lifetime import read_head, read_ledger
from fedveil.engines.messages import PUBLIC
from fedveil.engines.nvflare.shareables import SHARE, write_broadcast
from fedveil.engines.site_keys import make_key
from fedveil.evidence import check_receipts
from fedveil.layout import Layout
from fedveil.methods import Broadcast, PublicFacts, build
from fedveil.nvflare import FedVeilExecutor, PrivacyFilter, ReleaseFilter, begin_ledger
from flare_kit import MODEL, SITES, Net, Site, run
from test_nvflare_executor import RECORD, ROUNDS, SECURE, TRAINING

pytestmark = pytest.mark.nvflare
PARAMETERS = {**RECORD, **SECURE}
LAYOUT = Layout.from_module(Net())


class Deployed:
    """Sites as their operators set them up, and what a job's server knows of them."""

    def __init__(self, folder, **policy):
        self.folder = folder
        self.keys = {site: make_key(folder / f"{site}.key").public.hex() for site in SITES}
        for site in SITES:
            begin_ledger(self.ledgers, site, by="the tests", head=self.heads)
            peers = [key for other, key in self.keys.items() if other != site]
            terms = "".join(f"{name} = {json.dumps(value)}\n" for name, value in policy.items())
            total = 'trust = ["secure sum"]\n[total]\nrecord_mu = 1.5\n'
            (folder / f"{site}.toml").write_text(
                f"{total}[sum]\npeers = {json.dumps(peers)}\n{terms}"
            )

    @property
    def ledgers(self):
        return self.folder / "ledgers"

    @property
    def heads(self):
        return self.folder / "heads"

    def site(self, name, folder, parameters=None):
        own = {"key": str(self.folder / f"{name}.key"), "policy": str(self.folder / f"{name}.toml")}
        kept = {"ledger": str(self.ledgers), "head": str(self.heads), "training": TRAINING}
        filters = [
            PrivacyFilter(MODEL, "record", parameters or PARAMETERS, **own, **kept),
            ReleaseFilter(),
        ]
        return Site(name, folder, FedVeilExecutor(), filters)

    def sites(self, folder):
        return [self.site(name, folder) for name in SITES]

    def entries(self, site):
        ledger, _, torn = read_ledger(self.ledgers / f"{site}.jsonl")
        read_head(self.ledgers / f"{site}.jsonl", self.heads)
        assert not torn
        return ledger.all_entries

    def question(self, number=1, attempt=0, roster=None, models=None, **changes):
        """A task's data, of a server that writes what it likes."""
        keys = (
            tuple(sorted(bytes.fromhex(key) for key in self.keys.values()))
            if roster is None
            else roster
        )
        terms = build("record", **PARAMETERS).noisy.agreed(LAYOUT.size)
        facts = {"run": "a run", "roster": keys, "terms": terms, **changes}
        public = PublicFacts(round=number, rounds=ROUNDS, cohort=3, dimension=LAYOUT.size, **facts)
        models = torch.zeros(1, LAYOUT.size) if models is None else models
        task = write_broadcast(Broadcast(models=models, public=public), LAYOUT, SITES)
        task["DXO"]["meta"][PUBLIC]["attempt"] = attempt
        return task


@pytest.fixture
def deployed(tmp_path):
    return Deployed(tmp_path)


def share_of(reply):
    """The share of a reply; None where it declined."""
    return torch.as_tensor(reply["DXO"]["data"][SHARE]) if reply.get_return_code() == "OK" else None


def played(deployed, folder):
    given = {
        "method": "record",
        "parameters": PARAMETERS,
        "rounds": ROUNDS,
        "site_training": True,
        "seed": None,
    }
    return run(folder, deployed.sites(folder), keys=deployed.keys, **given)


def test_a_job_is_summed_and_charged_once_a_question(deployed, tmp_path):
    found = played(deployed, tmp_path / "one")
    assert (found.engine.panics, found.stopped) == ([], "")
    assert [log.used for log in found.history] == [(0, 1, 2)] * ROUNDS
    assert bool(torch.isfinite(found.models).all())
    for site in SITES:
        assert [entry.key[0] for entry in deployed.entries(site)] == [1, 2]
        assert {entry.spend.guarantee.trust for entry in deployed.entries(site)} == {"secure sum"}


def test_each_accepted_share_of_a_job_is_found_paid_for_in_the_sites_ledgers(deployed, tmp_path):
    found = played(deployed, tmp_path / "one")
    server = next(tmp_path.rglob("server.jsonl"))
    checks = check_receipts(server, [deployed.ledgers])
    assert all(check.holds for check in checks), checks
    assert sum(check.kind == "promise" for check in checks) == len(found.history)


def test_a_second_job_is_held_to_what_the_first_one_spent(deployed, tmp_path):
    played(deployed, tmp_path / "one")
    again = played(deployed, tmp_path / "two")
    assert again.history == []
    assert all(len(deployed.entries(site)) == ROUNDS for site in SITES)


def test_a_question_put_twice_is_answered_with_the_same_bits_and_charged_once(deployed, tmp_path):
    site = deployed.site("site-a", tmp_path / "one")
    first, second = (share_of(site.do("train", deployed.question())) for _ in range(2))
    assert torch.equal(first, second)
    assert len(deployed.entries("site-a")) == 1


def test_other_contents_are_another_question(deployed, tmp_path):
    site = deployed.site("site-a", tmp_path / "one")
    first = share_of(site.do("train", deployed.question()))
    other = share_of(site.do("train", deployed.question(models=torch.ones(1, LAYOUT.size))))
    assert not torch.equal(first, other)
    assert len(deployed.entries("site-a")) == 2


def test_a_site_that_was_started_again_answers_no_question_a_second_time(deployed, tmp_path):
    first = share_of(deployed.site("site-a", tmp_path / "one").do("train", deployed.question()))
    again = share_of(deployed.site("site-a", tmp_path / "two").do("train", deployed.question()))
    assert first is not None
    assert again is None
    assert len(deployed.entries("site-a")) == 1


FOREIGN = bytes(31) + b"\x09"


@pytest.mark.parametrize(
    "changes",
    [
        {"roster": "two"},
        {"roster": "a stranger"},
        {"roster": "without this site"},
        {"roster": "one twice"},
        {"terms": ""},
        {"attempt": -1},
        {"roster": ()},
    ],
)
def test_what_no_contract_says_is_declined_before_anything_is_charged(changes, deployed, tmp_path):
    keys = {site: bytes.fromhex(key) for site, key in deployed.keys.items()}
    rosters = {
        "two": [keys["site-a"], keys["site-b"]],
        "a stranger": [*keys.values(), FOREIGN],
        "without this site": [keys["site-b"], keys["site-c"], FOREIGN],
        "one twice": [keys["site-a"], keys["site-b"], keys["site-b"]],
    }
    given = {
        name: tuple(sorted(rosters[value])) if value in rosters else value
        for name, value in changes.items()
    }
    site = deployed.site("site-a", tmp_path / "one")
    assert share_of(site.do("train", deployed.question(**given))) is None
    assert deployed.entries("site-a") == []


def test_a_site_answers_no_round_more_often_than_its_contract_says(tmp_path):
    deployed = Deployed(tmp_path, attempts=1)
    site = deployed.site("site-a", tmp_path / "one")
    assert share_of(site.do("train", deployed.question())) is not None
    assert share_of(site.do("train", deployed.question(attempt=1))) is None
    assert len(deployed.entries("site-a")) == 1
