"""The auditor of receipts: an honest run agrees, and each planted cheat is found and named."""

from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

import fedveil as fv
from fedveil.accounting import Ledger, Receipt, ShareReceipt, digest
from fedveil.accounting.receipts import leaf, seal
from fedveil.engines.malicious import Behaviour
from fedveil.engines.sealed import sealed, unsealed
from fedveil.evidence import KeptShares, check_receipts, replay
from fedveil.evidence.kept import read_round, round_file
from fedveil.files import LedgerFiles
from inclusion_kit import SUMS, federation

OTHER = "ab" * 32


class Bypass(Behaviour):
    bypass = True

    def model(self, turn):
        return turn.start


def played(folder, kind, rounds=3, **options):
    """A finished run with its ledgers in a folder, and its shares kept."""
    (folder / "ledger").mkdir()
    files = LedgerFiles(folder / "ledger", "run", durable=True, message=print)
    options.setdefault("probes", [KeptShares(folder / "shares")])
    fed = federation(kind, ledgers=files.open, run_id="run", **options)
    fed.run(rounds)
    files.flush()
    return fed


def wrong(checks):
    return {check.what.partition(",")[0]: check.why for check in checks if check.holds is False}


def rewritten(folder, party, change):
    """A ledger written anew by whoever holds it: each line as `change` makes it of its entry, None to leave it out."""
    path = folder / "ledger" / f"{party}.jsonl"
    old, new = Ledger.parse("run", party, path.read_text().splitlines()), Ledger("run", party)
    lines = [new.declare(old.budget)] if old.budget else []
    for entry in old.entries:
        changed = change(entry)
        if changed is not None:
            lines.append(new.commit(changed))
    path.write_text("".join(f"{line}\n" for line in lines))


def of_round(number, **values):
    """Changes the receipt of one round in a line, server's or site's."""

    def change(entry):
        if entry.key[0] != number or not entry.receipt:
            return entry
        return replace(entry, receipt={**entry.receipt, **values})

    return change


