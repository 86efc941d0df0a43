"""Jaccard similarities against scikit-learn, pixel by pixel, and the threshold against DINO's code."""

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import nn

from cbsa.analysis import attention_maps, zero_shot_segmentation
from cbsa.analysis.segmentation import canonical, keep_mass
from cbsa.data import DataConfig, open_pets_trimaps, segmentation_loader
from tests.analysis.models import pixels, small_model
from tests.compare import DEVICES, assert_close
from tests.data.real import real_data


def trimap(height, width, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 4, (height, width)))


def dino(row, mass):
    """The threshold of DINO's visualize_attention.py on one map (n,): ascending sums above 1 − mass."""
    val, idx = torch.sort(row)
    val = val / val.sum()
    kept = torch.cumsum(val, dim=0) > (1 - mass)
    return kept[torch.argsort(idx)]


def taken_one_by_one(row, mass):
    """The same, and of equal values, which interpolation makes at the border, the first first."""
    kept, held = torch.zeros(len(row), dtype=torch.bool), 0.0
    for place in np.argsort(-row.numpy(), kind="stable"):
        if held >= mass * row.sum().item():
            break
        kept[place], held = True, held + row[place].item()
    return kept


def expected_scores(patches, mask, count_boundary):
    """Foreground, background and boundary for kept patches (h, w) bool and a trimap, by scikit-learn."""
    height, width = mask.shape
    large = nn.functional.interpolate(patches[None, None].float(), size=(height, width), mode="nearest")
    inside, truth = large[0, 0].bool().numpy().ravel(), mask.numpy().ravel()
    use = np.ones_like(inside) if count_boundary else truth != 3
    return [
        jaccard_score(truth[use] == 1, inside[use]),
        jaccard_score(truth[use] == 2, ~inside[use]),
        jaccard_score(truth == 3, inside),
    ]


@pytest.mark.parametrize("attention", ["cbsa", "agent", "mssa", "mhsa", ["mssa", "mssa", "cbsa"]], ids=str)
@pytest.mark.parametrize("mass", [0.6, 0.25])
@pytest.mark.parametrize("count_boundary", [False, True])
def test_scores_are_scikit_learns(attention, mass, count_boundary):
    model, images = small_model(attention), pixels(20, 12)
    masks = [trimap(20, 12), trimap(33, 17, seed=1)]  # any size
    result = zero_shot_segmentation(model, images, masks, mass=mass, count_boundary=count_boundary)
    maps = attention_maps(model, images).maps
    assert result.jaccard.shape == (3, 2, 3, 3)
    for layer in range(3):
        for b, mask in enumerate(masks):
            for head in range(3):
                kept = dino(maps[layer, b, head].flatten(), mass).view(5, 3)
                assert result.jaccard[layer, b, head].tolist() == pytest.approx(
                    expected_scores(kept, mask, count_boundary)
                )


def test_bilinear_maps_are_thresholded_by_pixel():
    model, images, mask = small_model(), pixels(20, 12, batch=1), trimap(30, 18)
    result = zero_shot_segmentation(model, images, mask[None], resize="bilinear")
    maps = nn.functional.interpolate(attention_maps(model, images).maps[:, 0], (30, 18), mode="bilinear")
    for layer in range(3):
        for head in range(3):
            kept = taken_one_by_one(maps[layer, head].flatten(), 0.6).view(30, 18)
            assert result.jaccard[layer, 0, head].tolist() == pytest.approx(
                expected_scores(kept, mask, False)
            )
    assert result.resize == "bilinear"


@pytest.fixture
def known(monkeypatch):
    """Replaces attention by maps of the test's own, (layers, B, H, h, w)."""

    def use(maps):
        def fake(model, images, layers, query, *, normalize):
            from cbsa.analysis import AttentionMaps

            return AttentionMaps(maps, tuple(range(len(maps))), tuple(maps.shape[-2:]), query)

        monkeypatch.setattr("cbsa.analysis.segmentation.attention_maps", fake)

    return use


