"""The ten sets of ``python -m benchmarks first_settings``, written to files as somebody brings them to `fedveil init`.

Large sets are cut to a seeded part of them: the page says how many rows each has here.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from sklearn import datasets

from fedveil.data.sets import data_folders

ROWS = 8_000  # of a table that is cut
IMAGES = 4_000  # of a set of images that is cut
SEED = 55  # of what is cut


@dataclass(frozen=True, kw_only=True)
class FirstSet:
    """A set as a new user has it: a file, and the answers to what `fedveil init` asks.

    Attributes
    ----------
    name : str
        Of the set, in the table.
    make : callable
        Given a path, writes the file.
    suffix : str
        Of the file.
    answers : mapping of str to str
        Options of `first_config`: target, site, missing, positive.
    clients : int or None
        Parties; None where the file names them.
    person : str
        The column or array that says whose a row is; "" where the set does not say.
    """

    name: str
    make: Callable[[Path], None]
    suffix: str = ".csv"
    answers: tuple[tuple[str, str], ...] = ()
    clients: int | None = 10
    person: str = ""


def _file(name: str) -> Path:
    """A file of the real sets (docs/data.md)."""
    return next(folder / name for folder in data_folders() if (folder / name).exists())


def _heart(path: Path) -> None:
    frame = pd.read_csv(_file("heart_disease_uci_4_centres.csv"))
    frame["ill"] = np.where(frame.pop("num") > 0, "yes", "no")
    frame.drop(columns=["ca", "thal", "slope"]).to_csv(path, index=False)


def _readmission(path: Path) -> None:
    frame = pd.read_csv(_file("diabetes_130_us_hospitals.csv.gz"), low_memory=False)
    frame["back"] = np.where(frame.pop("readmitted") == "<30", "yes", "no")
    patients = np.random.default_rng(SEED).permutation(frame["patient_nbr"].unique())
    first = frame["patient_nbr"].map({patient: i for i, patient in enumerate(patients)})
    frame = frame.loc[first.sort_values(kind="stable").index[:ROWS]]
    codes = ["admission_type_id", "discharge_disposition_id", "admission_source_id"]
    frame[codes] = frame[codes].astype(str).radd("c")
    dropped = [
        "encounter_id",
        "weight",
        "payer_code",
        "medical_specialty",
        "diag_1",
        "diag_2",
        "diag_3",
    ]
    constant = [name for name in frame if frame[name].nunique() < 2]
    frame = frame.drop(columns=[*dropped, *constant]).fillna(
        {"race": "unsaid", "max_glu_serum": "none", "A1Cresult": "none"}
    )
    frame.to_csv(path, index=False)


def _packaged(load: Callable[..., object], target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        bunch = load(as_frame=True)
        frame = bunch.frame.rename(columns={"target": target})  # type: ignore[attr-defined]
        names = getattr(bunch, "target_names", None)
        if names is not None and len(names):
            frame[target] = [str(names[value]) for value in frame[target]]
        frame.to_csv(path, index=False)

    return make


def _images(path: Path, x: np.ndarray, y: np.ndarray, **more: np.ndarray) -> None:
    some = np.sort(np.random.default_rng(SEED).permutation(len(x))[:IMAGES])
    np.savez(
        path,
        x_train=x[some],
        y_train=y[some].astype(np.int64),
        **{k: v[some] for k, v in more.items()},
    )


def _digits(path: Path) -> None:
    bunch = datasets.load_digits()
    x = (bunch.images * (255 / 16)).astype(np.uint8)
    np.savez(path, x_train=x, y_train=bunch.target.astype(np.int64))


def _mnist(path: Path) -> None:
    with np.load(_file("mnist_by_writer.npz")) as file:
        writers = file["train_writer"]
        kept = np.isin(writers, np.random.default_rng(SEED).permutation(np.unique(writers))[:120])
        x, y = file["train_images"][kept], file["train_labels"][kept].astype(np.int64)
        np.savez(path, x_train=x, y_train=y, writer=writers[kept].astype(np.int64))


def _blood(path: Path) -> None:
    with np.load(_file("bloodmnist_rebuilt_28.npz")) as file:
        _images(path, file["train_images"], file["train_labels"].reshape(-1))


def _alzheimer(path: Path) -> None:
    with np.load(_file("alzheimer_mri_128_jpeg.npz")) as file:
        jpeg, offsets = file["jpeg"], file["offsets"]
        images = []
        for start, stop in pairwise(offsets):
            image = Image.open(io.BytesIO(jpeg[start:stop].tobytes())).convert("L").resize((32, 32))
            images.append(np.asarray(image))
        _images(path, np.stack(images), file["labels"])


SETS = (
    FirstSet(
        name="heart by hospital",
        make=_heart,
        clients=None,
        answers=(("target", "ill"), ("site", "centre"), ("missing", "indicator")),
    ),
    FirstSet(
        name="readmission", make=_readmission, answers=(("target", "back"),), person="patient_nbr"
    ),
    FirstSet(
        name="breast cancer",
        make=_packaged(datasets.load_breast_cancer, "diagnosis"),
        answers=(("target", "diagnosis"),),
    ),
    FirstSet(
        name="wine",
        make=_packaged(datasets.load_wine, "cultivar"),
        answers=(("target", "cultivar"),),
    ),
    FirstSet(
        name="iris",
        make=_packaged(datasets.load_iris, "species"),
        clients=5,
        answers=(("target", "species"),),
    ),
    FirstSet(
        name="diabetes",
        make=_packaged(datasets.load_diabetes, "progression"),
        answers=(("target", "progression"),),
    ),
    FirstSet(name="digits", make=_digits, suffix=".npz"),
    FirstSet(name="MNIST by writer", make=_mnist, suffix=".npz", person="writer"),
    FirstSet(name="blood cells", make=_blood, suffix=".npz"),
    FirstSet(name="Alzheimer images", make=_alzheimer, suffix=".npz"),
)


def written(some: FirstSet, folder: Path) -> Path:
    """The file of a set below a folder, made where it is not there."""
    path = folder / f"{some.name.replace(' ', '-').lower()}{some.suffix}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        some.make(path)
    return path
