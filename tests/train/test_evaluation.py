"""Metrics of an evaluation, beside torchmetrics on the same logits."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from cbsa.data import Batch, DataConfig, EvalLoader
from cbsa.train import evaluate
from cbsa.train.distributed import World
from cbsa.train.evaluation import MOST_CLASSES_CONFUSED

DATA = DataConfig(img_size=1, in_chans=1, mean=(0.25,), std=(0.5,))


class Stored(nn.Module):
    """Gives out stored logits, for images whose only pixel says which."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits
        self.part = nn.Dropout()
        self.modes = []

    def forward(self, images):
        self.modes.append((self.training, self.part.training, torch.is_grad_enabled()))
        pixels = (images.flatten() * 0.5 + 0.25) * 255  # undoes the normalisation
        rows = pixels.round().long()
        assert ((pixels - rows).abs() < 1e-2).all()
        return self.logits[rows]


class Loader(EvalLoader):
    """Batches of the images 0, 1, 2, …; those not ``valid`` stand for padding or unreadable ones."""

    store = "host"

    def __init__(self, targets, valid=None, batch_size=7):
        count = len(targets)
        valid = torch.ones(count, dtype=torch.bool) if valid is None else valid
        images = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1)
        parts = [t.split(batch_size) for t in (images, targets, torch.arange(count), valid)]
        self.batches = [Batch(*part) for part in zip(*parts, strict=True)]
        self.num_batches = len(self.batches)

    def __iter__(self):
        return iter(self.batches)


def measure(model, loader, classes, **options):
    world = World(0, 1, torch.device("cpu"))
    settings = {"data": DATA, "num_classes": classes, "precision": "fp32", "world": world}
    return evaluate(model, loader, **(settings | options))


def draw(count, classes):
    """Logits, some of which are right."""
    targets = torch.randint(classes, (count,))
    return torch.randn(count, classes) + 1.5 * F.one_hot(targets, classes), targets


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 10, 100])
def test_metrics_are_torchmetrics(classes):
    logits, targets = draw(200, classes)
    found = measure(Stored(logits), Loader(targets), classes)
    options = {"num_classes": classes, "average": "micro"}
    top1 = multiclass_accuracy(logits, targets, **options)
    top5 = multiclass_accuracy(logits, targets, top_k=min(5, classes), **options)
    assert found.top1 == pytest.approx(100 * top1.item(), abs=1e-4)
    assert found.top5 == pytest.approx(100 * top5.item(), abs=1e-4)
    assert found.loss == pytest.approx(F.cross_entropy(logits.double(), targets).item(), rel=1e-6)
    assert found.count == 200
    assert torch.equal(found.confusion, multiclass_confusion_matrix(logits, targets, classes))
    assert 0 < found.top1 < 100
    assert found.confusion.diagonal().sum().item() == round(found.top1 * 2)


@pytest.mark.parametrize("classes", [1, 2, 4, 5])
def test_with_five_classes_or_fewer_all_are_among_the_five(classes):
    logits, targets = draw(30, classes)
    assert measure(Stored(logits), Loader(targets), classes).top5 == 100


@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("classes", [3, 8])
def test_images_that_are_not_valid_count_nowhere(poison, classes):
    logits, targets = draw(100, classes)
    valid = torch.rand(100) < 0.6
    expected = measure(Stored(logits[valid]), Loader(targets[valid]), classes)
    spoilt, labels = logits.clone(), targets.clone()
    spoilt[~valid], labels[~valid] = poison, 0
    found = measure(Stored(spoilt), Loader(labels, valid), classes)
    assert found.count == expected.count == int(valid.sum())
    assert (found.top1, found.top5) == (expected.top1, expected.top5)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    assert torch.equal(found.confusion, expected.confusion)


def test_a_batch_without_a_valid_image():
    logits, targets = draw(14, 3)
    valid = torch.arange(14) < 7
    logits[7:] = float("nan")
    assert measure(Stored(logits), Loader(targets, valid), 3).count == 7


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_batches_do_not_matter(size):
    logits, targets = draw(100, 10)
    whole = measure(Stored(logits), Loader(targets, batch_size=100), 10)
    found = measure(Stored(logits), Loader(targets, batch_size=size), 10)
    assert (found.top1, found.top5, found.count) == (whole.top1, whole.top5, whole.count)
    assert found.loss == pytest.approx(whole.loss, rel=1e-12)


def test_rows_of_the_confusion_are_the_truth():
    logits = torch.eye(3)[[1, 1, 2]]
    found = measure(Stored(logits), Loader(torch.tensor([0, 0, 2])), 3)
    assert found.confusion.tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_with_very_many_classes_there_is_no_confusion_matrix():
    classes = MOST_CLASSES_CONFUSED + 1
    logits, targets = draw(20, classes)
    found = measure(Stored(logits), Loader(targets), classes)
    assert found.confusion is None
    expected = multiclass_accuracy(logits, targets, num_classes=classes, top_k=5, average="micro")
    assert found.top5 == pytest.approx(100 * expected.item(), abs=1e-4)
    fewer = measure(Stored(logits[:, :-1]), Loader(targets.clamp(max=classes - 2)), classes - 1)
    assert fewer.confusion.shape == (MOST_CLASSES_CONFUSED, MOST_CLASSES_CONFUSED)


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_restored(training):
    logits, targets = draw(20, 3)
    model = Stored(logits).train(training)
    measure(model, Loader(targets), 3)
    assert model.modes == [(False, False, False)] * 3  # evaluation, without gradients
    assert model.training == model.part.training == training
    with pytest.raises(IndexError):
        measure(model, Loader(torch.zeros(30, dtype=torch.long)), 3)  # there are no logits for these
    assert model.training == training


def test_the_loss_has_no_label_smoothing_and_is_a_mean_over_images():
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [20.0, 0.0]])
    found = measure(Stored(logits), Loader(torch.tensor([0, 1, 0]), batch_size=2), 2)
    assert found.loss == pytest.approx(2 * 0.6931471805599453 / 3, rel=1e-6)


def test_a_set_without_images_is_an_error():
    nothing = torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match="there is no image to evaluate on"):
        measure(Stored(torch.zeros(1, 3)), Loader(nothing), 3)
    unreadable = Loader(torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="there is no image to evaluate on"):
        measure(Stored(torch.zeros(4, 3)), unreadable, 3)


def test_progress_is_told_after_each_batch():
    logits, targets = draw(20, 3)
    told = []
    measure(Stored(logits), Loader(targets), 3, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_precision_is_that_of_the_run():
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            out = super().forward(x.flatten(1))
            seen.append(out.dtype)
            return out

    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        found = measure(Watching(1, 3), Loader(torch.zeros(2, dtype=torch.long)), 3, precision=precision)
        assert seen.pop() == dtype
        assert found.count == 2
