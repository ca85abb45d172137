"""What a robust rule leaves of a swarm of four in which one peer is malicious, next to the plain mean.

Run ``python -m benchmarks.swarm_rules --seeds 3 --into results/swarm-rules`` in a checkout, with FLARE installed.

Four peers train a small network on digits, and take turns as the aggregator with `RuleAggregator`, as FLARE's swarm
controller uses it. The last peer is malicious, and sends the same as any other would if nobody attacks. A rule that
cannot work among four peers is *refused*, in the library's own words.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext

from benchmarks.flare_filters import Arrays, averaged, flat, network, trained
from benchmarks.records import write
from fedveil.aggregation import AGGREGATORS, Aggregator
from fedveil.engines import Behaviour, Turn
from fedveil.engines.nvflare.shareables import rule_of
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.methods import Broadcast, PublicFacts
from fedveil.nvflare import RuleAggregator
from fedveil_lab.attacks.poisoning import ALIE, IPM, MinMax, NoiseAttack, SignFlip

PEERS, ROUNDS, CLASSES = ["site-1", "site-2", "site-3", "site-4"], 15, 10
AS_FEDAVG = ("fedprox", "fedopt")  # the same mean; FedProx changes the peers' own training
SIZES = {"site-1": 700.0, "site-2": 200.0, "site-3": 200.0, "site-4": 200.0}
CAP = 0.4
ATTACKS = ("sign flip x10", "noise x10", "ALIE", "IPM", "MinMax")
OPTIONS: dict[str, dict[str, Any]] = {
    "trimmed-mean": {"fraction": 0.25},
    "krum": {"malicious": 1},
    "multi-krum": {"malicious": 1, "selected": 2},
    "bulyan": {"malicious": 1},
    "centred-clipping": {"remember": False, "radius": 1.0},
    "norm-bounding": {"bound": 1.0},
}


def attack(name: str, rule: Aggregator) -> Behaviour:
    """One of the five attacks; ALIE and IPM are tuned to the rule."""
    made: dict[str, Behaviour] = {
        "sign flip x10": SignFlip(factor=10.0),
        "noise x10": NoiseAttack(factor=10.0),
        "ALIE": ALIE(rule=rule),
        "IPM": IPM(rule=rule),
        "MinMax": MinMax(),
    }
    return made[name]


def rules() -> dict[str, dict[str, Any]]:
    """Arguments of each rule's aggregator, by what the table says."""
    found: dict[str, dict[str, Any]] = {}
    for name in AGGREGATORS:
        if name not in AS_FEDAVG:
            found[name] = {"rule": {"name": name, **OPTIONS.get(name, {})}}
    for name in ("krum", "multi-krum", "bulyan"):
        told = {key: value for key, value in OPTIONS[name].items() if key != "malicious"}
        found[f"{name}, told of none"] = {"rule": {"name": name, **told}}
    for name in ("fedavg", "fedmedian", "trimmed-mean", "geometric-median"):
        found[f"{name}, by size"] = {
            "rule": {"name": name, **OPTIONS.get(name, {})},
            "weights": SIZES,
            "cap": CAP,
        }
    return found


def data(seed: int, alpha: float) -> tuple[list[ClientData], tuple[torch.Tensor, torch.Tensor]]:
    """Each peer's rows by a Dirichlet over classes, and those that belong to nobody."""
    from sklearn.datasets import load_digits

    draw = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = draw.permutation(len(x))
    rows, targets = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    held, own = slice(0, 397), torch.arange(397, len(rows))
    dealt: list[list[int]] = [[] for _ in PEERS]
    for label in range(CLASSES):
        places = own[targets[own] == label].tolist()
        parts = (np.cumsum(draw.dirichlet([alpha] * len(PEERS)))[:-1] * len(places)).astype(int)
        for peer, some in enumerate(np.split(np.array(places), parts)):
            dealt[peer] += some.tolist()
    clients = [ClientData(rows[places], targets[places]) for places in dealt]
    return clients, (rows[held], targets[held])


def context(peer: str) -> FLContext:
    """FLARE's context of a message from a peer."""
    fl_ctx, sender = FLContext(), FLContext()
    sender.put("__identity_name__", peer, private=False, sticky=False)
    fl_ctx.put("__identity_name__", peer, private=False, sticky=False)
    fl_ctx.set_peer_context(sender)
    return fl_ctx


