"""Warnings of unusual settings in a configuration; each gives the number, and ordinary settings have none."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from fedveil.accounting import VACUOUS
from fedveil.data import DataSet
from fedveil.learning import ClientData
from fedveil.methods import Method
from fedveil_lab.config import Config
from fedveil_lab.config.first import WHOLE as ALL_EXAMPLES

FAR = 3.0  # times as many examples, or as few, as a plan names
HUGE = 5 * VACUOUS  # an epsilon beyond what a study of weak promises would plan
CLIPS = (1e-4, 1e4)
WHOLE = 20  # times the largest client's examples: beyond what one writes to train on all of them at once


@dataclass(frozen=True)
class About:
    """Parts of a run that the warnings look at."""

    config: Config
    method: Method
    clients: Sequence[ClientData]
    dataset: DataSet


def unusual(about: About) -> Iterator[str]:
    """Yield warnings of unusual settings before a run begins."""
    for odd in (
        _planned_examples,
        _vacuous,
        _absurd_clip,
        _large_batch,
        _nothing_held_out,
        _delta_asked,
    ):
        yield from odd(about)


def _planned_examples(about: About) -> Iterator[str]:
    planned = about.config.privacy.options.get("examples")
    held = [client.examples for client in about.clients if client.examples]
    if not planned or not held or about.config.privacy.options.get("unit") == "person":
        return
    mean = fmean(held)
    if max(planned / mean, mean / planned) > FAR:
        if planned > mean:
            steps = f"{planned / mean:.3g} times shorter"
        else:
            steps = f"{mean / planned:.3g} times longer"
        yield (
            f"privacy.examples = {planned:g}, and the clients hold {mean:.0f} on the average ({min(held)} to "
            f"{max(held)}): steps are {steps} than their mean gradient; plan for about as many as there are"
        )


def _vacuous(about: About) -> Iterator[str]:
    epsilon = about.config.privacy.options.get("epsilon")
    promised = about.method.noisy is not None or about.config.privacy.method == "global"
    if promised and epsilon is not None and epsilon > HUGE:
        yield f"privacy.epsilon = {epsilon:g} promises nothing: beyond {VACUOUS:g} an attacker is hardly held back"


def _absurd_clip(about: About) -> Iterator[str]:
    clip = about.config.privacy.options.get("clip")
    if isinstance(clip, int | float) and not CLIPS[0] <= clip <= CLIPS[1]:
        what = "noise is as large as the clip"
        if clip < 1:
            what = "nothing is learned: every update is cut to that length"
        yield f"privacy.clip = {clip:g}: {what}; updates and gradients are mostly .1 to 10 long"


def _large_batch(about: About) -> Iterator[str]:
    size = about.config.local.batch_size
    largest = max((client.examples for client in about.clients), default=0)
    meant = size == ALL_EXAMPLES  # what `fedveil init` writes for one step an epoch
    if about.method.noisy is None and largest and not meant and size > WHOLE * largest:
        yield f"local.batch_size = {size}, and the largest client holds {largest} examples: an epoch is one step"


def _nothing_held_out(about: About) -> Iterator[str]:
    held = [
        client.test_y
        for client in about.clients
        if client.test_y is not None and len(client.test_y)
    ]
    dataset = about.dataset
    if not held and dataset.test_y is None and (share := about.config.data.holdout):
        yield f"data.holdout = {share:g} of so few examples is none: nothing is measured; take fewer clients"
    if held and dataset.task == "classification":
        classes = {int(c) for y in held for c in torch.unique(y).tolist()}
        if len(classes) == 1:
            count = sum(map(len, held))
            yield f"all {count} held-out examples are of one class: no figure tells how well classes are told apart"


def _delta_asked(about: About) -> Iterator[str]:
    options, printed = about.config.privacy.options, about.config.privacy.budget.delta
    asked = options.get("delta")
    if options.get("epsilon") and asked and asked != printed:
        yield (
            f"the noise is planned for epsilon = {options['epsilon']:g} at privacy.delta = {asked:g}, and epsilons are "
            f"printed at privacy.budget.delta = {printed:g}: set both alike to read the promise that was asked for"
        )
