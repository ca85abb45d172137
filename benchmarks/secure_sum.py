"""What a round of the secure sum costs beside the plain sum: a site's share, the server's sum, and bytes.

Processor time, not the clock's: a share is computed by one thread, and other work on the machine must not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from fedveil.mechanisms import GaussianNoise, SecureSource, noised
from fedveil.secure import SiteKey, SumContext, SumTerms, share, unmasked

SITES, SIZES, REPEATS = (4, 10, 40), (1_000, 10_000, 100_000, 1_000_000), 3


def secure_sum(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Time one site's share and the server's sum, for so many sites and parameters; a plain share has float32 noise."""
    sites, sizes, repeats = (SITES[:1], SIZES[:1], 1) if quick else (SITES, SIZES, REPEATS)
    rows = []
    for n in sites:
        keys = [SiteKey.new()[0] for _ in range(n)]
        for d in sizes:
            say(f"{n} sites, {d} parameters")
            rows.append(_row(keys, d, repeats if d < 1_000_000 else 1))
    return {"rows": rows}


def _row(keys: list[SiteKey], d: int, repeats: int) -> dict[str, Any]:
    terms = SumTerms(
        unit="record",
        relation="zero-out",
        clip=1.0,
        noise_multiplier=1.0,
        denominator=100.0,
        rate=1.0,
        units=1000,
        dimension=d,
        least_sites=len(keys),
    )
    publics = tuple(key.public for key in keys)
    total, plain = torch.zeros(d, dtype=torch.int64), torch.zeros(d)
    masked, source = [total] * len(keys), SecureSource()
    times: dict[str, list[float]] = {
        name: [] for name in ("share", "plain_share", "sum", "plain_sum")
    }
    for attempt in range(repeats):
        context = SumContext(
            run="bench",
            round=1,
            attempt=attempt,
            roster=publics,
            broadcast="",
            layout="",
            terms=terms,
        )
        peers = tuple(key for key in publics if key != keys[0].public)
        steps: dict[str, Callable[[], object]] = {
            "share": lambda context=context, peers=peers: share(total, keys[0], context, peers),
            "plain_share": lambda: noised(plain, GaussianNoise(1.0), source, torch.float32),
            "sum": lambda context=context: unmasked(masked, context),
            "plain_sum": lambda: torch.stack([plain] * len(keys)).mean(0),
        }
        for name, step in steps.items():
            began = time.process_time()
            step()
            times[name].append(1e3 * (time.process_time() - began))
    return {
        "sites": len(keys),
        "parameters": d,
        **{f"{name}_ms": round(min(t), 3) for name, t in times.items()},
        "share_bytes": 8 * d,
        "plain_share_bytes": 4 * d,
        "roster_bytes": 32 * len(keys),
    }
