"""Sample images: each stands below the name of its class."""

import numpy as np
import pytest
import torch

from fedveil.data import DataSet
from fedveil.errors import FieldError
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.frame.samples import EACH, sample_figure, samples
from papers_kit import tiny_paper, write_patterns


def made(channels):
    """Ten images of 2x2 pixels; every pixel of image i is i / 10, and its class is i modulo 2."""
    x = (torch.arange(10.0) / 10).reshape(10, 1, 1, 1).expand(10, channels, 2, 2)
    return DataSet(name="made", x=x, y=torch.arange(10) % 2, classes=2, class_names=("even", "odd"))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_images_of_each_class_stand_in_its_column(channels):
    figure = sample_figure(made(channels))
    axes = np.array(figure.axes).reshape(EACH, 2)
    assert [axis.get_title() for axis in axes[0]] == ["even", "odd"]
    for k, row in enumerate(axes):
        for label, axis in enumerate(row):
            [image] = axis.get_images()
            assert image.get_array().reshape(-1)[0] == pytest.approx((2 * k + label) / 5)  # 0 to .5


def test_what_has_no_images_is_refused():
    table = DataSet(
        name="table", x=torch.zeros(4, 3), y=torch.zeros(4, dtype=torch.long), classes=1
    )
    with pytest.raises(FieldError, match="table"):
        sample_figure(table)


def test_a_study_s_images_are_those_of_its_scale(tmp_path):
    write_patterns(tmp_path / "patterns.npz")
    study = tiny_paper(tmp_path / "patterns.npz")
    figure = samples(Reproduction(study, Choices(scale="tiny", workers=1)), "homogeneous")
    [image] = figure.axes[0].get_images()
    assert image.get_array().shape == (6, 6)
