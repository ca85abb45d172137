import json
from math import inf

import pytest
import torch

from fedveil.accounting import (
    Entry,
    Guarantee,
    Ledger,
    Release,
    Spend,
    count_of,
    digest,
    model_of,
    nothing,
)
from fedveil.accounting.bounds import GDP
from fedveil.errors import FieldError, LedgerError

GUARANTEE = Guarantee(
    unit="client",
    relation="zero-out",
    trust="central",
    scope="round",
    bound=GDP(0.1 + 0.2),
    conditions=("counts are public",),
)
SPEND = Spend(guarantee=GUARANTEE, mechanism="gaussian", scale=(1 / 3,), sensitivity=5.0)


def entry(round_=1, attempt=0, mark="d", purpose="combine"):
    return Entry((round_, purpose), attempt, mark, SPEND)


def written(*entries, run="run", party="server"):
    ledger = Ledger(run, party)
    return ledger, [ledger.commit(e) for e in entries]


def test_round_trip_and_continuation():
    ledger, lines = written(entry(1), entry(2, mark="e"))
    parsed = Ledger.parse("run", "server", lines)
    assert parsed.entries == ledger.entries
    assert parsed.entries[0].spend == SPEND  # every float to the bit
    assert parsed.commit(entry(3)) == ledger.commit(entry(3))  # the chain goes on where it was


def test_a_budget_is_declared_before_the_first_release_or_not_at_all():
    ledger = Ledger("run", "server")
    lines = [
        ledger.declare({"epsilon": 9.0, "delta": 1e-5}),
        ledger.declare({"epsilon": 2.0, "delta": 1e-5}),
    ]
    lines.append(ledger.commit(entry()))
    parsed = Ledger.parse("run", "server", lines)
    assert parsed.budget == ledger.budget == {"epsilon": 2.0, "delta": 1e-5}
    assert parsed.entries == ledger.entries
    with pytest.raises(LedgerError, match="before the first release"):
        ledger.declare({"epsilon": 3.0, "delta": 1e-5})
    with pytest.raises(LedgerError):  # nor by hand: the chain begins with it
        Ledger.parse("run", "server", [lines[-1], *lines[:-1]])
    assert written(entry())[0].budget is None


def test_a_line_is_one_line_of_json():
    _, lines = written(entry())
    assert "\n" not in lines[0]
    values = json.loads(lines[0])
    assert (values["round"], values["purpose"], values["attempt"], values["digest"]) == (
        1,
        "combine",
        0,
        "d",
    )


def test_attempts_follow_each_other():
    ledger, _ = written(entry(1), entry(1, attempt=1, mark="e"))
    assert ledger.find((1, "combine")).attempt == 1
    assert ledger.find((2, "combine")) is None
    for wrong in (0, 1, 3):
        with pytest.raises(LedgerError, match="not the next one"):
            ledger.commit(entry(1, attempt=wrong))
    with pytest.raises(LedgerError, match="not the next one"):
        ledger.commit(entry(2, attempt=1))
    ledger.commit(entry(1, purpose="protect"))  # another purpose is another key
    assert len(ledger.entries) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "x"),
        ("round", 7),
        ("attempt", 1),
        ("purpose", "protect"),
        ("checksum", "0" * 64),
        ("format", inf),
    ],
)
def test_an_edited_line_is_refused(field, value):
    _, lines = written(entry(1), entry(2))
    lines[0] = json.dumps({**json.loads(lines[0]), field: value}, sort_keys=True)
    with pytest.raises(LedgerError, match="line 1"):
        Ledger.parse("run", "server", lines)


def test_an_edited_spend_is_refused():
    _, lines = written(entry(1))
    values = json.loads(lines[0])
    values["spend"]["guarantee"]["mu"] /= 2
    with pytest.raises(LedgerError, match="edited"):
        Ledger.parse("run", "server", [json.dumps(values, sort_keys=True)])


@pytest.mark.parametrize("keep", [[1], [1, 2], [0, 2], [1, 0], [0, 0]])
def test_missing_repeated_or_reordered_lines_are_refused(keep):
    _, lines = written(entry(1), entry(2), entry(3))
    with pytest.raises(LedgerError, match="line"):
        Ledger.parse("run", "server", [lines[i] for i in keep])


def test_lines_of_another_run_or_party_are_refused():
    _, lines = written(entry())
    with pytest.raises(LedgerError, match="belongs to run 'run'"):
        Ledger.parse("other", "server", lines)
    with pytest.raises(LedgerError, match="party 'server'"):
        Ledger.parse("run", "3", lines)


