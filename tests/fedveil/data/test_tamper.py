"""Forged receipts: the mask is exact, forgeries stay inside boxes of text, and a seed decides all of it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.data import federate, load
from fedveil.data.pages import Box
from fedveil.data.tamper import KINDS, _other, tamper
from fedveil.errors import FieldError
from fedveil_studies.data.sroie import boxes_of, region_bits, sensitive_boxes
from receipts_kit import page_of


@given(seed=st.integers(0, 200), kind=st.sampled_from(KINDS), which=st.integers(0, 3))
def test_a_forgery_changes_only_what_its_mask_covers(seed, kind, which):
    page, boxes = page_of(1)
    before = page.copy()
    forged, mask = tamper(
        page, boxes, page_of(2, paper=120), boxes[which], kind, np.random.default_rng(seed)
    )
    assert np.array_equal(page, before)
    changed = np.argwhere(forged != page)
    assert len(changed)
    assert changed[:, 0].min() >= mask.top
    assert changed[:, 0].max() < mask.bottom
    assert changed[:, 1].min() >= mask.left
    assert changed[:, 1].max() < mask.right
    box = boxes[which]
    assert (mask.top, mask.bottom) == (box.top, box.bottom)
    assert box.left <= mask.left < mask.right <= box.right
    assert box.width / 3 - 1 <= mask.width <= box.width
    again, _ = tamper(page, boxes, page_of(2, paper=120), box, kind, np.random.default_rng(seed))
    assert np.array_equal(forged, again)


def test_what_the_kinds_do():
    page, boxes = page_of(1)
    donor = page_of(2, paper=120)
    erased, mask = tamper(page, boxes, donor, boxes[3], "erase", np.random.default_rng(0))
    assert mask.cut(page).min() == 20
    assert mask.cut(erased).min() > 200
    for kind in ("copy-move", "splice", "retype"):
        forged, mask = tamper(page, boxes, donor, boxes[3], kind, np.random.default_rng(0))
        assert mask.cut(forged).min() < 60  # text again
        assert (
            abs(np.quantile(mask.cut(forged), 0.8) - 230) < 15
        )  # on paper as bright as here, not as the donor's


def test_boxes_are_upright_and_cut_at_the_edge():
    quads = np.array(
        [
            [10, 5, 40, 7, 39, 20, 9, 18],
            [0, 0, 3, 0, 3, 3, 0, 3],
            [80, 90, 130, 90, 130, 140, 80, 140],
        ]
    )
    found = boxes_of(quads.astype(np.float32), 120, 100)
    assert found == [Box(5, 9, 20, 40), Box(0, 0, 3, 3), Box(90, 80, 120, 100)]
    assert [box.usable for box in found] == [True, False, True]


def test_retyped_text_is_other_text_of_the_same_kind():
    rng = np.random.default_rng(0)
    for text in ("12.50", "RM 7/8", "Tea"):
        other = _other(text, rng)
        assert len(other) == len(text)
        for a, b in zip(text, other, strict=True):
            assert a != b if a.isalnum() else a == b
            assert (a.isdigit(), a.isupper(), a.islower()) == (
                b.isdigit(),
                b.isupper(),
                b.islower(),
            )


def test_key_texts_are_found_among_the_boxes():
    words = [
        "ABC SDN BHD",
        "NO 2, JALAN DESA",
        "81100 JOHOR",
        "DATE 01/02/2018 10:31",
        "RM 12.50",
        "112.50",
        "J",
        "",
    ]
    boxes = [Box(10 * i, 0, 10 * i + 8, 50, word) for i, word in enumerate(words)]
    keys = {
        "company": "Abc Sdn. Bhd.",
        "date": "01/02/2018",
        "address": "NO 2 JALAN DESA 81100 JOHOR",
        "total": "12.50",
    }
    found = sensitive_boxes(boxes, keys)
    rows = {kind: [box.top // 10 for box in some] for kind, some in found.items()}
    assert rows == {"company": [0], "address": [1, 2], "date": [3], "total": [4]}
    assert sensitive_boxes(boxes, {})["address"] == []
    bits = region_bits(found, 80, 60)
    assert set(np.unique(bits).tolist()) == {0, 1, 2, 4, 8}
    assert (bits[40:48, :50] == 8).all()
    assert not bits[50:].any()


def test_patches_masks_and_shops(receipts):
    data = load("sroie", tile=96, tiles=3, test_receipts=2)
    assert (data.x.shape, data.y.shape, data.test_x.shape) == (
        (12, 1, 96, 96),
        (12, 96, 96),
        (6, 1, 96, 96),
    )
    assert data.y.unique().tolist() == [0, 1]
    assert set(data.owners) <= {"shop 0", "shop 1"}
    windows = [np.lib.stride_tricks.sliding_window_view(p, (96, 96)) for p in receipts]
    for x, y in zip(data.x[:4, 0], data.y[:4], strict=True):
        patch, kept = (x * 255).round().numpy().astype(np.uint8), y.numpy() == 0
        row = int(np.flatnonzero(kept.all(1))[0])
        found = [w for view in windows for w in view[(view[:, :, row] == patch[row]).all(2)]]
        # somewhere in a receipt stands this very patch, but for what the mask covers
        assert any((w == patch)[kept].all() and not (w == patch)[~kept].all() for w in found)
    other = load("sroie", tile=96, tiles=3, test_receipts=2, tamper_seed=1)
    assert not torch.equal(other.x, data.x)
    shown = data.sensitive(["company", "total"])
    assert shown.shape == data.y.shape
    assert shown.any()
    assert torch.equal(shown, (data.regions & 0b1001) != 0)
    assert torch.equal(data.take(torch.tensor([3])).regions, data.regions[3:4])
    with pytest.raises(FieldError, match="'totals'"):
        data.sensitive(["totals"])
    clients = federate(
        data, clients=2, holdout=0, seed=0, sensitive=[["total"], ["company", "date"]]
    )
    for one, kinds in zip(clients, (["total"], ["company", "date"]), strict=True):
        rows = [int((data.x == x).flatten(1).all(1).nonzero()[0]) for x in one.x]
        assert torch.equal(one.masks, data.sensitive(kinds)[rows])
    with pytest.raises(FieldError, match="'price'"):
        federate(data, clients=2, seed=0, sensitive=[["price"]])
    with pytest.raises(FieldError, match="does not say"):
        federate(load("digits"), clients=2, seed=0, sensitive=[["total"]])
    erased = load("sroie", tile=96, kinds=["erase"], test_receipts=0)
    assert (erased.test_x, len(erased.x)) == (None, 24)
    assert float(erased.x[erased.y[:, None] == 1].min()) > 0.75


def test_a_party_alone_has_some_of_the_receipts(receipts):
    every = load("sroie", tile=96, tiles=1, kinds=["erase"], test_receipts=2)
    alone = load("sroie", tile=96, tiles=1, kinds=["erase"], test_receipts=2, train_receipts=3)
    assert torch.equal(alone.test_x, every.test_x)
    assert (len(alone.x), len(every.x)) == (3, 4)
    assert all(any(torch.equal(x, other) for other in every.x) for x in alone.x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 16}, r"data\.tile = 16: must be 32 to 192"),
        ({"kinds": ["blur"]}, r"data\.kinds = 'blur'"),
        ({"kinds": []}, "must name at least one"),
        ({"test_receipts": 5}, r"must leave 2 of 6"),
        ({"test_receipts": 2, "train_receipts": 5}, r"must be 2 to 4"),
        ({"test_receipts": 2, "train_receipts": 1}, r"must be 2 to 4"),
    ],
)
def test_refusals(receipts, options, message):
    with pytest.raises(FieldError, match=message):
        load("sroie", **options)