def attacked(
    behaviour: Behaviour, start: torch.Tensor, own: Arrays, honest: Sequence[Arrays], round_: int
) -> Arrays:
    """The difference that a malicious peer sends."""
    vectors = torch.stack([torch.as_tensor(flat(arrays), dtype=torch.float32) for arrays in honest])
    public = PublicFacts(round=round_, rounds=ROUNDS, cohort=len(PEERS), dimension=len(start))
    trained_ = start + torch.as_tensor(flat(own), dtype=torch.float32)
    broadcast = Broadcast(models=start[None], public=public)
    turn = Turn(len(PEERS) - 1, broadcast, 0, trained_, (len(PEERS) - 1,), vectors, vectors)
    model = behaviour.model(turn)
    step = (trained_ if model is None else model) - start
    result, place = {}, 0
    for name in sorted(own):
        size = own[name].size
        result[name] = step[place : place + size].reshape(own[name].shape).numpy()
        place += size
    return result


def played(
    arguments: dict[str, Any], behaviour: Behaviour | None, seed: int, alpha: float
) -> dict[str, float]:
    """Accuracy after all rounds."""
    logging.disable(logging.CRITICAL)  # what is left out is said each time
    clients, (x, y) = data(seed, alpha)
    model = network(seed)
    peers = [RuleAggregator(sites=len(PEERS), swarm=True, **arguments) for _ in PEERS]
    for round_ in range(1, ROUNDS + 1):
        bad = (
            clients[-1]
            if behaviour is None
            else behaviour.data(clients[-1], len(PEERS) - 1, round_)
        )
        sent = [trained(model, one.x, one.y) for one in (*clients[:-1], bad)]
        if behaviour is not None:
            state = {name: value.numpy() for name, value in model.state_dict().items()}
            start = torch.as_tensor(flat(state), dtype=torch.float32)
            sent[-1] = attacked(behaviour, start, sent[-1], sent[:-1], round_)
        aggregator = peers[round_ % len(PEERS)]
        for name, arrays in zip(PEERS, sent, strict=True):
            aggregator.accept(DXO(DataKind.WEIGHT_DIFF, dict(arrays)).to_shareable(), context(name))
        try:
            step = from_shareable(aggregator.aggregate(context(PEERS[0]))).data
        except FieldError:  # nobody sent anything finite: the model is lost
            break
        state_dict = model.state_dict()
        for name in state_dict:
            state_dict[name] = state_dict[name] + torch.as_tensor(step[name])
        model.load_state_dict(state_dict)
    return {"accuracy": float((model(x).argmax(1) == y).float().mean())}


def row(arguments: dict[str, Any], seeds: int, alpha: float) -> dict[str, Any]:
    """Accuracies of a rule, without an attack and under each, or why it is refused."""
    try:
        RuleAggregator(sites=len(PEERS), swarm=True, **arguments)
    except FieldError as error:
        return {"refused": str(error)}
    figures: dict[str, Any] = {}
    figures["nobody attacks"] = averaged(
        [played(arguments, None, seed, alpha) for seed in range(seeds)]
    )
    for name in ATTACKS:
        behaviour = attack(name, rule_of(arguments["rule"]))
        figures[name] = averaged(
            [played(arguments, behaviour, seed, alpha) for seed in range(seeds)]
        )
    figures["worst"] = min(figures[name]["accuracy"] for name in ATTACKS)
    return figures


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The page's table."""
    columns = ["nobody attacks", *ATTACKS]
    lines = [f"| rule | {' | '.join(columns)} | the worst |", "|---" * (len(columns) + 2) + "|"]
    for name, figures in rows.items():
        if "refused" in figures:
            lines.append(f"| {name} | *refused*: {figures['refused'].partition(': ')[2]} |")
            continue
        shown = [f"{figures[column]['accuracy']:.2f}".lstrip("0") for column in columns]
        worst = f"{figures['worst']:.2f}".lstrip("0")
        lines.append(f"| {name} | {' | '.join(shown)} | {worst} |")
    return "\n".join(lines)


def main() -> None:
    """Play every rule against every attack, write the figures and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path("results/swarm-rules"))
    given = parser.parse_args()
    worlds = {"alike": 100.0, "different": 0.3}
    body: dict[str, Any] = {
        "peers": len(PEERS),
        "malicious": 1,
        "rounds": ROUNDS,
        "sizes": SIZES,
        "cap": CAP,
    }
    for world, alpha in worlds.items():
        rows = {}
        for name, arguments in rules().items():
            rows[name] = row(arguments, given.seeds, alpha)
            print(world, name, flush=True)
        body[world] = {"alpha": alpha, "rows": rows}
        print(table(rows), flush=True)
    path = write("rules", body, data="digits of scikit-learn", folder=given.into)
    named = json.loads(path.read_text())
    named["provenance"]["command"] = f"python -m benchmarks.swarm_rules --seeds {given.seeds}"
    named["provenance"]["seeds"] = list(range(given.seeds))
    path.write_text(json.dumps(named, indent=1) + "\n")


if __name__ == "__main__":
    main()
