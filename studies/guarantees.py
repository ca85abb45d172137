"""Does the noise keep its promise, and what do the heuristics leak? The distinguishing game on every method's path.

Writes results/guarantees/game.json and game.md. Run: python studies/guarantees.py --runs 4000
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from provenance import provenance
from torch import Tensor

from fedveil.accounting import Release
from fedveil.aggregation import FedAdam, FedMedian
from fedveil.attacks import bound
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import (
    SGALDP,
    Broadcast,
    ClientFacts,
    Combined,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    MetricPrivacy,
    PublicFacts,
    ServerFacts,
)
from fedveil.methods.sga_ldp import LastBroadcast

OUT = Path(__file__).resolve().parent.parent / "results" / "guarantees"
Vector = Callable[[Tensor], float]


@dataclass
class Case:
    """Two worlds of one method and how the adversary scores a release (higher: the second world)."""

    name: str
    worlds: tuple[Callable[[ReproducibleSource], Tensor], Callable[[ReproducibleSource], Tensor]]
    score: Vector
    claim: str
    claimed_mu: float | None = None
    claimed_epsilon: float | None = None


def layout(d: int) -> Layout:
    """Two layers of about equal size."""
    return Layout.from_shapes({"a.weight": (d // 2,), "b.weight": (d - d // 2,)})


def facts_of(d: int, cohort: int, models: Tensor | None = None, round_: int = 2, **public: object) -> Broadcast:
    """A broadcast of zeros, in round 2 of 10."""
    made = PublicFacts(round=round_, rounds=10, cohort=cohort, dimension=d, **public)  # type: ignore[arg-type]
    return Broadcast(models=torch.zeros(1, d, dtype=torch.float64) if models is None else models, public=made)


def unit(d: int, at: int = 0) -> Tensor:
    """A coordinate direction."""
    v = torch.zeros(d, dtype=torch.float64)
    v[at] = 1.0
    return v


def central(side: GlobalDP | MetricPrivacy, updates: Tensor) -> Callable[[ReproducibleSource], Combined]:
    """The whole server path on given updates [n, d], the global model having moved by 1.5 in the round before."""
    n, d = updates.shape
    replies = [(Release("model", u),) for u in updates]
    facts = ServerFacts(broadcast=facts_of(d, n), layout=layout(d), partitions=tuple(range(n)))
    state = replace(side.init(d, torch.float64), released=1.5 * unit(d))
    return lambda source: side.combine(replies, facts, state, source)


def central_cases(d: int) -> list[Case]:
    """Server-side methods, four clients, C = 1, z = 1."""
    e, last, zero = unit(d), unit(d, d - 1), torch.zeros(d, dtype=torch.float64)
    along = lambda v: float(v @ e)  # noqa: E731
    size = lambda v: -float(v.norm())  # noqa: E731
    here, gone = torch.stack([e, zero, zero, zero]), torch.stack([zero, zero, zero, zero])
    swapped = torch.stack([-e, zero, zero, zero])
    cases = []
    for name, side, pair, score in (
        ("global DP, FedAvg, formal", GlobalDP(noise_multiplier=1.0, clip=1.0), (gone, here), along),
        (
            "global DP, FedAvg, formal, replace-one",
            GlobalDP(noise_multiplier=1.0, clip=1.0, relation="replace-one"),
            (swapped, here),
            along,
        ),
        (
            "global DP, FedMedian, as printed",
            GlobalDP(FedMedian(), noise_multiplier=1.0, clip=1.0, order="printed"),
            (torch.stack([zero, zero, e, e]), torch.stack([e, zero, e, e])),
            along,
        ),
        ("global DP, FedAdam, formal", GlobalDP(FedAdam(), noise_multiplier=1.0, clip=1.0), (gone, here), along),
        (
            "global DP, FedAdam, as printed",
            GlobalDP(FedAdam(lr=1.0), noise_multiplier=1.0, clip=1.0, order="printed"),
            (gone, torch.stack([torch.ones(d, dtype=torch.float64) / math.sqrt(d), zero, zero, zero])),
            lambda v: float(v.sum()) / math.sqrt(d),
        ),
        (
            "metric privacy, as printed",
            MetricPrivacy(noise_multiplier=1.0, clip=1.0, order="printed"),
            tuple(torch.stack([x * e, 0.05 * last, -0.05 * last, 0.05 * last]) for x in (0.05, 0.49)),
            size,
        ),
        (
            "metric privacy, scale from releases",
            MetricPrivacy(noise_multiplier=1.0, clip=1.0, distance_on="released"),
            (gone, here),
            along,
        ),
    ):
        worlds = [central(side, updates) for updates in pair]
        mu = worlds[1](ReproducibleSource(0)).spend.guarantee.mu
        text = "none (heuristic)" if mu is None else f"mu = {mu:.3g} ({side.relation}, client, central, round)"
        runs = tuple(lambda source, world=world: world(source).models[0] for world in worlds)
        cases.append(Case(name, runs, score, text, claimed_mu=mu))
    return cases


def client_path(side: object, update: Tensor, state: object, broadcast: Broadcast, scores: dict[str, float] | None):
    """The whole client path on a given update [d]."""
    d = len(update)
    facts = ClientFacts(broadcast=broadcast, layout=layout(d), layer_scores=scores)
    released = (Release("model", broadcast.models[0] + update),)
    return lambda source: side.protect(released, facts, state, source).releases[0].value  # type: ignore[attr-defined]


def client_cases(d: int) -> list[Case]:
    """Client-side methods; the adversary is the server."""
    e, half = unit(d), d // 2
    cases = []
    # group privacy: a short and a long step; with a public radius two models at distance 1
    printed, sound = GroupPrivacy(noise_multiplier=1.0), GroupPrivacy(noise_multiplier=float(d), radius=1.0)
    b = facts_of(d, 4)
    pair = tuple(client_path(printed, s * e, printed.init(), b, None) for s in (2.0, 1.0))
    cases.append(Case("group privacy, as printed", pair, lambda v: -float(v.norm()), "none (heuristic)"))
    pair = tuple(client_path(sound, s * e, sound.init(), b, None) for s in (0.0, 1.0))
    cases.append(
        Case(
            "group privacy, public radius, models at distance 1",
            pair,
            lambda v: float(v.norm() - (v - e).norm()),
            "epsilon = 1 at delta 0 (parameter vector, local, round)",
            claimed_epsilon=1.0,
        )
    )
    # FedRE: the same update, another sensitive region; with public scores the two opposite updates
    fedre = FedRE(epsilon=50.0, clip=1.0)
    pair = tuple(
        client_path(fedre, e, fedre.init(), b, {"a": 1.0, "b": s}) for s in (1.0, 2.0)
    )  # scoring layer b higher widens its noise and narrows a's
    cases.append(
        Case("FedRE, as printed", pair, lambda v: float(v[half:].norm() - v[:half].norm()), "none (heuristic)")
    )
    side = FedRE(epsilon=50.0, clip=1.0, scores="public")
    b2 = facts_of(d, 4, layer_scores=(1.0, 3.0))
    mu = side.quote(b2, side.init()).guarantee.mu
    apart = e + unit(d, half)
    pair = tuple(client_path(side, s * apart, side.init(), b2, None) for s in (-1.0, 1.0))
    split = side.protect(
        (Release("model", apart),), ClientFacts(broadcast=b2, layout=layout(d)), side.init(), ReproducibleSource(0)
    )
    wa, wb = (1 / s**2 for s in split.spend.scale)
    cases.append(
        Case(
            "FedRE, mu split by public scores",
            pair,
            lambda v: float(wa * v[0] + wb * v[half]),
            f"mu = {mu:.3g} (replace-one, client, local, round)",
            claimed_mu=mu,
        )
    )
    # SGA-LDP: an aligned update against an orthogonal one; with released similarity the two opposite updates
    reference = unit(d, d - 1)
    moved = Broadcast(models=reference[None], public=b.public)
    for similarity in ("update", "released"):
        sga = SGALDP(similarity=similarity)  # type: ignore[arg-type]
        state = LastBroadcast(1, torch.zeros(d, dtype=torch.float64), reference.clone())
        if similarity == "update":
            pair = tuple(client_path(sga, u, state, moved, None) for u in (e, reference))
            score: Vector = lambda v: -float((v - reference).norm())  # noqa: E731
            cases.append(Case("SGA-LDP, as printed", pair, score, "none (heuristic)"))
        else:
            mu = sga.quote(moved, state).guarantee.mu
            pair = tuple(client_path(sga, s * e, state, moved, None) for s in (-1.0, 1.0))
            cases.append(
                Case(
                    "SGA-LDP, released similarity",
                    pair,
                    lambda v: float(v @ e),
                    f"mu = {mu:.3g} (replace-one, client, local, round)",
                    claimed_mu=mu,
                )
            )
    return cases


def main() -> None:
    """Play every case and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for d in (2, 11, 1000):
        for case in central_cases(d) + client_cases(d):
            source = ReproducibleSource(d)
            scores = [
                torch.tensor([case.score(world(source.child(case.name, w, r))) for r in range(args.runs)])
                .double()
                .numpy()
                for w, world in enumerate(case.worlds)
            ]
            result = bound(*scores)
            held = None
            if case.claimed_mu is not None:
                held = result.mu_lower <= case.claimed_mu
            elif case.claimed_epsilon is not None:
                held = result.epsilon_lower <= case.claimed_epsilon
            rows.append(
                {
                    "method": case.name,
                    "dimension": d,
                    "claim": case.claim,
                    "mu_lower": round(result.mu_lower, 3),
                    "epsilon_lower_at_delta_0": round(result.epsilon_lower, 3),
                    "ceiling_mu": round(result.ceiling, 2),
                    "held": held,
                }
            )
            print(rows[-1], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance("none: worst-case vectors", [2, 11, 1000]), "runs": args.runs, "rows": rows}
    (args.out / "game.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = ["| method | d | claim | mu, lower bound | claim held |", "|---|---|---|---|---|"]
    for r in rows:
        mark = {True: "yes", False: "**NO**", None: "no claim to hold"}[r["held"]]
        found = f"{r['mu_lower']:.2f}"
        if r["claim"].startswith("epsilon"):
            found += f" (epsilon {r['epsilon_lower_at_delta_0']:.2f})"
        lines.append(f"| {r['method']} | {r['dimension']} | {r['claim']} | {found} | {mark} |")
    (args.out / "game.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
