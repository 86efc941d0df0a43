"""Confusion matrices: values in the cells, and closed forms."""

import pytest
import torch

from cbsa.report import per_class_accuracy, plot_confusion
from tests.compare import assert_close

COUNTS = torch.tensor([[8, 2, 0], [0, 0, 0], [1, 2, 3]])


def test_accuracy_by_class():
    accuracy = per_class_accuracy(COUNTS)
    assert_close(accuracy[[0, 2]], torch.tensor([0.8, 0.5], dtype=torch.float64), 1e-15)
    assert accuracy[1].isnan()  # no samples


def test_cells_hold_counts_and_shares():
    figure = plot_confusion(COUNTS, ["cat", "$do{g$", "_bird"])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    cells = {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in axes.texts}
    assert cells == {(0, 0): "8", (0, 1): "2", (2, 0): "1", (2, 1): "2", (2, 2): "3"}
    shares = torch.tensor(axes.images[0].get_array().filled(-1))
    assert_close(shares[[0, 2]], COUNTS[[0, 2]] / COUNTS[[0, 2]].sum(1, keepdim=True), 1e-7)
    assert shares[1].eq(-1).all()  # a class without samples is masked
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "$do{g$", "_bird"]
    assert "11 of 16" in axes.get_title(loc="left")


@pytest.mark.parametrize(
    ("number", "counts", "names"),
    [
        (1, True, True),
        (20, True, True),
        (21, False, True),
        (40, False, True),
        (41, False, False),
        (100, False, False),
    ],
)
def test_what_is_written_depends_on_the_number_of_classes(number, counts, names):
    axes = plot_confusion(torch.eye(number, dtype=torch.long), [f"class {i}" for i in range(number)]).axes[0]
    assert len(axes.texts) == (number if counts else 0)
    assert len(axes.get_yticklabels()) == (number if names else 0)


def test_very_many_classes_are_ranked():
    number = 150
    right = torch.arange(number) % 101
    matrix = torch.diag(right)
    matrix[torch.arange(number), (torch.arange(number) + 1) % number] = 100 - right
    matrix[7] = 0  # a class without samples
    figure = plot_confusion(matrix, [f"${i}" for i in range(number)])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    expected = sorted(float(value) for i, value in enumerate(right.tolist()) if i != 7)
    assert axes.lines[0].get_ydata().tolist() == pytest.approx(expected)
    assert "149 classes (1 without samples left out)" in axes.get_title(loc="left")
    worst, best = (text.get_text() for text in axes.texts)
    assert worst.startswith("worst:\n$0  0 %")
    assert best.startswith("best:\n$100  100 %")


@pytest.mark.parametrize("matrix", [torch.zeros(2, 3), torch.zeros(0, 0), torch.zeros(3)])
def test_only_squares(matrix):
    with pytest.raises(ValueError, match=r"matrix must have shape \(C, C\)"):
        per_class_accuracy(matrix)


def test_a_name_for_each_class():
    with pytest.raises(ValueError, match="classes must have 3 names, one per row of matrix, got 2"):
        plot_confusion(COUNTS, ["a", "b"])