@pytest.fixture(scope="module", params=SUMS)
def honest(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, played(folder, request.param), request.param


@pytest.fixture
def copy(honest, tmp_path):
    import shutil

    folder = shutil.copytree(honest[0], tmp_path / "run")
    return folder, honest[1]


def test_an_honest_run_agrees_in_everything(honest):
    folder, fed, _ = honest
    checks = check_receipts(folder, [])
    assert all(check.holds for check in checks)
    assert sum(check.kind == "promise" for check in checks) == 3
    replayed = replay(folder, [], folder / "shares", fed.method, fed.layout)
    assert [check.holds for check in replayed] == [True] * 3


def test_no_check_names_a_site(honest):
    folder, _, _ = honest
    text = " ".join(f"{check.what} {check.why}" for check in check_receipts(folder, []))
    assert not any(f"run {party}" in text or f"{party}.jsonl" in text for party in range(4))


def test_a_ledger_that_is_not_given_leaves_its_share_unshown(copy):
    folder, _ = copy
    (folder / "ledger" / "2.jsonl").unlink()
    unshown = [check for check in check_receipts(folder, []) if check.holds is None]
    assert [check.kind for check in unshown] == ["promise"] * 3
    assert not wrong(check_receipts(folder, []))


def test_a_share_that_nobody_paid_for_is_found(tmp_path):
    played(tmp_path, "none", behaviours={2: Bypass()})
    ledger = Ledger("run", "2")  # a site that took part and has nothing to show
    (tmp_path / "ledger" / "2.jsonl").write_text(
        f"{ledger.declare({'epsilon': 1.0, 'delta': 1e-5})}\n"
    )
    found = wrong(check_receipts(tmp_path, []))
    assert set(found) == {f"round {number}: 4 shares of 4 sites" for number in (1, 2, 3)}


def server_line(folder, number):
    lines = (folder / "ledger" / "server.jsonl").read_text().splitlines()
    entries = Ledger.parse("run", "server", lines).entries
    return next(entry for entry in entries if entry.key[0] == number)


def test_a_share_that_was_left_out_is_found_though_the_server_rewrites_its_ledger(copy):
    folder, _ = copy
    receipt = Receipt.of(server_line(folder, 3).receipt)
    rewritten(folder, "server", of_round(3, leaves=list(receipt.leaves[:-1]), asked=3))
    assert (
        "left out, or altered"
        in wrong(check_receipts(folder, []))["round 3: 1 shares paid for and left out"]
    )


def test_one_that_the_server_admits_to_have_lost_is_told_and_no_contradiction(copy):
    folder, _ = copy
    receipt = Receipt.of(server_line(folder, 3).receipt)
    rewritten(folder, "server", of_round(3, leaves=list(receipt.leaves[:-1])))
    checks = check_receipts(folder, [])
    assert not wrong(checks)
    assert [c.holds for c in checks if "left out" in c.what] == [None]


def test_an_altered_share_is_found(copy):
    folder, _ = copy
    receipt = Receipt.of(server_line(folder, 3).receipt)
    rewritten(folder, "server", of_round(3, leaves=sorted([*receipt.leaves[:-1], OTHER])))
    found = wrong(check_receipts(folder, []))
    assert set(found) == {"round 3: 4 shares of 4 sites", "round 3: 1 shares paid for and left out"}


def test_a_share_that_is_counted_twice_is_no_receipt(copy):
    folder, _ = copy
    receipt = Receipt.of(server_line(folder, 3).receipt)
    doubled = sorted([*receipt.leaves[:-1], receipt.leaves[0]])
    rewritten(folder, "server", of_round(3, leaves=doubled))
    assert "each leaf once" in wrong(check_receipts(folder, []))["ledgers"]


def test_a_leaf_that_two_sites_claim_is_found(copy):
    folder, _ = copy
    (folder / "ledger" / "9.jsonl").write_text(
        (folder / "ledger" / "0.jsonl").read_text().replace('"party": "0"', '"party": "9"')
    )
    assert "ledgers" in wrong(check_receipts(folder, []))  # the chain names its party
    entries = Ledger.parse("run", "0", (folder / "ledger" / "0.jsonl").read_text().splitlines())
    stolen = Ledger("run", "9")
    lines = [stolen.commit(entry) for entry in entries.entries]
    (folder / "ledger" / "9.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = wrong(check_receipts(folder, []))
    assert "more than one line" in found["round 1: 4 shares of 4 sites"]


def test_a_receipt_of_another_round_or_past_is_found(copy):
    folder, _ = copy
    first = dict(server_line(folder, 1).receipt)
    rewritten(folder, "server", of_round(2, **first))
    assert "round 2: root" in wrong(check_receipts(folder, []))


def test_a_past_that_was_written_anew_differs_from_what_the_sites_saw(copy):
    folder, _ = copy
    rewritten(folder, "server", of_round(1, asked=5))
    second = Receipt.of(server_line(folder, 1).receipt).root
    rewritten(folder, "server", of_round(2, previous=second))
    third = Receipt.of(server_line(folder, 2).receipt).root
    rewritten(folder, "server", of_round(3, previous=third))
    found = wrong(check_receipts(folder, []))
    assert set(found) == {"round 2: sites saw one view", "round 3: sites saw one view"}


def test_a_split_view_is_found_across_the_sites_ledgers(copy):
    folder, _ = copy
    rewritten(folder, "1", of_round(2, seen=OTHER))
    assert "showed several" in wrong(check_receipts(folder, []))["round 2: sites saw one view"]


def test_other_models_for_one_site_are_found_without_trust(tmp_path):
    played(tmp_path, "none")
    rewritten(tmp_path, "1", of_round(2, question=OTHER))
    found = wrong(check_receipts(tmp_path, []))
    assert "several models" in found["round 2: sites saw one view"]


def test_terms_or_bits_that_a_site_writes_anew_do_not_fit_its_leaf(copy):
    folder, _ = copy
    before = (folder / "ledger" / "1.jsonl").read_text()
    rewritten(folder, "1", lambda entry: replace(entry, spend=replace(entry.spend, scale=(1e-9,))))
    assert "lines: leaves follow from digest" in wrong(check_receipts(folder, []))
    (folder / "ledger" / "1.jsonl").write_text(before)
    rewritten(folder, "1", lambda entry: replace(entry, digest=OTHER))
    assert "lines: leaves follow from digest" in wrong(check_receipts(folder, []))


def test_a_line_that_pays_for_another_share_than_it_sent_is_found(copy):
    """A site that makes up a whole line, with a leaf that follows from it."""
    folder, _ = copy

    def made_up(entry):
        held = ShareReceipt.of(entry)
        sealing = seal(bytes.fromhex(held.salt), entry.spend)
        other = replace(held, leaf=leaf(held.question, OTHER, sealing))
        return replace(entry, digest=OTHER, receipt=other.values())

    rewritten(folder, "1", made_up)
    assert len(wrong(check_receipts(folder, []))) == 6  # unpaid, and paid for and left out


def test_a_run_whose_server_is_trusted_has_nothing_to_check(tmp_path):
    made = fv.methods.build("global", noise_multiplier=1.0, clip=1.0)
    played(tmp_path, "none", method=made, probes=[])
    with pytest.raises(fv.FieldError, match="no receipts"):
        check_receipts(tmp_path, [])


# ---- the models


def test_other_models_in_the_folder_are_found(copy):
    folder, fed = copy
    (folder / "checkpoint").mkdir()
    checkpoint = folder / "checkpoint" / "round.safetensors"
    checkpoint.write_bytes(sealed({"models": fed.models}, {}))
    save_file(dict(fed.layout.views(fed.models[0])), folder / "model.safetensors")
    checks = check_receipts(folder, [])
    assert [check.holds for check in checks[-2:]] == [True, True]
    arrays = load_file(folder / "model.safetensors")
    save_file({name: value + 1 for name, value in arrays.items()}, folder / "model.safetensors")
    assert "model.safetensors" in wrong(check_receipts(folder, []))
    checkpoint.write_bytes(sealed({"models": fed.models + 1}, {}))
    assert "checkpoint/round.safetensors: models of round 3" in wrong(check_receipts(folder, []))


def kept(folder, number, change):
    path = round_file(folder / "shares", number)
    tensors, plain = unsealed(path)
    change(tensors)
    path.write_bytes(sealed(tensors, plain))


def share_named(tensors):
    return next(name for name in tensors if " " in name)


def test_a_model_that_does_not_follow_from_the_shares_is_found(copy):
    """The server releases another model than it combined, and its ledger and receipts say so throughout."""
    folder, fed = copy
    released = read_round(round_file(folder / "shares", 3)).models + 0.01
    mark = digest((fv.accounting.Release("model", released),))

    def change(entry):
        if entry.key[0] != 3:
            return entry
        return replace(entry, digest=mark, receipt={**entry.receipt, "model": mark})

    rewritten(folder, "server", change)
    kept(folder, 3, lambda tensors: tensors.update(models=released))
    assert not wrong(check_receipts(folder, []))
    checks = replay(folder, [], folder / "shares", fed.method, fed.layout)
    assert [check.holds for check in checks] == [True, True, False]


def test_a_kept_share_that_is_exchanged_or_missing_is_found(copy):
    folder, fed = copy

    def exchange(tensors):
        name = share_named(tensors)
        tensors[name] = tensors[name] + 1

    kept(folder, 2, exchange)
    checks = replay(folder, [], folder / "shares", fed.method, fed.layout)
    assert [check.holds for check in checks] == [True, False]
    kept(folder, 1, lambda tensors: tensors.pop(share_named(tensors)))
    checks = replay(folder, [], folder / "shares", fed.method, fed.layout)
    assert [check.holds for check in checks] == [False]


def test_files_of_shares_name_nobody(honest):
    folder, _, _ = honest
    tensors, plain = unsealed(round_file(folder / "shares", 1))
    marks = [name.partition(" ")[2] for name in tensors if " " in name]
    assert len(set(marks)) == 4
    assert set(tensors) == {"starts", "models", *(name for name in tensors if " " in name)}
    assert plain["replied"] == []


@pytest.mark.parametrize("trusted", ["trusted", "global"])
def test_shares_for_a_trusted_receiver_are_not_kept(tmp_path, trusted):
    """A share of a trusted sum has little noise, an update under central trust none."""
    made = fv.GlobalDP(noise_multiplier=1.0)
    if trusted == "trusted":
        made = fv.RecordDP(sum="trusted", silos=4, examples=6, noise_multiplier=2.0, rounds=4)
    fed = federation("none", method=made, probes=[KeptShares(tmp_path / "shares")])
    with pytest.raises(fv.FieldError, match="receipts"):
        fed.run(1)
    assert not (tmp_path / "shares").exists()