def test_known_masks_in_closed_form(known):
    """A map on the left half; the pet is the left quarter with a boundary beside it."""
    left = torch.zeros(4, 4)
    left[:, :2] = 1
    known(torch.stack([left, 1 - left])[None, None])  # one layer, two heads
    mask = torch.full((8, 8), 2)
    mask[:, :2], mask[:, 2] = 1, 3
    result = zero_shot_segmentation(None, torch.zeros(1, 3, 8, 8), mask[None], mass=1.0)
    first, second = result.jaccard[0, 0].tolist()
    # 16 foreground, 8 boundary, 40 background pixels; the map has 32, of which 16 + 8 + 8.
    assert first == pytest.approx([16 / 24, 32 / 40, 8 / 32])
    assert second == pytest.approx([0, 8 / 56, 0])
    counted = zero_shot_segmentation(None, torch.zeros(1, 3, 8, 8), mask[None], mass=1.0, count_boundary=True)
    assert counted.jaccard[0, 0].tolist() == [
        pytest.approx([16 / 32, 32 / 40, 8 / 32]),
        pytest.approx([0, 8 / 64, 0]),
    ]


def test_voc_labels_are_the_same_targets(known):
    known(torch.rand(2, 1, 3, 4, 4))
    mask = trimap(16, 16)
    voc = torch.where(mask == 1, torch.randint(1, 21, (16, 16)), torch.where(mask == 3, 255, 0)).to(
        torch.uint8
    )
    images = torch.zeros(1, 3, 16, 16)
    expected = zero_shot_segmentation(None, images, mask[None])
    assert torch.equal(
        zero_shot_segmentation(None, images, voc[None], labels="voc").jaccard, expected.jaccard
    )


def test_best_heads_and_means(known):
    maps = torch.rand(2, 3, 4, 5, 5)
    known(maps)
    masks = [trimap(10, 10, seed) for seed in range(3)]
    masks[1][masks[1] == 3] = 2  # no boundary there
    result = zero_shot_segmentation(None, torch.zeros(3, 3, 10, 10), masks)
    values = result.jaccard.numpy()
    assert np.isnan(values[:, 1, :, 2]).all()
    assert np.isnan(values).sum() == values[:, 1, :, 2].size
    best = [[np.nanmean([values[i, b, :, t].max() for b in range(3)]) for t in range(3)] for i in range(2)]
    assert_close(result.per_layer, torch.tensor(best), 1e-6)
    overall = [np.nanmean([values[:, b, :, t].max() for b in range(3)]) for t in range(3)]
    assert_close(result.best, torch.tensor(overall), 1e-6)
    assert_close(result.per_head, torch.from_numpy(np.nanmean(values, axis=1)), 1e-12)
    for i, b, t in [(0, 0, 0), (1, 2, 1), (1, 0, 2)]:
        assert result.best_head[i, b, t] == values[i, b, :, t].argmax()
    rows = result.table()
    assert [(r["layer"], r["head"]) for r in rows] == [(i, h) for i in range(2) for h in range(4)]
    assert rows[6]["boundary"] == pytest.approx(np.nanmean(values[1, :, 2, 2]))
    layers = result.layer_table()
    assert [r["layer"] for r in layers] == [0, 1]
    assert layers[1]["background"] == pytest.approx(best[1][1], rel=1e-6)


def test_mass_is_kept_by_the_fewest_entries():
    row = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2])
    assert keep_mass(row, 0.39).tolist() == [False, True, False, False, False]
    assert keep_mass(row, 0.6).tolist() == [False, True, False, True, False]
    assert keep_mass(row, 0.75).tolist() == [False, True, False, True, True]
    assert keep_mass(row, 1.0).tolist() == [True, True, False, True, True]  # never what has no attention
    assert keep_mass(7 * row, 0.6).tolist() == keep_mass(row, 0.6).tolist()
    assert keep_mass(torch.ones(10), 0.55).sum() == 6
    assert not keep_mass(torch.zeros(3), 0.6).any()
    rows = torch.rand(50, 37, dtype=torch.float64)
    for kept, values in zip(keep_mass(rows, 0.6), rows, strict=True):
        assert torch.equal(kept, dino(values, 0.6))
        assert torch.equal(kept, taken_one_by_one(values, 0.6))
        assert values[kept].sum() >= 0.6 * values.sum()
        assert values[kept].sum() - values[kept].min() < 0.6 * values.sum()


def test_canonical_labels():
    assert canonical(torch.tensor([1, 2, 3], dtype=torch.uint8), "pets").tolist() == [1, 0, 2]
    assert canonical(torch.tensor([0, 7, 255], dtype=torch.uint8), "voc").tolist() == [0, 1, 2]


