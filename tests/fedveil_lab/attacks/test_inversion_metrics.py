"""Metrics of reconstructions: by hand, against scikit-image, and the verdict drawn from them."""

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from fedveil.errors import FieldError
from fedveil_lab.attacks.inversion import SERVER, Analytic, Reconstruction, judge_inversion, scores
from fedveil_lab.attacks.inversion import metrics as m


def pictures(n, seed, shape=(3, 16, 12)):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("data_range", [1.0, 2.0])
def test_ssim_is_that_of_scikit_image(data_range):
    a = pictures(4, 0) * data_range
    b = (a + 0.1 * torch.randn(a.shape, generator=torch.Generator().manual_seed(1))).clamp(
        0, data_range
    )
    for i in range(4):
        left, right = a[i].numpy(), b[i].numpy()
        wanted = structural_similarity(left, right, data_range=data_range, channel_axis=0)
        assert float(m.ssim(a, b, data_range=data_range)[i]) == pytest.approx(wanted, abs=1e-12)


def test_a_batch_is_matched_whatever_its_order():
    a = pictures(6, 0)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    assert torch.equal(a[order][m.matched(a, a[order])], a)


def test_identified_means_nearer_to_the_original_than_to_every_other_image():
    a = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    found = torch.tensor([[0.2, 0.2], [0.6, 0.6]])
    assert m.identified(a, found, a[:0]).tolist() == [True, True]
    assert m.identified(a, found, torch.tensor([[0.5, 0.5]])).tolist() == [True, False]
    near = pictures(5, 0) + 1e-6
    assert bool(
        m.identified(pictures(5, 0), near, pictures(40, 1)).all()
    )  # rounding must not decide
    assert m.identified(a, a, a).tolist() == [
        True,
        True,
    ]  # copies of an original do not count against it


def test_region_and_rest_by_hand():
    a, b = torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 2, 2)
    b[0, :, 0, 0], b[0, :, 1, 1] = 1.0, 2.0
    mask = torch.zeros(1, 2, 2, dtype=torch.bool)
    mask[0, 0, 0] = True
    found = m.region_and_rest(a, b, mask, data_range=2.0)
    assert (float(found["region_mse"]), float(found["rest_mse"])) == (1.0, pytest.approx(4 / 3))
    assert float(found["region_psnr"]) == pytest.approx(10 * np.log10(4.0))
    assert "region_ssim" not in found  # smaller than a window
    with pytest.raises(FieldError, match="mask"):
        m.region_and_rest(a, b, torch.zeros_like(mask), data_range=2.0)


def test_similarity_of_a_region_is_that_of_the_windows_centred_in_it():
    a = pictures(3, 0)
    b = (a + 0.2 * torch.randn(a.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    mask = torch.zeros(3, 16, 12, dtype=torch.bool)
    mask[:, 4:9, 2:7] = True
    found = m.region_and_rest(a, b, mask, data_range=1.0)
    for i in range(3):
        _, each = structural_similarity(
            a[i].numpy(), b[i].numpy(), data_range=1.0, channel_axis=0, full=True
        )
        each, inside = each.mean(0)[3:-3, 3:-3], mask[i].numpy()[3:-3, 3:-3]
        assert float(found["region_ssim"][i]) == pytest.approx(each[inside].mean(), abs=1e-12)
        assert float(found["rest_ssim"][i]) == pytest.approx(each[~inside].mean(), abs=1e-12)


def test_labels_are_compared_as_multisets():
    assert m.labels_recovered(torch.tensor([1, 1, 2, 3]), torch.tensor([1, 2, 2, 5])) == 0.5


def test_scores_stand_beside_guesses_that_saw_nothing():
    a, others = pictures(2, 0), pictures(50, 1)
    perfect = scores(
        a,
        torch.tensor([0, 1]),
        Reconstruction(a.flip(0), torch.tensor([1, 0]), 0.0),
        data_range=1.0,
        others=others,
        seed=5,
    )
    assert perfect["mse"] == 0
    assert perfect["success"] == perfect["identified"] == perfect["labels"] == 1
    assert perfect["ssim"] == pytest.approx(1)
    assert perfect["random_image"] == pytest.approx(1 / 6, rel=0.1)
    assert perfect["mean_image"] == pytest.approx(1 / 12, rel=0.1)
    assert "perceptual" not in perfect


def test_shapes_and_ranges_that_do_not_fit_are_refused():
    with pytest.raises(FieldError, match="reconstruction"):
        m.mse(pictures(2, 0), pictures(3, 0))
    with pytest.raises(FieldError, match="data_range"):
        m.ssim(pictures(2, 0), pictures(2, 1), data_range=0)
    with pytest.raises(FieldError, match="window"):
        m.ssim(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4), data_range=1)


def units(values):
    return [
        {"mse": v, "success": float(v < 1e-3), "identified": 1.0, "labels": 1.0, "mean_image": 0.07}
        for v in values
    ]


def test_a_verdict_is_valid_only_where_the_attack_succeeds_without_the_defence():
    defended, open_ = units([0.1, 0.2, 0.3, 0.2]), units([1e-5, 1e-6, 1e-5, 1e-4])
    found = judge_inversion(Analytic(), "noise", defended, threat=SERVER, undefended=open_)
    assert found.valid
    assert found.point == pytest.approx(0.2)
    assert found.low < 0.2 < found.high
    assert found.without_defence == pytest.approx(3.025e-5)
    assert not judge_inversion(
        Analytic(), "noise", defended, threat=SERVER, undefended=defended
    ).valid
    assert judge_inversion(Analytic(), "noise", defended, threat=SERVER).valid is None


def test_rates_have_exact_intervals():
    found = judge_inversion(Analytic(), "none", units([1e-6] * 10), threat=SERVER, figure="success")
    assert (found.point, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025**0.1, rel=1e-9)  # Clopper and Pearson by hand
    with pytest.raises(FieldError):
        judge_inversion(Analytic(), "none", [], threat=SERVER)