def test_two_runs_do_not_share_a_chain():
    (_, a), (_, b) = written(entry()), written(entry(), run="other")
    assert json.loads(a[0])["checksum"] != json.loads(b[0])["checksum"]


@pytest.mark.parametrize(
    "line",
    ["", "{", "5", "null", '"text"', "[]", "{}", '{"checksum": 1}', '{"checksum": 1, "spend": 3}'],
)
def test_a_damaged_line_is_refused_as_such(line):
    with pytest.raises(LedgerError, match="line 1 cannot be read"):
        Ledger.parse("run", "server", [line])


def test_a_line_without_its_owner_is_refused_as_such():
    _, lines = written(entry())
    values = json.loads(lines[0])
    del values["run"]
    with pytest.raises(LedgerError, match="line 1 cannot be read"):
        Ledger.parse("run", "server", [json.dumps(values)])


# ---- releases


def test_the_digest_covers_bits_types_shapes_kinds_names_and_order():
    base = torch.tensor([1.0, 2.0])
    variants = [
        (Release("model", base),),
        (Release("model", base.double()),),
        (Release("model", base.view(2, 1)),),
        (Release("update", base),),
        (Release("metric", base, "a"),),
        (Release("metric", base, "b"),),
        (Release("model", torch.tensor([1.0, 2.0000002])),),
        (Release("model", torch.tensor([2.0, 1.0])),),
        (Release("model", base), Release("count", torch.tensor(1.0))),
        (Release("count", torch.tensor(1.0)), Release("model", base)),
        (),
    ]
    assert len({digest(v) for v in variants}) == len(variants)
    assert digest((Release("model", base.clone()),)) == digest(variants[0])
    assert digest((Release("model", torch.tensor([0.0])),)) != digest(
        (Release("model", torch.tensor([-0.0])),)
    )


def test_the_digest_of_a_view_is_that_of_its_values():
    stack = torch.arange(6.0).reshape(2, 3)
    assert digest((Release("model", stack[:, 1]),)) == digest(
        (Release("model", torch.tensor([1.0, 4.0])),)
    )
    assert digest((Release("count", torch.tensor(3.0, dtype=torch.bfloat16)),))


def test_a_release_has_a_known_kind_and_a_tensor():
    with pytest.raises(FieldError, match="did you mean 'model'"):
        Release("mode", torch.zeros(1))
    with pytest.raises(FieldError, match="tensor"):
        Release("model", [0.0])


def test_model_and_count():
    model, count = Release("model", torch.zeros(2)), Release("count", torch.tensor(7))
    assert model_of((count,)) is None
    assert count_of((model,)) is None
    assert count_of((model, count)) == 7.0
    with pytest.raises(FieldError, match="at most one model"):
        model_of((model, model))
    with pytest.raises(FieldError, match="at most one count"):
        count_of((count, count))
    with pytest.raises(FieldError, match="at most one count"):
        count_of((Release("count", torch.zeros(2)),))


def test_nothing_is_spent_by_nothing():
    assert nothing().guarantee.status == "none"
    assert (nothing("local").guarantee.trust, nothing().guarantee.trust) == ("local", "central")


OPENING = {"trust": "central", "delta": 1e-5, "parties": ["server", "0"], "sites_run": "7"}


def test_the_first_line_binds_a_run_and_is_read_back():
    ledger = Ledger("run", "server")
    lines = [ledger.bind(OPENING)]
    assert ledger.opening == OPENING
    lines.append(ledger.bind({**OPENING, "sites_run": "8"}))  # a deployed run that goes on
    read = Ledger.parse("run", "server", lines)
    assert (read.opening, read.lines, read.checksum) == (OPENING, 2, ledger.checksum)
    assert [one["sites_run"] for one in read.openings] == ["7", "8"]
    with pytest.raises(LedgerError, match="edited"):
        Ledger.parse("run", "server", [lines[0].replace('"0"', '"1"')])
    with pytest.raises(LedgerError, match="missing"):
        Ledger.parse("run", "server", lines[1:])


@pytest.mark.parametrize("changed", [{"delta": 1e-4}, {"parties": ["server"]}, {"more": 1}])
def test_a_run_that_goes_on_binds_nothing_else(changed):
    ledger = Ledger("run", "server")
    ledger.bind(OPENING)
    with pytest.raises(LedgerError, match=next(iter(changed))):
        ledger.bind({**OPENING, **changed, "sites_run": "8"})


def test_nothing_is_bound_after_a_release_or_in_a_data_set_s_ledger():
    with pytest.raises(LedgerError):
        Ledger("run", "charite", "head").bind(OPENING)
    ledger = Ledger("run", "server")
    ledger.declare({"mu": 1.0})
    with pytest.raises(LedgerError):
        ledger.bind(OPENING)
