"""Sets that scikit-learn brings: handwritten digits and the breast cancer table."""

from __future__ import annotations

import torch

from fedveil.data.arrays import images
from fedveil.data.sets import DataSet


def load_digits(*, centre: float = 0.0) -> DataSet:
    """The handwritten digits of scikit-learn, [1, 8, 8] scaled to [0, 1].

    Parameters
    ----------
    centre : float
        Subtracted from every pixel. A number that all agreed on: one taken from the images would be a release.
    """
    from sklearn import datasets

    bunch = datasets.load_digits()
    return DataSet(
        name="digits",
        x=images(bunch.images.astype("float32") / 16) - centre,
        y=torch.from_numpy(bunch.target.astype("int64")),
        classes=10,
        class_names=tuple(str(c) for c in range(10)),
        licence="CC BY 4.0 (UCI, optical recognition of handwritten digits)",
    )


def load_breast_cancer() -> DataSet:
    """The breast cancer table of scikit-learn, 30 standardised columns."""
    from sklearn import datasets

    bunch = datasets.load_breast_cancer()
    x = torch.from_numpy(bunch.data.astype("float64"))
    return DataSet(
        name="breast-cancer",
        x=((x - x.mean(0)) / x.std(0)).to(torch.float32),
        y=torch.from_numpy(bunch.target.astype("int64")),
        classes=2,
        class_names=tuple(str(n) for n in bunch.target_names),
        note="Columns are standardised with means and deviations of the whole set, held-out rows included: a real "
        "federation would have to agree on public constants.",
        licence="CC BY 4.0 (UCI, breast cancer Wisconsin, diagnostic)",
    )
