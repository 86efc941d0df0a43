"""The picture of the coding rates: means over heads, spread, sparsity."""

import torch

from cbsa.analysis import CodingRates
from cbsa.report import plot_rates
from tests.compare import assert_close


def rates(layers=4, heads=3, sparsity=None):
    drawn = [10 + torch.rand(layers, heads) for _ in range(6)]
    return CodingRates(*drawn, sparsity=torch.rand(layers) if sparsity is None else sparsity, eps=0.1)


def test_lines_are_means_over_heads():
    measured = rates()
    figure = plot_rates(measured)
    figure.draw_without_rendering()
    plain, normalized, zeros = figure.axes
    for axes, prefix in ((plain, ""), (normalized, "normalized_")):
        for line, name in zip(axes.lines, ("input", "attention", "feed_forward"), strict=True):
            values = getattr(measured, prefix + name).double()
            assert line.get_xdata().tolist() == [1, 2, 3, 4]
            assert_close(torch.tensor(line.get_ydata()), values.sum(1) / 3, 1e-12)
    heights = torch.tensor([bar.get_height() for bar in zeros.patches])
    assert_close(heights, 100 * measured.sparsity, 1e-6)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["before attention", "after attention", "after ISTA"]


def test_the_band_is_one_standard_deviation():
    measured = rates()
    low, high = (
        measured.input.double().mean(1) + s * measured.input.double().std(1, correction=0) for s in (-1, 1)
    )
    box = plot_rates(measured).axes[0].collections[0].get_paths()[0].get_extents()
    assert abs(box.y0 - low.min().item()) < 1e-9
    assert abs(box.y1 - high.max().item()) < 1e-9


def test_one_layer_one_head_and_no_ista():
    figure = plot_rates(rates(1, 1, torch.tensor([torch.nan])))
    figure.draw_without_rendering()
    zeros = figure.axes[2]
    assert not zeros.patches
    assert zeros.texts[0].get_text() == "no ISTA in this model"
    assert figure.legends[0].get_texts()[2].get_text() == "after the feed-forward"
