"""Promises computed anew from the draws of a ledger's lines: one that is smaller is refused, whatever else agrees."""

from dataclasses import replace
from functools import cache

import pytest

from engine_kit import federation
from fedveil.accounting import PLD, Entry, Ledger, Spend
from fedveil.accounting.bounds import GDP, ZCDP, MetricDP, MetricGDP
from fedveil.accounting.events import Gaussian, Poisson
from fedveil.accounting.guarantee import Guarantee
from fedveil.clipping import QuantileClip
from fedveil.evidence import Book
from fedveil.evidence.carried import carried
from fedveil.evidence.recomputed import on_their_word, too_small
from fedveil.methods import Publishing, RecordDP, Validation, build

PEOPLE = {"unit": "person", "people": 20, "records_per_person": 2}
RECORDS = {
    "full batches": RecordDP(examples=20, noise_multiplier=2.0, clip=0.5, steps=3),
    "Poisson lots": RecordDP(examples=20, noise_multiplier=2.0, clip=0.5, steps=3, rate=0.5),
    "lots that are replaced": RecordDP(
        examples=20, noise_multiplier=2.0, relation="replace-one", rate=0.5
    ),
    "private sizes": RecordDP(examples=20, noise_multiplier=2.0, relation="add/remove"),
    "a target": RecordDP(examples=20, epsilon=3.0, rounds=4, steps=2),
    "a trusted sum": RecordDP(
        examples=20, noise_multiplier=2.0, sum="trusted", silos=5, tolerated=2
    ),
    "a secure sum": RecordDP(
        examples=20, noise_multiplier=2.0, sum="secure", least_sites=4, colluding=2, lr=0.1
    ),
    "persons": RecordDP(**PEOPLE, noise_multiplier=2.0, silos_per_person=2, steps=3),
    "persons in a trusted sum": RecordDP(
        **PEOPLE, noise_multiplier=2.0, silos_per_person=2, sum="trusted", silos=5, tolerated=2
    ),
}
NUMBERS = {"noise_multiplier": 2.0, "clip": 1.0}
SGA = {"epsilon_min": 1.0, "epsilon_max": 4.0, "delta": 1e-5, "clip": 0.5}
METHODS = {
    "a central mean": build("global", **NUMBERS),
    "replace-one": build("global", relation="replace-one", **NUMBERS),
    "discrete noise": build("global", noise="discrete", **NUMBERS),
    "an adaptive clip": build("global", noise_multiplier=2.0, clip=QuantileClip(bit_noise=3.0)),
    "a released distance": build("metric", distance_on="released", **NUMBERS),
    "layers": build("fedre", scores="public", split="size", clip=0.5),
    "a released cosine": build("sga-ldp", similarity="released", **SGA),
    "a noised cosine": build("sga-ldp", similarity="noised", **SGA),
    "a static rule": build("sga-ldp", **{**SGA, "epsilon_max": 1.0}),
    "shown metrics": build("global", **NUMBERS),
    "a vector, Laplace": build("group", noise_multiplier=2.0, radius=1.0),
    "a vector, Gaussian": build("group", noise_multiplier=2.0, radius=1.0, distribution="gaussian"),
}


def lines_of(method, **more):
    """All lines of a run's ledgers, by party."""
    run = federation("global", method=method, **more)
    run.run(2)
    return {party: ledger.entries for party, ledger in run.books().items() if ledger.entries}


@cache
def spends_of(name):
    """Proven spends as parties charged them."""
    if name in RECORDS:
        return [RECORDS[name].spend()]
    if name == "a validation loss":
        return [Validation(noise_multiplier=4.0).quote("local")]
    more = {"publishing": Publishing(metrics="noised")} if name == "shown metrics" else {}
    lines = lines_of(METHODS[name], **more)
    return [entry.spend for own in lines.values() for entry in own if entry.spend.guarantee.proven]


NAMES = [*RECORDS, *METHODS, "a validation loss"]


def faults(*spends, terms=None):
    return too_small("party", written(*spends), terms or {})


def written(*spends):
    """Lines of a ledger of them, as they are read."""
    ledger = Ledger("run", "party")
    lines = [
        ledger.commit(Entry((number, "protect"), 0, f"{number:064x}", spend, "secure"))
        for number, spend in enumerate(spends, start=1)
    ]
    return Ledger.parse("run", "party", lines).entries


