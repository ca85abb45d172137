"""Why an earlier line on MNIST lost: features or steps? ``python -m fedveil_studies.published.losing FILE.csv [theirs]``.

A linear layer is trained on the training digits of 60 writers and measured on those of 30 others; no test digit is
read, and no setting is chosen. Each step's mean gradient gets the noise that the mean over 60,000 digits has in earnest.
Lines differ in features (how many, and over how many groups of maps each image is standardised) and in steps: 60, as that
line had, and 560, as many as Tramèr and Boneh take in 40 epochs of batches of 4,096. Clip and rate are those of that line;
with ``theirs`` those of their README (clip .1, rate 8, features of length 63), all else as here: full batches, not theirs.
"""

import csv
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.accounting import least_noise
from fedveil_studies.data import MNIST_BY_WRITER
from fedveil_studies.data.named import PARTS, WRITERS, arrays_of
from fedveil_studies.data.scattering import directions, scattering
from fedveil_studies.published.choosing import DELTA, DIGITS, EPSILON, stepped

CLIP, RATE, PLAIN_RATE = 0.3, 100.0, 20.0
THEIR_CLIP, THEIR_RATE, THEIR_LENGTH = 0.1, 8.0, 63.0  # as long as 3,969 standardised features are
TRAINING, MEASURING = 60, 30  # writers
FEATURES = ((512, 81), (3969, 27))  # how many, and groups of maps
STEPS = (60, 560)
COLUMNS = ("features", "groups", "epsilon", "steps", "trained on", "measured on", "accuracy")


def halves() -> list[tuple[Tensor, Tensor]]:
    """Return scattering maps [n, 81, 7, 7] and classes [n] of the digits that train, and of those that measure."""
    arrays = arrays_of("mnist-by-writer", MNIST_BY_WRITER, [*PARTS, *WRITERS])
    owner = arrays["train_writer"]
    order = np.random.default_rng(0).permutation(np.unique(owner))
    found: list[tuple[Tensor, Tensor]] = []
    for writers in (order[:TRAINING], order[TRAINING : TRAINING + MEASURING]):
        own = np.isin(owner, writers)
        images = torch.from_numpy(arrays["train_images"][own]).float() / 255
        classes = torch.from_numpy(arrays["train_labels"][own].astype(np.int64))
        found.append((scattering(images), classes))
    return found


def features(maps: Tensor, count: int, groups: int) -> Tensor:
    """Return features of length 1 [n, count]: maps standardised by image and group, turned if fewer are wanted."""
    flat = F.normalize(F.group_norm(maps, groups).flatten(1), dim=1)
    if count < flat.shape[1]:
        flat = F.normalize(flat @ directions(flat.shape[1], count), dim=1)
    return flat


def settings(theirs: bool) -> Iterator[tuple[int, str, float, float, float]]:
    """Yield steps, epsilon, clip, rate and the multiplier of the noise; 0 without privacy."""
    for steps in STEPS[1:] if theirs else STEPS:
        noise = least_noise(EPSILON, DELTA, steps)
        if theirs:
            yield steps, "", THEIR_CLIP, THEIR_RATE, 0.0
            yield steps, f"{EPSILON:g}", THEIR_CLIP, THEIR_RATE, noise
        else:
            yield steps, "", math.inf, PLAIN_RATE, 0.0
            yield steps, f"{EPSILON:g}", CLIP, RATE, noise


def main(path: Path, theirs: bool) -> None:
    """Write a line for each kind of features, number of steps, and epsilon 3 or none."""
    torch.set_num_threads(1)
    (maps, classes), (held, truth) = halves()
    sizes = (len(classes), len(truth))
    length = THEIR_LENGTH if theirs else 1.0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for count, groups in FEATURES:
            inputs, held_inputs = (length * features(one, count, groups) for one in (maps, held))
            for steps, epsilon, clip, rate, noise in settings(theirs):
                deviation = noise * clip / DIGITS if noise else 0.0
                weights = stepped(inputs, classes, deviation, clip, rate, steps)
                outputs = F.pad(held_inputs, (0, 1), value=1.0) @ weights.T
                accuracy = float((outputs.argmax(1) == truth).double().mean())
                writer.writerow((count, groups, epsilon, steps, *sizes, f"{accuracy:.4f}"))
                file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["theirs"])
