"""Memory that combining takes, in stacks of all updates: printed beside what the server counts, as JSON."""

import ctypes
import gc
import json
from pathlib import Path

import torch

import fedveil as fv
from fedveil import aggregation
from fedveil.accounting import Release
from fedveil.engines.memory import _VECTORS
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Broadcast, Method, PublicFacts, Releases, Replies, ServerFacts, build

CLIENTS, SIZE = 12, 1_000_000
STACK = CLIENTS * SIZE * 4  # bytes
RULES = {
    "mean": fv.FedAvg(),
    "median": fv.FedMedian(),
    "trimmed mean": fv.TrimmedMean(),
    "Krum": fv.Krum(2),
    "multi-Krum": aggregation.MultiKrum(2, 3),
    "Bulyan": aggregation.Bulyan(2),
    "geometric median": aggregation.GeometricMedian(),
    "centred clipping": aggregation.CentredClipping(1.0),
    "norm bounding": aggregation.NormBounding(1.0),
    "neighbours, mean": fv.NNM(fv.FedAvg(), 2),
    "neighbours, Krum": fv.NNM(fv.Krum(2), 2),
    "buckets": fv.Bucketing(fv.FedAvg(), 2),
    "proximal": fv.FedProx(),
    "momentum": fv.FedAvgM(),
    "Adagrad": aggregation.FedAdagrad(),
    "Adam": fv.FedAdam(),
    "Yogi": aggregation.FedYogi(),
    "weighted median": aggregation.WeightedMedian(),
    "split trimmed mean": aggregation.SplitTrimmedMean(),
    "weighted geometric median": aggregation.WeightedGeometricMedian(),
}


def resident(field: str) -> int:
    """Return a size of this process in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith(field + ":"))


def replies_of(method: Method) -> list[Releases]:
    """Return made-up replies; where models are grouped, all but one are of the first group."""
    generator = torch.Generator().manual_seed(1)
    replies: list[Releases] = []
    for client in range(CLIENTS):
        length = 1.0 if client == 0 else 1e-2  # one is long enough to be left out of a distance
        model = Release("model", torch.randn(SIZE, generator=generator) * length)
        index = Release("index", torch.tensor(float(client == 0), dtype=torch.float64))
        replies.append((model, index) if method.name == "ifca" else (model,))
    return replies


def peak(method: Method) -> float:
    """Return how many stacks of all updates one round's combining takes at most beside the replies."""
    layout = Layout.from_shapes({"a.weight": (SIZE // 2,), "b.weight": (SIZE - SIZE // 2,)})
    server = method.server
    broadcast = Broadcast(
        models=torch.zeros(server.hypotheses, SIZE),
        public=PublicFacts(round=1, rounds=1, cohort=CLIENTS, dimension=SIZE),
    )
    facts = ServerFacts(
        broadcast=broadcast,
        layout=layout,
        partitions=tuple(range(CLIENTS)),
        public_scores=torch.rand(CLIENTS, 2, dtype=torch.float64),
        public_update=torch.ones(SIZE),
        question=None,
    )
    replies = Replies(replies_of(method), None)
    state = server.init(SIZE, torch.float32)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    server.combine(replies, facts, state, ReproducibleSource(1))
    return (resident("VmHWM") - before) / STACK


def methods() -> dict[str, Method]:
    """Return every method with each rule that it takes."""
    found = {f"vanilla, {name}": build("vanilla", rule) for name, rule in RULES.items()}
    for method in ("global", "metric"):
        for name, rule in RULES.items():
            if not isinstance(rule, fv.NNM):  # it has no sensitivity
                found[f"{method}, {name}"] = build(method, rule, noise_multiplier=1.0, clip=1.0)
    found["global, discrete"] = build("global", noise_multiplier=1.0, clip=1.0, noise="discrete")
    found["metric, discrete"] = build("metric", noise_multiplier=1.0, clip=1.0, noise="discrete")
    found["global, printed, Krum"] = build(
        "global", fv.Krum(2), noise_multiplier=1.0, clip=1.0, order="printed"
    )
    found["metric, clipped, Krum"] = build(
        "metric", fv.Krum(2), noise_multiplier=1.0, clip=1.0, distance_on="clipped"
    )
    found["FLTrust"] = build("vanilla", aggregation.FLTrust())
    found["FedRE, scores"] = build("fedre")
    found["FedRE, equal"] = build("fedre", weighting="equal")
    found["IFCA"] = build("ifca", hypotheses=2)
    found["group"] = build("group", hypotheses=2)
    found["SGA-LDP"] = build("sga-ldp", clip=0.5)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    measured = {}
    for name, method in methods().items():
        counted = method.server.working_copies + _VECTORS / CLIENTS
        measured[name] = (round(peak(method), 2), round(counted, 2))
    print(json.dumps(measured))
