"""The sections of the page, one function a result file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.limits import PHASES
from benchmarks.markdown import compared, figure, milliseconds, seconds, table

Record = dict[str, Any]
_AGREE = {True: "agree", False: "**do not agree**"}


def engines(record: Record) -> list[str]:
    """W1 and W2."""
    parts = []
    head = (
        "engine",
        "ms a round, minimum",
        "median",
        "times ours (minimums)",
        "(medians)",
        "CPU ms",
        "rounds",
    )
    for key, work in record["workloads"].items():
        times = work["times_as_long_as_ours"]
        rows = [
            (*compared(case, row, times), figure(row["minimum_cpu_ms"]), row["laps"])
            for case, row in work["rows"].items()
        ]
        parts += [f"## {key}: {work['title']}", table(head, rows)]
        parts += [_checked(check) for check in work["agreement"]]
        same = [
            (n, r["rounds"], figure(r["accuracy"]), figure(r["moved"]))
            for n, r in work["same_work"].items()
        ]
        parts.append(
            table(
                ("with its own draws", "rounds", "test accuracy", "distance the parameters moved"),
                same,
            )
        )
        parts += [f"Left out: {peer} ({why})." for peer, why in work["skipped"].items()]
    return parts


def _checked(check: Record) -> str:
    worst = check["largest_difference_over_largest_parameter"]
    return (
        f"FedVeil with {check['workers']} worker(s) and the plain loop, given the same cohorts, orders of examples and "
        f"noise, {_AGREE[check['agree']]} in {check['dtype']} after {check['rounds']} rounds: the largest difference "
        f"is {worst:.1e} of the largest parameter (tolerance {check['tolerance']:.0e})."
    )


def limits(record: Record) -> list[str]:
    """Phases of a round, and what its arithmetic alone would take."""
    speed = record["machine"]
    parts = [
        "## Where a round's time goes, and the limit",
        f"One core of this machine does {figure(speed['matrix_product_gflops'])} GFLOP/s in a large float32 matrix "
        f"product and {figure(speed['convolution_gflops'])} in W2's larger convolution (forwards), and copies "
        f"{figure(speed['copy_gb_per_s'])} GB/s. No engine that uses PyTorch's float32 kernels on one core gets below "
        "the arithmetic alone.",
    ]
    rows = []
    for name, work in record["workloads"].items():
        whole = work["phases"]["whole round"]["minimum_ms"]
        for phase, row in work["phases"].items():
            share = f"{row['minimum_ms'] / whole:.0%}"
            rows.append(
                (
                    name,
                    PHASES.get(phase, phase),
                    figure(row["minimum_ms"]),
                    figure(row["median_ms"]),
                    share,
                )
            )
        alone = work["arithmetic"]
        rows.append(
            (
                name,
                f"the {alone['what']} alone",
                figure(alone["ms"]),
                None,
                f"{alone['ms'] / whole:.0%}",
            )
        )
    why = (
        "What is not arithmetic is, in W1, the cost of calling hundreds of operations on a few thousand numbers each: "
        "in training, and for the replies of twenty clients, the noise and the ledger. A compiled kernel for the whole "
        "step would be the next thing to try. In W2 it is the dense layer, whose 4.7 MB of weights are read three "
        "times and written once at every step."
    )
    return [
        *parts,
        table(("", "what, one worker", "ms, minimum", "median", "of the round"), rows),
        why,
    ]


def footprint(record: Record) -> list[str]:
    """Memory, imports, first rounds."""
    parts = [
        "## Memory and start",
        "Each engine alone in a fresh process. Memory is the largest resident set, Python and PyTorch included, and "
        "what of it came after the imports; Flower's is the PSS of all its processes (shared pages count once), "
        "sampled. Imports are those on top of PyTorch; the first round counts from their end, and includes building "
        "the federation.",
    ]
    for key, work in record["workloads"].items():
        rows = [
            (
                name,
                figure(row["peak_mb"]),
                figure(row["increase_mb"]),
                row["processes"],
                figure(row["import_s"]),
                figure(row["first_round_s"]),
            )
            for name, row in work["rows"].items()
        ]
        first = f"{key}, {work['rounds']} rounds"
        parts.append(
            table(
                (first, "peak MB", "above the imports", "processes", "import s", "first round s"),
                rows,
            )
        )
    every = {
        "python itself": record["python_s"],
        **record["imports_s"],
        "fedveil --help": record["help_s"],
    }
    rows = [seconds(name, row) for name, row in every.items()]
    return [*parts, table(("a fresh process", "s, minimum", "median"), rows)]


def curves(record: Record) -> list[str]:
    """Cost over clients, parameters and hypotheses."""
    picture = "![milliseconds a round over clients, parameters and hypotheses](curves.png)"
    parts = ["## What a round costs", picture]
    units = {
        "clients": ("µs a client", 1e3),
        "parameters": ("ns a parameter", 1e6),
        "hypotheses": ("ms each", 1.0),
    }
    for name, (unit, scale) in units.items():
        rows = [
            (*milliseconds(f"{row[name]:,}", row), figure(scale * row["minimum_ms"] / row[name]))
            for row in record[name]
        ]
        parts.append(table((name, "ms a round, minimum", "median", unit), rows))
    return parts


def cnn(record: Record) -> list[str]:
    """The paper's network."""
    rows = [
        compared(case, row, record["times_as_long_as_ours"]) for case, row in record["rows"].items()
    ]
    check = record["agreement"]
    apart = check["difference_norm_over_distance_moved"]
    return [
        "## The metric-privacy paper's CNN: 6.5 million parameters, 1x128x128",
        table(
            (
                "one step, batch 32, Adam",
                "ms, minimum",
                "median",
                "times ours (minimums)",
                "(medians)",
            ),
            rows,
        ),
        f"Trainer and plain loop {_AGREE[check['agree']]} after two steps without dropout: they are {apart:.1e} of "
        f"the distance moved apart (tolerance {check['tolerance']:g}; Adam magnifies the last bits of tiny gradients). "
        "With several workers or clients, a step is the time over all their steps. bfloat16 trains other models and is "
        "never chosen by itself.",
    ]


