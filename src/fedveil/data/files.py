"""Where the real data sets and their decoded copies lie, and where the official ones are to be had."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from fedveil.errors import FieldError

ALZHEIMER_FILE = "alzheimer_mri_128_jpeg.npz"
ALZHEIMER_OFFICIAL = (
    "Alzheimer MRI, Hugging Face data set Falah/Alzheimer_MRI (6,400 images; the file holds them as one npz: jpeg "
    "(uint8, all images one after another), offsets (6401), labels, class_names, split_kaggle, split_hf_counts)"
)
BLOOD_FILE, REBUILT_BLOOD_FILE = "bloodmnist.npz", "bloodmnist_rebuilt_28.npz"
WRITERS_FILE = "mnist_by_writer.npz"
CIFAR_FILE = "cifar10_subset.npz"
BLOOD_OFFICIAL = "MedMNIST v2, https://zenodo.org/records/10519652 (bloodmnist.npz, 35 MB, CC BY 4.0)"
WRITERS_OFFICIAL = (
    "the images of MNIST (CC BY-SA 3.0) with the writers that QMNIST's extended labels give them, "
    "https://github.com/facebookresearch/qmnist (BSD-3-Clause); the file (12 MB) joins them as train_images, "
    "train_labels, train_writer, test_images, test_labels, test_writer"
)
CIFAR_OFFICIAL = (
    "CIFAR-10, https://www.cs.toronto.edu/~kriz/cifar.html (about 160 MB, states no licence); the file (37 MB) holds "
    "train_images (10000, 32, 32, 3), its first batch, train_labels, test_images, test_labels, class_names"
)
SROIE_FILE = "sroie2019_200_gray768.npz"
SROIE_OFFICIAL = (
    "ICDAR 2019 SROIE, task 1, https://rrc.cvc.uab.es/?ch=13 (CC BY 4.0); the file (22 MB) holds 200 grey receipts, at "
    "most 768 pixels high: pixels, pixel_offsets, shapes, boxes, box_offsets, key_json"
)
CMS_LICENCE = "public domain (US government)"
PROVIDERS_FILE = "cms_providers_geo.csv.gz"
INPATIENT_FILE = "cms_inpatient_drg100_fy2011.csv.gz"
OUTPATIENT_FILE = "cms_outpatient_apc30_cy2011.csv.gz"
INPATIENT_OFFICIAL = (
    "Medicare Provider Charge Data, Inpatient, fiscal year 2011 (100 most common DRGs), "
    "https://data.cms.gov (97k6-zzx3; 163,065 rows, public domain); the file needs the columns drg, "
    "provider_id, avg_covered_charges, avg_total_payments"
)
OUTPATIENT_OFFICIAL = (
    "Medicare Provider Charge Data, Outpatient, calendar year 2011 (30 APCs), "
    "https://data.cms.gov (43,372 rows, public domain); the file needs the columns apc, "
    "provider_id, avg_submitted_charges, avg_total_payments"
)


class MissingDataError(FieldError):
    """A data set that is not on this machine; the message says where it is to be had."""


def data_folders() -> list[Path]:
    """The folders searched: that of the variable FEDVEIL_DATA, or else ``../shared/data`` beside the checkout."""
    named = os.environ.get("FEDVEIL_DATA")
    if named:
        return [Path(named).expanduser()]
    beside = Path("..", "shared", "data")
    return list(dict.fromkeys((root / beside).resolve() for root in (Path.cwd(), Path(__file__).parents[3])))


def find(file: str) -> Path | None:
    """The path of a real data file, or None where it is absent."""
    return next((folder / file for folder in data_folders() if (folder / file).is_file()), None)


def locate(name: str, file: str, official: str) -> Path:
    """The path of a real data file.

    Raises
    ------
    MissingDataError
        If it is absent, with where the official set is to be had.
    """
    path = find(file)
    if path is None:
        raise MissingDataError(
            "data.name",
            name,
            f"needs the file {file}, which was not found. Put it into a folder and set the variable FEDVEIL_DATA to "
            f"that folder. The official set: {official}",
        )
    return path


def cache_folder() -> Path:
    """Where decoded copies are kept: the variable FEDVEIL_CACHE, or ``~/.cache/fedveil``."""
    named = os.environ.get("FEDVEIL_CACHE")
    try:
        return Path(named).expanduser() if named else Path.home() / ".cache" / "fedveil"
    except RuntimeError as error:
        raise FieldError("FEDVEIL_CACHE", named, "must be a folder: this user has no home folder") from error


def prepared_alzheimer() -> list[str]:
    """The options of which there are decoded copies, which need the file no longer."""
    copies = filter(zipfile.is_zipfile, cache_folder().glob("alzheimer-*.npz"))
    found = {path.name.split("-")[1].removesuffix(".npz") for path in copies}
    return [f"resolution={name}" for name in sorted((n for n in found if n.isdigit()), key=int)]
