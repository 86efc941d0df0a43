"""One batch or many: results do not depend on how images are handed over."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cbsa.analysis import (
    attention_maps,
    coding_rates,
    extraction_factors,
    extraction_rank,
    reduced_coding_rates,
)
from cbsa.data import Batch
from tests.analysis.models import pixels, small_model

PROBES = [coding_rates, attention_maps, reduced_coding_rates, extraction_rank, extraction_factors]


@pytest.mark.parametrize("probe", PROBES)
def test_batches_of_unequal_sizes_are_one_batch(probe):
    model, images = small_model(), pixels(20, 12, batch=5)
    expected = vars(probe(model, images))
    labels = torch.zeros(5)
    for batches in (
        [images[:3], images[3:3], images[3:]],
        DataLoader(TensorDataset(images, labels), batch_size=2),  # yields lists [images, labels]
        (image[None] for image in images),
    ):
        actual = vars(probe(model, batches))
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert torch.allclose(value, actual[name], rtol=1e-10, atol=1e-12), name
            else:
                assert value == actual[name]


@pytest.mark.parametrize("probe", [coding_rates, reduced_coding_rates, extraction_rank])
def test_batches_may_differ_in_resolution(probe):
    model, few, many = small_model(), pixels(20, 12, batch=1), pixels(8, 29, batch=3)
    rows = probe(model, [few, many]).table()
    for row, a, b in zip(rows, probe(model, few).table(), probe(model, many).table(), strict=True):
        for name in row.keys() - {
            "init",
            "maximum",
            "lowest_rank",
            "highest_rank",
            "correlation_over_images",
        }:
            assert row[name] == pytest.approx((a[name] + 3 * b[name]) / 4)


@pytest.mark.parametrize("probe", [attention_maps, extraction_factors])
def test_maps_of_several_sizes_are_refused(probe):
    with pytest.raises(ValueError, match=r"one size, got grids of 2×2 and 5×3 patches: give one size a call"):
        probe(small_model(), [pixels(20, 12), pixels(8, 8)])


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([], ValueError, "images holds no image"),
        (pixels(8, 8)[:0], ValueError, "images holds no image"),
        (3, TypeError, "images must be a tensor .* or an iterable of such batches, got int"),
        ("photo.jpg", TypeError, "got str"),
        ([torch.zeros(1, 2, 8, 8, dtype=torch.uint8)], TypeError, "floating-point dtype, got torch.uint8"),
        (
            [torch.zeros(2, 8, 8)],
            ValueError,
            r"images must have shape \(B, C, height, width\), got \(2, 8, 8\)",
        ),
        ([None], TypeError, "images must be a tensor, got NoneType"),
        ([Batch(*[torch.zeros(1)] * 4)], TypeError, r"not normalised: give \(normalise\("),
    ],
)
def test_what_is_not_images_is_named(probe, images, error, message):
    with pytest.raises(error, match=message):
        probe(small_model(depth=1), images)


@pytest.mark.parametrize("probe", [attention_maps, extraction_factors, reduced_coding_rates, extraction_rank])
def test_a_layer_asked_for_twice_is_there_twice(probe):
    model, images = small_model(), pixels(8, 8)
    once, twice = probe(model, images, layers=[-1, 0]), probe(model, images, layers=[0, 2, 0])
    assert once.layers == (2, 0)
    assert twice.layers == (0, 2, 0)
    for name, value in vars(once).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(twice, name), value[[1, 0, 1]])
