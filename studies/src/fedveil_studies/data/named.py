"""Image data sets that come as one npz file: BloodMNIST, MNIST with its writers, and a part of CIFAR-10."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedveil.data import DataSet, SourceInfo
from fedveil.data.arrays import images, read_npz
from fedveil.data.labels import Array, count_classes, natural_clients
from fedveil.data.leaf import turned
from fedveil.data.sets import find, locate
from fedveil.data.versions import require_published_file, require_version
from fedveil.errors import FieldError, require_choice, require_count
from fedveil_studies.data import BLOODMNIST, CIFAR10_SUBSET, MNIST_BY_WRITER, writers
from fedveil_studies.data.scattering import scattered

# The names of the official set, in the order of its labels.
BLOOD_CLASSES = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "ig",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
KINDS = ("images", "labels")
WRITERS = ("train_writer", "test_writer")
OFFICIAL_BLOOD = (
    "7053d0359d879ad8a5505303e11de1dc"  # MD5 of MedMNIST's file, as medmnist 3.0.2 states it
)
# Checksums of the arrays that are needed, by file.
CONTENTS = {
    "bloodmnist_rebuilt_28.npz": "a98d8a93aac1aef7a87d284a9d42c5a48ea6a3557b8a94b2483c5c03bb7ff1e1",
    "mnist_by_writer.npz": "c743627bf93d4a1ea1cf9e58ce8902abbca2e1b06516567d03650af651156e73",
    "cifar10_subset.npz": "e9e02da0d3aa79cb92bed34f27af28ffebb953061975f27339bce9480c277c61",
    "sroie2019_200_gray768.npz": "d8fa72099a0182243ec5d73e98832deeec123119db276830088ce9d38b1d3768",
}


def require_arrays(name: str, arrays: Mapping[str, Array], needed: Sequence[str]) -> None:
    """Refuse the file of a named data set if an array is missing."""
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise FieldError(
            "data.name", name, f"its file lacks {', '.join(missing)}: it is another file"
        )


def arrays_of(name: str, info: SourceInfo, needed: Sequence[str]) -> dict[str, Array]:
    """Read the arrays of a named data set's file; another version of the file is refused."""
    file = info.files[0][0]
    arrays = read_npz(locate(name, file, info.official))
    require_known(name, file, info, arrays, needed)
    return arrays


def require_known(
    name: str, file: str, info: SourceInfo, arrays: Mapping[str, Array], needed: Sequence[str]
) -> None:
    """Refuse a file if an array is missing, or a needed array has another checksum."""
    require_arrays(name, arrays, needed)
    columns = {key: arrays[key] for key in needed}
    require_version(name, file, columns, CONTENTS[file], info.official)


def load_bloodmnist(*, split: str = "test", scale: str = "unit") -> DataSet:
    """Load BloodMNIST, microscope images of single blood cells, [3, 28, 28].

    Parameters
    ----------
    split : {"test", "val"}
        Part of the data set that the server holds beside the training part: 3,421 or 1,712 images.
    scale : {"unit", "standard"}
        Pixels in [0, 1], or (pixel - 0.5) / 0.5. Both are fixed and need no statistics.

    Raises
    ------
    MissingDataError
        If the file is missing.
    FieldError
        If it is another version, by checksum.
    """
    require_choice("data.split", split, ("test", "val"))
    [(name, rebuilt)] = BLOODMNIST.files
    official = find(name)
    file = official or find(rebuilt) or locate("bloodmnist", name, BLOODMNIST.official)
    parts = ("train_images", "train_labels", f"{split}_images", f"{split}_labels")
    note = (
        "Rebuilt from the source images: class counts are the official ones, but which image is in which part is a "
        "seeded draw."
    )
    if official:
        require_published_file("bloodmnist", official, OFFICIAL_BLOOD, BLOODMNIST.official)
    arrays = read_npz(file)
    if not official:
        every = [f"{part}_{kind}" for part in ("train", "val", "test") for kind in KINDS]
        require_known("bloodmnist", rebuilt, BLOODMNIST, arrays, every)
    dataset = _set("bloodmnist", arrays, parts, BLOOD_CLASSES, scale)
    return replace(dataset, note="" if official else note, licence=BLOODMNIST.licence)


