"""Receipts that are made, in a file like the real one."""

import json

import numpy as np

from fedveil.data.pages import Box


def page_of(seed, height=120, width=90, paper=230):
    """Light, grainy paper with dark strokes inside a few boxes."""
    rng = np.random.default_rng(seed)
    page = np.clip(paper + rng.integers(-6, 7, (height, width)), 0, 255).astype(np.uint8)
    boxes = [Box(top, 5, top + 12, 5 + 20 * k) for k, top in enumerate(range(8, 88, 20), start=1)]
    for box in boxes:
        strokes = rng.random((box.height, box.width)) < 0.35
        page[box.top : box.bottom, box.left : box.right][strokes] = 20
    return page, boxes


def made_receipts(folder):
    """Write six receipts of two shops as the real file has them; returns their pages."""
    pages, quads = [], []
    for i in range(6):
        page, boxes = page_of(i, height=220, width=200 + i)
        pages.append(page)
        quads.append(
            [[b.left, b.top, b.right, b.top, b.right, b.bottom, b.left, b.bottom] for b in boxes]
        )
    np.savez(
        folder / "sroie2019_200_gray768.npz",
        pixels=np.concatenate([p.ravel() for p in pages]),
        pixel_offsets=np.cumsum([0, *(p.size for p in pages)]),
        shapes=np.array([p.shape for p in pages]),
        boxes=np.array(quads, dtype=np.float32).reshape(-1, 8),
        box_offsets=np.arange(7) * 4,
        box_text=np.array(
            [word for i in range(6) for word in (f"SHOP {i % 2}", "01/02/2018", "RM 12.50", "tea")]
        ),
        key_json=np.array(
            [json.dumps({"company": f"shop {i % 2}", "total": "12.50"}) for i in range(6)]
        ),
    )
    return pages