@pytest.mark.parametrize("name", NAMES)
def test_what_was_charged_follows_from_what_was_drawn(name):
    assert spends_of(name)
    assert not faults(*spends_of(name))
    assert not on_their_word(written(*spends_of(name)))


def smaller(bound):
    """Bounds that promise more."""
    if isinstance(bound, GDP):
        yield replace(bound, mu=bound.mu * 0.99)
        if bound.mu_per_distance is not None:
            yield replace(bound, mu_per_distance=bound.mu_per_distance * 0.99)
    elif isinstance(bound, ZCDP):
        yield ZCDP(bound.rho * 0.99)
    elif isinstance(bound, MetricGDP):
        yield MetricGDP(bound.mu_per_distance * 0.99)
    elif isinstance(bound, MetricDP):
        yield replace(bound, epsilon_per_distance=bound.epsilon_per_distance * 0.99)
        [(event, count)] = bound.events_per_distance
        yield replace(
            bound, events_per_distance=((replace(event, shift=event.shift * 0.99), count),)
        )
    else:
        assert isinstance(bound, PLD)
        [(event, count)] = bound.events
        z = event.event.noise_multiplier
        yield PLD(((Poisson(event.rate * 0.99, event.event), count),))
        yield PLD(((Poisson(event.rate, Gaussian(z * 1.01)), count),))
        yield GDP(0.01)
        if count > 1:
            yield PLD(((event, count - 1),))


@pytest.mark.parametrize("name", NAMES)
def test_a_promise_below_its_own_draws_is_refused(name):
    spend = spends_of(name)[0]
    tried = 0
    for bound in smaller(least(spend).bound):
        tried += 1
        assert faults(replace(spend, guarantee=replace(spend.guarantee, bound=bound))), bound
    assert tried


def least(spend):
    """The promise that follows from the draws, where the stated one is a worst case."""
    if spend.charge is None:
        return spend.guarantee
    return replace(spend.guarantee, bound=GDP(spend.charge))


@pytest.mark.parametrize("name", ["a released distance", "a noised cosine"])
def test_what_a_filter_charges_is_no_less_than_the_draws(name):
    for spend in spends_of(name):
        assert not faults(spend)
        assert faults(replace(spend, charge=spend.charge * 0.99))


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("full batches", {"relation": "replace-one"}),
        ("full batches", {"unit": "person"}),
        ("persons", {"silos_per_person": 3}),
        ("persons", {"silos_per_person": 1}),
        ("a central mean", {"relation": "replace-one"}),
        ("replace-one", {"relation": "zero-out"}),
        ("a trusted sum", {"trust": "local"}),
        ("a secure sum", {"trust": "local"}),
    ],
)
def test_a_promise_under_another_name_is_refused(name, labels):
    spend = spends_of(name)[0]
    assert faults(replace(spend, guarantee=replace(spend.guarantee, **labels)))


def test_a_sum_counts_on_no_more_parties_than_the_run_s_first_line_binds():
    spend = spends_of("a trusted sum")[0]
    assert not faults(spend, terms={"sum": "trusted", "silos": 5, "tolerated": 2})
    assert faults(spend, terms={"sum": "trusted", "silos": 4, "tolerated": 2})
    more = replace(spend.draws[0], parties=3, lost=3)
    assert faults(replace(spend, draws=(more,)))


def test_a_sum_of_whose_noise_nothing_counts_is_refused():
    spend = RECORDS["a secure sum"].spend()
    for lost in (4, 5):
        assert faults(spend, terms={"sum": "secure", "least_sites": 4, "colluding": lost})


@pytest.mark.parametrize("bound", [GDP(1.0), ZCDP(1.0)])
@pytest.mark.parametrize(
    "changes",
    [{"moved": 1e300, "noise": 1e-300}, {"moved": 1e200}, {"noise": 5e-324}, {"steps": 10**18}],
)
def test_draws_beyond_every_number_are_a_fault_and_no_traceback(bound, changes):
    spend = RECORDS["full batches"].spend()
    draw = replace(spend.draws[0], **changes)
    promise = replace(spend.guarantee, bound=bound)
    assert faults(replace(spend, guarantee=promise, draws=(draw,)))


