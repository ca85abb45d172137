"""Forged receipts: the mask is exact, forgeries stay inside boxes of text, and a seed decides all of it."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.data import load
from fedveil.data.tamper import KINDS, Box, boxes_of, tamper
from fedveil.errors import FieldError


def page_of(seed, height=120, width=90, paper=230):
    """Light, grainy paper with dark strokes inside a few boxes."""
    rng = np.random.default_rng(seed)
    page = np.clip(paper + rng.integers(-6, 7, (height, width)), 0, 255).astype(np.uint8)
    boxes = [Box(top, 5, top + 12, 5 + 20 * k) for k, top in enumerate(range(8, 88, 20), start=1)]
    for box in boxes:
        strokes = rng.random((box.height, box.width)) < 0.35
        page[box.top : box.bottom, box.left : box.right][strokes] = 20
    return page, boxes


@given(seed=st.integers(0, 200), kind=st.sampled_from(KINDS), which=st.integers(0, 3))
def test_a_forgery_changes_only_what_its_mask_covers(seed, kind, which):
    page, boxes = page_of(1)
    before = page.copy()
    forged, mask = tamper(page, boxes, page_of(2, paper=120), boxes[which], kind, np.random.default_rng(seed))
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
    for kind in ("copy-move", "splice"):
        forged, mask = tamper(page, boxes, donor, boxes[3], kind, np.random.default_rng(0))
        assert mask.cut(forged).min() < 60  # text again
        assert abs(np.quantile(mask.cut(forged), 0.8) - 230) < 15  # on paper as bright as here, not as the donor's


def test_boxes_are_upright_and_cut_at_the_edge():
    quads = np.array([[10, 5, 40, 7, 39, 20, 9, 18], [0, 0, 3, 0, 3, 3, 0, 3], [80, 90, 130, 90, 130, 140, 80, 140]])
    assert boxes_of(quads.astype(np.float32), 120, 100) == [Box(5, 9, 20, 40), Box(90, 80, 120, 100)]


@pytest.fixture
def receipts(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    pages, quads = [], []
    for i in range(6):
        page, boxes = page_of(i, height=220, width=200 + i)
        pages.append(page)
        quads.append([[b.left, b.top, b.right, b.top, b.right, b.bottom, b.left, b.bottom] for b in boxes])
    np.savez(
        tmp_path / "sroie2019_200_gray768.npz",
        pixels=np.concatenate([p.ravel() for p in pages]),
        pixel_offsets=np.cumsum([0, *(p.size for p in pages)]),
        shapes=np.array([p.shape for p in pages]),
        boxes=np.array(quads, dtype=np.float32).reshape(-1, 8),
        box_offsets=np.arange(7) * 4,
        key_json=np.array([json.dumps({"company": f"shop {i % 2}"}) for i in range(6)]),
    )
    return pages


def test_patches_masks_and_shops(receipts):
    data = load("sroie", patch=96, patches=3, test_receipts=2)
    assert (data.x.shape, data.y.shape, data.test_x.shape) == ((12, 1, 96, 96), (12, 96, 96), (6, 1, 96, 96))
    assert data.y.unique().tolist() == [0, 1]
    assert set(data.owners) <= {"shop 0", "shop 1"}
    windows = [np.lib.stride_tricks.sliding_window_view(p, (96, 96)) for p in receipts]
    for x, y in zip(data.x[:4, 0], data.y[:4], strict=True):
        patch, kept = (x * 255).round().numpy().astype(np.uint8), y.numpy() == 0
        row = int(np.flatnonzero(kept.all(1))[0])
        found = [w for view in windows for w in view[(view[:, :, row] == patch[row]).all(2)]]
        # somewhere in a receipt stands this very patch, but for what the mask covers
        assert any((w == patch)[kept].all() and not (w == patch)[~kept].all() for w in found)
    other = load("sroie", patch=96, patches=3, test_receipts=2, tamper_seed=1)
    assert not torch.equal(other.x, data.x)
    erased = load("sroie", patch=96, kinds=["erase"], test_receipts=0)
    assert (erased.test_x, len(erased.x)) == (None, 24)
    assert float(erased.x[erased.y[:, None] == 1].min()) > 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": 16}, r"data\.patch = 16: must be 32 to 192"),
        ({"kinds": ["blur"]}, r"data\.kinds = 'blur'"),
        ({"kinds": []}, "must name at least one"),
        ({"test_receipts": 5}, r"must leave 2 of 6"),
    ],
)
def test_refusals(receipts, options, message):
    with pytest.raises(FieldError, match=message):
        load("sroie", **options)