def load_mnist_by_writer(
    *,
    rotated: float = 0.0,
    rotation_seed: int = 0,
    scale: str = "unit",
    person: str = "",
    features: int = 0,
    measured: str = "rest",
    most: int = 0,
    scattering: int = 0,
    scattering_groups: int = 0,
) -> DataSet:
    """Load MNIST, handwritten digits [1, 28, 28], with its writers as natural clients.

    The test half is written by other people.

    Parameters
    ----------
    rotated : float
        Probability that a writer's images are turned by 90 degrees counter-clockwise. It makes two kinds of clients
        that need different models; the group-privacy paper uses 0.5.
    rotation_seed : int
        Seed that chooses the turned writers.
    scale : {"unit", "standard"}
        Pixels in [0, 1], or (pixel - 0.5) / 0.5.
    person : {"", "writer"}
        ``"writer"``: an image belongs to the person who wrote it.
    features : int
        Number of principal components that replace pixels; 0: pixels. They are learned without labels on 30 writers of
        the test half. The test half then has half of its other writers.
    measured : {"rest", "tuning", "public"}
        With `features`, writers of the test half: either half of the others, or the public ones.
    most : int
        Number of images per writer, the first ones; 0: all.
    scattering : int
        Number of scattering features, of length 1, that replace pixels (`fedveil_studies.data.scattering`); 0: pixels.
        They are computed once, in some minutes, and cached.
    scattering_groups : int
        All 3,969 scattering coefficients in the place of pixels, standardised over so many groups of an image's 81 maps
        and left at the length they then have, at most 63. They are computed once and cached. 0: pixels.

    Raises
    ------
    MissingDataError
        If the file is missing.
    FieldError
        If the images are not MNIST's, or two kinds of features are asked for.
    """
    require_choice("data.person", person, ("", "writer"))
    if require_count("data.scattering", scattering, least=0) and (features or rotated):
        accepted = "is of digits as they are: leave out features and rotated"
        raise FieldError("data.scattering", scattering, accepted)
    groups = require_count("data.scattering_groups", scattering_groups, least=0)
    if groups and (scattering or features or rotated):
        accepted = "is of digits as they are: leave out scattering, features and rotated"
        raise FieldError("data.scattering_groups", groups, accepted)
    require_choice("data.measured", measured, ("rest", "tuning", "public"))
    arrays = arrays_of("mnist-by-writer", MNIST_BY_WRITER, [*PARTS, *WRITERS])
    if rotated != 0:
        for half in ("train", "test"):
            turned(arrays[f"{half}_images"], arrays[f"{half}_writer"], rotated, rotation_seed)
    dataset = _set("mnist-by-writer", arrays, PARTS, tuple(str(c) for c in range(10)), scale)
    owner, owners = natural_clients("train_writer", arrays["train_writer"], len(dataset.x))
    note = "Ten digits of 539 writers: FEMNIST has 62 classes and some 3,550 writers."
    if rotated:
        note += f" Images of a writer are turned by 90 degrees with probability {rotated:g}."
    group = None
    if person:
        group = owner
    licence = "CC BY-SA 3.0 (MNIST), BSD-3-Clause (writers)"
    dataset = replace(dataset, owner=owner, owners=owners, group=group, note=note, licence=licence)
    if scattering or groups:
        dataset = scattered(dataset, scattering, groups)
    if require_count("data.features", features, least=0):
        dataset = writers.with_components(
            dataset, torch.from_numpy(arrays["test_writer"]), features, measured
        )
    if require_count("data.most", most, least=0):
        return writers.first_images(dataset, most)
    return dataset


def load_cifar10_subset(*, scale: str = "unit") -> DataSet:
    """Load a part of CIFAR-10, photographs of ten kinds of things, [3, 32, 32].

    Parameters
    ----------
    scale : {"unit", "standard"}
        Pixels in [0, 1], or (pixel - 0.5) / 0.5.

    Raises
    ------
    MissingDataError
        If the file is missing.
    """
    arrays = arrays_of("cifar10-subset", CIFAR10_SUBSET, [*PARTS, "class_names"])
    names = tuple(str(n) for n in arrays["class_names"])
    note = "10,000 training images (a fifth of CIFAR-10) and 3,000 test images: figures are not those of the whole set."
    return replace(
        _set("cifar10-subset", arrays, PARTS, names, scale),
        note=note,
        licence=CIFAR10_SUBSET.licence,
    )


def _set(
    name: str, arrays: dict[str, Array], parts: Sequence[str], names: tuple[str, ...], scale: str
) -> DataSet:
    require_choice("data.scale", scale, ("unit", "standard"))
    require_arrays(name, arrays, parts)
    x, y, test_x, test_y = (arrays[part] for part in parts)
    pixels = [images(part, "last") for part in (x, test_x)]
    if scale == "standard":
        pixels = [part.sub_(0.5).div_(0.5) for part in pixels]
    labels = [torch.from_numpy(part.reshape(-1).astype(np.int64)) for part in (y, test_y)]
    count_classes({parts[1]: labels[0].numpy(), parts[3]: labels[1].numpy()}, len(names))
    return DataSet(
        name=name,
        x=pixels[0],
        y=labels[0],
        test_x=pixels[1],
        test_y=labels[1],
        classes=len(names),
        class_names=names,
    )