def test_a_forged_line_is_a_fault_of_its_run_and_one_without_draws_is_told_apart():
    told = {
        "trust": "local",
        "delta": 1e-5,
        "conditions": [],
        "setting": "s",
        "method": "m",
        "engine": "e",
    }
    told |= {"clients": None, "terms": {}}
    entries = [
        Entry((number, "protect"), 0, str(number), RECORDS["full batches"].spend(), "secure")
        for number in (1, 2)
    ]
    true, forged, old = Ledger("run", "0"), Ledger("run", "0"), Ledger("run", "0")
    half = replace(entries[0].spend.guarantee, bound=GDP(entries[0].spend.guarantee.mu / 2))
    lines = {ledger: [] for ledger in (true, forged, old)}
    for entry in entries:
        weaker = replace(entry.spend, guarantee=half, scale=(), sensitivity=None)
        lines[true].append(true.commit(entry))
        lines[forged].append(forged.commit(replace(entry, spend=weaker)))
        lines[old].append(old.commit(replace(entry, spend=replace(entry.spend, draws=()))))
    found = {
        ledger: carried(
            "run", {"0": Book(ledger, tuple(own)), "1": Book(ledger, tuple(own))}, told, {}
        )
        for ledger, own in lines.items()
    }
    assert not found[true].faults
    assert any("round 1" in fault for fault in found[forged].faults)
    assert not found[old].faults
    assert [on_their_word(ledger.entries) for ledger in (true, old)] == [0, len(entries)]


def test_an_intent_of_a_method_whose_noise_follows_the_update_is_no_promise_on_its_word():
    made = spends_of("a released cosine")[0]
    spend = METHODS["a released cosine"].client._spend((), 1.0)
    ledger = Ledger("run", "0")
    ledger.commit(Entry((1, "protect"), 0, "0" * 64, made, "secure"))
    ledger.commit(Entry((2, "protect"), 0, "open", spend, "secure"))
    assert spend.guarantee.proven
    assert not on_their_word(ledger.entries)
    assert not too_small("0", ledger.entries)


def test_an_intent_that_no_line_with_draws_bears_out_is_on_its_word():
    """Else a forger turns releases into intents with a smaller promise, and nobody is told."""
    spend = RECORDS["full batches"].spend()
    small = replace(spend.guarantee, bound=GDP(1e-9))
    forged = replace(spend, guarantee=small, scale=(), sensitivity=None, draws=())
    ledger = Ledger("run", "0")
    ledger.commit(Entry((1, "protect"), 0, "0" * 64, spend, "secure"))
    ledger.commit(Entry((2, "protect"), 0, "open", forged, "secure"))
    assert on_their_word(ledger.entries) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": ()},
        {"scale": (1e9, 1e9)},
        {"scale": (0.0,)},
        {"scale": (float("nan"),)},
        {"mechanism": "none"},
    ],
)
@pytest.mark.parametrize("name", ["a vector, Gaussian", "a vector, Laplace"])
def test_a_promise_over_a_distance_without_its_noise_is_on_its_word(name, changes):
    spend = spends_of(name)[0]
    small = replace(spend, guarantee=replace(spend.guarantee, bound=MetricGDP(1e-9)), **changes)
    entry = Entry((1, "protect"), 0, "0" * 64, small, "secure")
    assert not on_their_word([replace(entry, spend=spend)])
    assert on_their_word([entry]) == 1


def test_a_promise_over_a_distance_of_another_mechanisms_scale_is_on_its_word():
    spend = spends_of("a vector, Laplace")[0]
    other = replace(spend, guarantee=replace(spend.guarantee, bound=MetricGDP(1e-9)))
    assert on_their_word([Entry((1, "protect"), 0, "0" * 64, other, "secure")]) == 1


def test_a_spend_of_somebody_s_own_is_read_as_it_was_written():
    promise = Guarantee(
        unit="client", relation="zero-out", trust="central", scope="round", bound=GDP(1.0)
    )
    spend = Spend(guarantee=promise, mechanism="gaussian", scale=(1.0,), sensitivity=1.0)
    [entry] = written(spend)
    assert entry.spend == spend
    assert on_their_word([entry]) == 1