def trainers(record: Record) -> list[str]:
    """Batched beside sequential."""
    rows = [
        (
            row["model"],
            f"{row['parameters']:,}",
            row["optimizer"],
            row["clients"],
            figure(row["batched"]["minimum_ms"]),
            figure(row["sequential"]["minimum_ms"]),
            figure(row["sequential_over_batched"], "x"),
        )
        for row in record["rows"]
    ]
    head = (
        "model",
        "parameters",
        "optimiser",
        "clients",
        "batched, ms",
        "sequential, ms",
        "sequential over batched",
    )
    return [
        "## Trainers: one epoch on one thread, minimums",
        table(head, rows),
        '`trainer = "auto"` takes the batched one wherever it can. For networks of convolutions the two are equally '
        "fast within what repeated measurements differ by, 15% (of the larger ones, either was ahead in one of two).",
    ]


def scores(record: Record) -> list[str]:
    """FedRE's layer scores."""
    one_of = record["rows"]["naive Jacobian"]["one_of"]
    return [
        f"## Layer scores: LeNet of {record['parameters']:,} parameters, a region of {record['pixels']:,} pixels",
        table(
            ("method", "ms, minimum", "median"),
            [milliseconds(*pair) for pair in record["rows"].items()],
        ),
        f"The Jacobian's time is that of one row in {one_of}, times {one_of}. The estimate of a layer is "
        f"off by {record['estimate_error_median']:.1%} (median over layers and "
        f"{record['seeds']} seeds), at most {record['estimate_error_largest']:.1%}; that of the layers' sum by "
        f"{record['estimate_error_of_the_sum_median']:.1%}.",
    ]


def kernels(record: Record) -> list[str]:
    """The server's kernels."""
    rows = [
        (
            row["case"],
            row["peer"],
            figure(row["ours_ms"]["minimum"]),
            figure(row["peer_ms"]["minimum"]),
            figure(row["ratio_of_minimums"], "x"),
            figure(row["ratio_of_medians"], "x"),
            f"{row['difference']:.1e}",
        )
        for row in record["rows"]
    ]
    head = (
        "kernel",
        "beside",
        "ours, ms",
        "theirs, ms",
        "ratio (minimums)",
        "(medians)",
        "difference",
    )
    return ["## Server kernels, one thread unless said", table(head, rows)]


