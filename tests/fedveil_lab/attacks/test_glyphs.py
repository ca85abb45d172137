"""Glyphs read off reconstructions: right and wrong ones, contrast, lucky guesses, public glyphs."""

import pytest
import torch

from fedveil_lab.attacks.inversion.glyphs import glyphs_of, read_off

SIZE = (4, 3)


def page(seed, glyphs=6):
    """An image [1, 1, 4, 3 * glyphs] with a random glyph in every window."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(1, 1, 4, 3 * glyphs, generator=draw)


def everything(image):
    return torch.ones(1, *image.shape[2:], dtype=torch.bool)


def reading(shown, true, others=None):
    masks = [everything(true)]
    public = None
    if others is not None:
        public = glyphs_of([others], [others], [everything(others)], SIZE)
    found = glyphs_of([shown], [true], masks, SIZE)
    return read_off(found, glyphs_of([true], [true], masks, SIZE), public)


def test_the_original_is_read_whole_and_its_contrast_does_not_matter():
    true = page(0)
    assert reading(true, true).share == 1.0
    assert reading(0.01 * true + 0.4, true).share == 1.0


def test_another_page_is_read_no_better_than_by_luck_and_a_grey_one_not_at_all():
    true = page(0, glyphs=60)
    assert reading(page(1, glyphs=60), true).share < 0.1
    assert reading(torch.full_like(true, 0.5), true).share == 0.0


def test_each_wrong_glyph_counts_once():
    true = page(0)
    wrong = true.clone()
    wrong[..., :3] = true[..., 3:6]  # the second glyph in the place of the first
    assert reading(wrong, true).share == pytest.approx(5 / 6)


def test_a_public_glyph_may_be_named_and_is_then_wrong():
    true, others = page(0), page(1)
    half = 0.45 * true + 0.55 * others
    assert reading(half, true).share > reading(half, true, others).share


def test_only_marked_windows_with_ink_are_glyphs():
    true = page(0)
    true[..., 3:6] = 0.5
    mask = everything(true)
    mask[..., 6:9] = False
    kept = glyphs_of([true], [true], [mask], SIZE)
    assert len(kept.windows) == 4
    assert reading(true, page(0)).blind == pytest.approx(1 / 6)