def test_batches_and_progress():
    model, images = small_model(), pixels(20, 12, batch=4)
    masks = torch.stack([trimap(20, 12, seed) for seed in range(4)])
    expected = zero_shot_segmentation(model, images, masks)
    calls = []
    pairs = [(images[:1], masks[:1]), (images[1:1], []), (images[1:], list(masks[1:]))]
    result = zero_shot_segmentation(model, pairs, progress=lambda *args: calls.append(args))
    assert torch.equal(result.jaccard, expected.jaccard)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    zero_shot_segmentation(model, (pair for pair in pairs), progress=lambda *args: calls.append(args))
    assert calls[3:] == [(1, None), (2, None), (3, None)]


def test_batches_may_differ_in_resolution():
    model, small, large = small_model(), pixels(8, 8, batch=1), pixels(20, 12, batch=1)
    mask = trimap(20, 12)[None]
    result = zero_shot_segmentation(model, [(small, mask), (large, mask)], layers=[2])
    assert result.layers == (2,)
    assert torch.equal(result.jaccard[:, 1:], zero_shot_segmentation(model, large, mask, layers=[2]).jaccard)


def test_tssa_is_refused_by_name_and_hybrids_where_asked_for():
    model, images, masks = small_model(["tssa", "cbsa", "cbsa"]), pixels(8, 8), torch.ones(2, 8, 8).long()
    with pytest.raises(TypeError, match="layer 0 is TSSA: its softmax is over heads, not a map over tokens"):
        zero_shot_segmentation(model, images, masks)
    assert zero_shot_segmentation(model, images, masks, layers=[1, 2]).layers == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mass": 0.0}, ValueError, "mass is the share of the attention to keep.*got 0.0"),
        ({"mass": 1.5}, ValueError, "mass is the share"),
        ({"resize": "cubic"}, ValueError, "resize='cubic': expected one of 'nearest', 'bilinear'"),
        ({"labels": "coco"}, ValueError, "labels='coco': expected one of 'pets', 'voc'"),
        (
            {"masks": torch.zeros(2, 8, 8).long()},
            ValueError,
            "a mask holds 0, expected 1 to 3 for labels='pets'",
        ),
        (
            {"masks": torch.full((2, 8, 8), 256), "labels": "voc"},
            ValueError,
            "a mask holds 256, expected 0 to 255",
        ),
        ({"masks": torch.ones(2, 8, 8)}, TypeError, "a mask must be of an integer dtype, got torch.float32"),
        ({"masks": torch.ones(2, 1, 8, 8).long()}, ValueError, r"shape \(height, width\), got \(1, 8, 8\)"),
        ({"masks": torch.ones(3, 8, 8).long()}, ValueError, "there are 2 images but 3 masks"),
        ({"masks": None}, TypeError, "images must be a tensor beside masks=.*got Tensor and no masks"),
        ({"masks": 7}, TypeError, "masks must be a tensor or a list of tensors, got int"),
        ({"images": [], "masks": None}, ValueError, "there is no image"),
        (
            {"images": [pixels(8, 8)], "masks": None},
            TypeError,
            "must yield pairs .images, masks., got Tensor",
        ),
        ({"images": "photo.jpg"}, TypeError, "images must be a tensor where masks are given.*got str"),
        ({"images": pixels(8, 8) * torch.nan}, ValueError, "the attention maps are not finite"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    given = {"images": pixels(8, 8), "masks": torch.ones(2, 8, 8).long(), **arguments}
    with pytest.raises(error, match=message):
        zero_shot_segmentation(small_model(depth=1), **given)


@pytest.mark.parametrize("device", DEVICES)
def test_single_precision(device):
    model, images, masks = small_model(), pixels(20, 12), torch.stack([trimap(20, 12)] * 2)
    expected = zero_shot_segmentation(model, images, masks)
    result = zero_shot_segmentation(model.float().to(device), images.float(), masks)
    assert result.jaccard.device.type == device
    assert_close(result.jaccard.cpu(), expected.jaccard, 0.05)


def test_oxford_pets_trimaps():
    """Real trimaps: an untrained model is served, and a map that is the mask itself would score high."""
    source = open_pets_trimaps(real_data("oxford-pets"))
    config = DataConfig(img_size=40, resize="squash", workers=0)
    images, masks = next(iter(segmentation_loader(source, config, batch_size=6)))
    model = small_model(in_chans=3)
    result = zero_shot_segmentation(model.float(), images, masks)
    assert result.jaccard.shape == (3, 6, 3, 3)
    assert ((result.jaccard >= 0) & (result.jaccard <= 1)).all()
    assert (result.best >= result.per_layer.amax(0)).all()
