"""A soak: many rounds of 50 clients with 1,000 parameters, a tenth failing at random; nothing grows, ledgers are exact."""

import warnings

import pytest

import fedveil as fv
from endurance_kit import CLIENTS, EXAMPLES, ROUNDS, Clock, Watch, examples, failing, note, thousand
from fedveil.accounting import OPEN, Ledger, total
from fedveil.learning.scoring import Scoring
from fedveil.methods import build

pytestmark = pytest.mark.slow

RECORD = {"examples": EXAMPLES, "noise_multiplier": 50.0, "clip": 0.5, "rounds": ROUNDS}
PERSON = {
    "unit": "person",
    "people": EXAMPLES // 2,
    "records_per_person": 2,
    "noise_multiplier": 50.0,
    "clip": 0.5,
    "rounds": ROUNDS,
}
SUMS = {
    "none": {},
    "trusted": {"sum": "trusted", "silos": CLIENTS, "tolerated": 10},
    "secure": {"sum": "secure", "least_sites": CLIENTS, "lr": 0.1},
}
METHODS = {
    "vanilla": ("vanilla", {}),
    "global": ("global", {"noise_multiplier": 50.0, "clip": 1.0}),
    "metric": ("metric", {"noise_multiplier": 50.0, "clip": 1.0}),
    "group": ("group", {"noise_multiplier": 50.0}),
    "ifca": ("ifca", {"hypotheses": 2}),
    "fedre": ("fedre", {"clip": 0.2}),
    "sga-ldp": ("sga-ldp", {"clip": 0.5}),
    **{f"record, sum {name}": ("record", {**RECORD, **values}) for name, values in SUMS.items()},
    **{f"person, sum {name}": ("record", {**PERSON, **values}) for name, values in SUMS.items()},
}
# Bytes that a line of a ledger, or a round's record in the history, may take in memory; both are kept on purpose.
A_LINE, A_ROUND = 6_000, 40_000


class Kept:
    """Every ledger, with its lines as they would lie in a file: their number and chain are checked, and no bits kept."""

    def __init__(self):
        self.ledgers, self.lines = {}, {}

    def __call__(self, party):
        ledger = self.ledgers.setdefault(party, Ledger("soak", party))
        lines = self.lines.setdefault(party, [])
        return ledger, lines.append


@pytest.mark.parametrize("name", METHODS)
def test_soak(name):
    method, options = METHODS[name]
    kept, watch = Kept(), Watch(name)
    federation = fv.Federation(
        model=thousand,
        clients=[examples(partition) for partition in range(CLIENTS)],
        method=build(method, **options),
        local=fv.LocalTraining(lr=0.1),
        seed=1,
        shared=fv.Shared(region=(0, 0, 2, 2), public_data=examples(CLIENTS)),
        execution=fv.Execution(run_id="soak", ledgers=kept, tell=lambda text: None),
    )
    federation.learner.scoring = Scoring(images=1)  # of FedRE: a product for each of its pixels
    failed = failing(federation)
    with Clock() as clock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = federation.run(ROUNDS, on_round=watch)
    assert len(history.rounds) == ROUNDS
    share = len(failed) / (ROUNDS * CLIENTS)
    assert abs(share - 0.1) < 5 * (0.09 / (ROUNDS * CLIENTS)) ** 0.5
    lines = _require_exact(name, kept, history)
    slopes = watch.slopes()
    note(
        "soak",
        name,
        rounds=ROUNDS,
        clients=CLIENTS,
        failed=len(failed),
        lines=lines,
        seconds=clock.wall,
        **{"processor seconds": clock.cpu},
        **slopes,
    )
    assert abs(slopes["files a round"]) < 0.01
    assert abs(slopes["threads a round"]) < 0.01
    assert slopes.get("tensor bytes a round", 0.0) < A_ROUND
    if ROUNDS >= 200:  # before that, what is loaded on the way is most of it
        assert slopes["bytes a round"] < A_ROUND + A_LINE * lines / ROUNDS


def _require_exact(name, kept, history):
    """Each release stands in its ledger once, the chain is whole, and the total is that of the lines. Number of lines."""
    method, options = METHODS[name]
    sites = {party: ledger for party, ledger in kept.ledgers.items() if party != "server"}
    read = {p: Ledger.parse("soak", p, lines) for p, lines in kept.lines.items() if lines}
    for party, ledger in read.items():
        assert ledger.entries == kept.ledgers[party].entries
        assert ledger.checksum == kept.ledgers[party].checksum
        keys = [entry.key for entry in ledger.entries]
        assert len(set(keys)) == len(keys) == ROUNDS
        assert sorted(key[0] for key in keys) == list(range(1, ROUNDS + 1))
        assert not [entry for entry in ledger.entries if entry.digest == OPEN]
    trust = build(method, **options).client.trust
    if trust in ("local", "trusted sum", "secure sum"):  # who failed is charged like anybody
        assert len(sites) == CLIENTS
        assert set(sites) <= set(read)
        charged = total(entry.spend.guarantee for entry in read["0"].entries)
    else:
        charged = total(entry.spend.guarantee for entry in read["server"].entries)
    assert history.guarantee.status == charged.status
    if charged.proven:
        assert history.guarantee.epsilon(1e-5) == pytest.approx(charged.epsilon(1e-5), rel=1e-9)
    return sum(map(len, kept.lines.values()))