def noise(record: Record) -> list[str]:
    """Secure and ordinary noise."""
    rows = [
        (*milliseconds(row["case"], row), figure(row["times_faster_than_np_random_normal"], "x"))
        for row in record["rows"]
    ]
    head = (
        f"{record['draws']:,} draws",
        "ms, minimum",
        "median",
        "times as fast as np.random.normal",
    )
    return ["## Noise, one thread", table(head, rows)]


def per_example(record: Record) -> list[str]:
    """Record-level training beside plain training."""
    rows = [
        (
            row["case"],
            row["batch"],
            figure(row["plain_ms"]),
            figure(row["ours_over_plain"], "x"),
            figure(row.get("opacus_over_plain"), "x"),
        )
        for row in record["rows"]
    ]
    head = ("model", "batch", "a plain step, ms", "ours over it", "opacus over it")
    return [
        "## Clipped gradients of single examples: a step on one thread, minimums",
        table(head, rows),
    ]


def persons(record: Record) -> list[str]:
    """Person-level training beside plain training on the same images."""
    rows = [
        (
            row["case"],
            f"{row['images']:,}",
            row["head"],
            figure(row["plain_ms"]),
            figure(row["persons_ms"]),
            figure(row["persons_over_plain"], "x"),
        )
        for row in record["rows"]
    ]
    head = ("people", "images", "head", "a plain step, ms", "a step of persons, ms", "over it")
    said = (
        "Processor time of one thread. The 25 steps of the study of persons, over its ten silos of 54 writers: "
        f"{record['study_s']} s. "
        "A person's mean gradient is clipped in float64: formed or, where each has few images, as its factor."
    )
    return ["## Clipped means of persons: a step on a dense head", said, table(head, rows)]


def secure_sum(record: Record) -> list[str]:
    """A round of the secure sum beside the plain sum."""
    rows = [
        (
            row["sites"],
            f"{row['parameters']:,}",
            *(figure(row[f"{name}_ms"]) for name in ("share", "plain_share", "sum", "plain_sum")),
            f"{row['share_bytes']:,}",
            f"{row['plain_share_bytes']:,}",
        )
        for row in record["rows"]
    ]
    head = (
        "sites",
        "parameters",
        "a site's share, ms",
        "plain, ms",
        "the sum, ms",
        "plain, ms",
        "share, bytes",
        "plain",
    )
    said = (
        "Processor time of one thread, minimum of up to three. A share: noise on the "
        "grid, nearly all of the time, and a mask for each other site; plain: float32 noise. The sum: what the server "
        "adds up. A question carries 32 bytes a site beside the model."
    )
    return ["## The secure sum: a round beside the plain sum", said, table(head, rows)]


def waits(record: Record) -> list[str]:
    """Commands and shadow models, in seconds."""
    starts = [seconds(f"`fedveil run {preset}`", row) for preset, row in record["starts"].items()]
    commands = [
        (title, f"`{row['command']}`", figure(row["wall_s"]), figure(row["cpu_s"]))
        for title, row in record["commands"].items()
    ]
    lira = record["lira"]
    return [
        "## Where people wait",
        "Processor seconds until the first round of a preset is in metrics.jsonl, beyond those of `import torch` alone "
        f"({record['torch_cpu_s']} s); whole commands; and {lira['shadows']} shadow models for LiRA on 1,400 digits, "
        f"60 epochs each: {figure(lira['minimum_s'])} s of one core.",
        table(("start", "s, minimum", "median"), starts),
        table(("what", "command", "s", "s of the processor"), commands),
    ]


SECTIONS: dict[str, Callable[[Record], list[str]]] = {
    "engines": engines,
    "limits": limits,
    "footprint": footprint,
    "curves": curves,
    "cnn": cnn,
    "trainers": trainers,
    "scores": scores,
    "kernels": kernels,
    "noise": noise,
    "per_example": per_example,
    "persons": persons,
    "secure_sum": secure_sum,
    "waits": waits,
}
