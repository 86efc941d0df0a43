"""Counts of pixels beside torchmetrics, and boundaries beside erosion of one mask after the other."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_confusion_matrix,
    multiclass_jaccard_index,
)

from cbsa.data.sources.masks import open_camvid
from cbsa.segmentation.metrics import IGNORE, PixelCounts, edges
from tests.data.real import real_data


def draw(classes, shape=(3, 13, 17), ignored=0.2, right=0.6):
    """True labels, some ignored, and predictions that are often right."""
    true = torch.randint(classes, shape)
    predicted = torch.where(torch.rand(shape) < right, true, torch.randint(classes, shape))
    return predicted, true.masked_fill(torch.rand(shape) < ignored, IGNORE)


def count(predicted, true, classes, **options):
    counts = PixelCounts(classes, **options)
    counts.update(predicted, true)
    return counts


@pytest.mark.parametrize("classes", [2, 5, 150])
def test_torchmetrics_agrees(classes):
    predicted, true = draw(classes, (2, 40, 50))
    counts = count(predicted, true, classes)
    scores = counts.scores()
    options = {"num_classes": classes, "ignore_index": IGNORE}
    assert torch.equal(counts.confusion, multiclass_confusion_matrix(predicted, true, **options))
    iou = multiclass_jaccard_index(predicted, true, average=None, **options)
    torch.testing.assert_close(scores.iou.float(), iou)
    assert scores.miou == pytest.approx(iou.mean().item(), rel=1e-6)
    pixel = multiclass_accuracy(predicted, true, average="micro", **options).item()
    assert scores.accuracy == pytest.approx(pixel, rel=1e-6)
    recall = multiclass_accuracy(predicted, true, average=None, **options)
    torch.testing.assert_close(scores.class_accuracy.float(), recall)
    assert scores.mean_accuracy == pytest.approx(recall.mean().item(), rel=1e-6)
    assert scores.pixels == (true != IGNORE).sum()


def test_torchmetrics_agrees_on_real_masks():
    """Each mask of CamVid as the prediction for the next: real shapes, all wrong in places."""
    source = open_camvid(real_data("camvid"), "val")
    masks = torch.stack([torch.from_numpy(source.read(i)[1]) for i in range(4)]).long()
    true = masks.where(masks != 11, IGNORE)
    predicted = torch.where(masks == 11, 0, masks).roll(1, 0)
    scores = count(predicted, true, 11).scores()
    options = {"num_classes": 11, "ignore_index": IGNORE, "average": None}
    iou = multiclass_jaccard_index(predicted, true, **options)
    present = torch.tensor([(true == c).any().item() for c in range(11)])
    torch.testing.assert_close(scores.iou[present].float(), iou[present])
    assert scores.absent() == (~present).nonzero().flatten().tolist()
    assert 0 < scores.mean_boundary_iou < scores.miou < 1


def test_absent_classes_are_reported_as_such():
    """Class 2 has no true pixel though one is predicted; class 3 is nowhere: neither is a 0 in the mean."""
    true = torch.tensor([[[0, 0, 1, 1]]])
    scores = count(torch.tensor([[[0, 2, 1, 1]]]), true, 4).scores()
    assert scores.absent() == [2, 3]
    assert scores.iou[:2].tolist() == [0.5, 1.0]
    assert scores.miou == 0.75
    assert scores.accuracy == 0.75
    assert math.isnan(scores.class_accuracy[3])
    assert math.isnan(scores.boundary_iou[2])


def test_counts_add_up_in_any_division():
    """Over batches and, by the sum they are handed, over processes; beyond what float32 can count."""
    predicted, true = draw(4, (6, 9, 11))
    whole = count(predicted, true, 4)
    parts = [count(predicted[i : i + 2], true[i : i + 2], 4) for i in (4, 0, 2)]
    parts[0].reduce(lambda counts: counts + parts[1]._counts + parts[2]._counts)
    assert torch.equal(parts[0].confusion, whole.confusion)
    assert torch.equal(parts[0].boundaries, whole.boundaries)
    whole._counts[0] = 2**53
    before = whole.confusion[0, 0].item()
    whole.update(torch.zeros(1, 1, 1, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.long))
    assert whole.confusion[0, 0].item() == before + 1


def eroded(mask, reach):
    """Erosion by a square as SciPy does it; outside of the image there is nothing."""
    return ndimage.binary_erosion(mask, np.ones((2 * reach + 1,) * 2), border_value=0)


@pytest.mark.parametrize(("shape", "reach"), [((13, 17), 1), ((13, 17), 3), ((4, 30), 2), ((3, 3), 5)])
def test_edges_are_what_erosion_takes(shape, reach):
    labels = torch.randint(3, (2, *shape)).repeat_interleave(2, 1).repeat_interleave(2, 2) - 1
    found = edges(labels, reach)
    for image, edge in zip(labels, found, strict=True):
        kept = sum(eroded((image == c).numpy(), reach) for c in (-1, 0, 1)).astype(bool)
        assert np.array_equal(edge.numpy(), ~kept)


def test_boundary_iou_by_its_definition():
    """|(G_d ∩ G) ∩ (P_d ∩ P)| / |(G_d ∩ G) ∪ (P_d ∩ P)|, class by class, ignored pixels in no mask."""
    torch.manual_seed(1)
    blocks = torch.randint(3, (2, 6, 8)).repeat_interleave(9, 1).repeat_interleave(9, 2)
    true = blocks.clone()
    true[:, :5, :40] = IGNORE
    predicted = blocks.roll((2, 1), (1, 2))
    reach = 2
    share = reach / math.hypot(54, 72)
    scores = count(predicted, true, 3, boundary=share).scores()
    for c in range(3):
        common = union = 0
        for p, t in zip(predicted.numpy(), true.numpy(), strict=True):
            masks = [(t == c), (p == c) & (t != IGNORE)]
            rings = [mask & ~eroded(mask, reach) for mask in masks]
            common += (rings[0] & rings[1]).sum()
            union += (rings[0] | rings[1]).sum()
        assert scores.boundary_iou[c].item() == pytest.approx(common / union, rel=1e-12)


def test_a_perfect_prediction_scores_one():
    _, true = draw(3)
    scores = count(torch.where(true == IGNORE, 1, true), true, 3).scores()
    assert (scores.miou, scores.accuracy, scores.mean_boundary_iou) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("predicted", "true", "message"),
    [
        (torch.zeros(1, 2, 2), torch.zeros(1, 2, 2).long(), r"predicted must be integers of shape \(B, h, w"),
        (torch.zeros(2, 2).long(), torch.zeros(2, 2).long(), r"got torch.int64 \(2, 2\)"),
        (torch.zeros(1, 2, 3).long(), torch.zeros(1, 3, 2).long(), "label maps must be of one size"),
        (torch.zeros(1, 2, 2).long(), torch.full((1, 2, 2), 3), "true has labels from 3 to 3, expected 0 to"),
        (torch.full((1, 2, 2), -1), torch.zeros(1, 2, 2).long(), "predicted has labels from -1 to -1"),
    ],
)
def test_wrong_maps_are_refused(predicted, true, message):
    counts = PixelCounts(3)
    with pytest.raises(ValueError, match=message):
        counts.update(predicted, true)
    assert counts.confusion.sum() == 0


def test_nothing_to_score():
    counts = count(torch.zeros(1, 2, 2).long(), torch.full((1, 2, 2), IGNORE), 3)
    with pytest.raises(ValueError, match="no labelled pixel to score"):
        counts.scores()
    with pytest.raises(ValueError, match="ignore=255 is one of the 256 classes"):
        PixelCounts(256)


def test_all_small_maps_against_sets():
    """Every pair of 1×3 maps of two classes, with an ignored pixel in one."""
    for p, t in itertools.product(itertools.product((0, 1), repeat=3), repeat=2):
        true = [*t[:2], IGNORE]
        if sum(true[:2]) == 0:
            continue
        scores = count(torch.tensor([[p]]), torch.tensor([[true]]), 2).scores()
        found, actual = ({i for i in range(2) if m[i] == 1} for m in (p, true))
        assert scores.iou[1].item() == len(found & actual) / len(found | actual)
