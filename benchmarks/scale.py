"""How far one process goes: many clients, a large model, a secure sum of many sites.

Run ``python -m benchmarks.scale clients``, ``parameters`` or ``sum``; each prints one line of JSON. Seconds are of the clock
and of the processor, with one thread. ``peak_mb`` is the most resident memory of the process, data included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fedveil as fv
from benchmarks.memory import peak, present


def clients() -> tuple[Callable[[], fv.Federation], dict[str, int]]:
    """100,000 clients of 10 examples each, of whom 1,000 take part in a round."""
    number, each, features, cohort = 100_000, 10, 20, 1_000
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(number, each, features, generator=draw)
    y = (x.sum(2) > 0).long()
    model = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 2))

    def made() -> fv.Federation:
        return fv.Federation(
            model=model,
            clients=list(zip(x, y, strict=True)),
            method=fv.GlobalDP(noise_multiplier=1.0, clip=1.0),
            local=fv.LocalTraining(batch_size=5, lr=0.1),
            clients_per_round=cohort,
        )

    sizes = {"clients": number, "cohort": cohort, "parameters": _size(model), "rounds": 5}
    return made, sizes


def parameters() -> tuple[Callable[[], fv.Federation], dict[str, int]]:
    """Three clients of 4 examples train 100 million parameters; the noise protects clients."""
    width, number, each = 10_000, 3, 4
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(number, each, width, generator=draw)
    y = torch.arange(each).expand(number, each)
    model = nn.Sequential(nn.Linear(width, width))

    def made() -> fv.Federation:
        return fv.Federation(
            model=model,
            clients=list(zip(x, y, strict=True)),
            method=fv.GlobalDP(noise_multiplier=1.0, clip=1.0),
            local=fv.LocalTraining(batch_size=each, lr=0.1),
            execution=fv.Execution(trainer="sequential"),
        )

    return made, {"clients": number, "parameters": _size(model), "rounds": 1}


def secure_sum() -> tuple[Callable[[], fv.Federation], dict[str, int]]:
    """200 sites of 50 records each train a dense head at record level, by a secure sum."""
    number, each, features = 200, 50, 64
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(number, each, features, generator=draw)
    y = (x.sum(2) > 0).long()
    model = nn.Sequential(nn.Linear(features, 10))
    method = fv.methods.build(
        "record",
        fv.FedAvg(),
        sum="secure",
        least_sites=number,
        epsilon=8.0,
        rounds=2,
        examples=each,
        clip=1.0,
    )

    def made() -> fv.Federation:
        return fv.Federation(model=model, clients=list(zip(x, y, strict=True)), method=method)

    return made, {"clients": number, "parameters": _size(model), "rounds": 2}


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


PARTS = {"clients": clients, "parameters": parameters, "sum": secure_sum}


def measured(part: str) -> dict[str, Any]:
    """Run a part, and return its figures."""
    make, sizes = PARTS[part]()
    before = present()
    began, worked = time.perf_counter(), time.process_time()
    federation = make()
    built, built_work = time.perf_counter(), time.process_time()
    federation.run(sizes["rounds"])
    rounds = sizes["rounds"]
    return {
        "part": part,
        **sizes,
        "build_s": round(built - began, 2),
        "build_processor_s": round(built_work - worked, 2),
        "round_s": round((time.perf_counter() - built) / rounds, 3),
        "round_processor_s": round((time.process_time() - built_work) / rounds, 3),
        "data_and_model_mb": round(before),
        "peak_mb": round(peak()),
    }


def main() -> None:
    """Print the figures of the part that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    torch.set_num_threads(1)
    print(json.dumps(measured(parser.parse_args().part)))


if __name__ == "__main__":
    main()
