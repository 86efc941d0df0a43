"""Pictures of the analyses hold the numbers they were given."""

import math

import pytest
import torch

from cbsa.analysis import (
    AttentionMaps,
    CodingRates,
    ExtractionRanks,
    NoiseSweep,
    ReducedCodingRates,
    ZeroShotSegmentation,
)
from cbsa.report import (
    compare_attention,
    plot_compression,
    plot_noise,
    plot_ranks,
    plot_reduction,
    plot_zero_shot,
    plot_zero_shot_layers,
)
from cbsa.report.pixels import overlay, to_pixels
from tests.compare import assert_close


def rates(layers=4, heads=3):
    drawn = [10 + torch.rand(layers, heads) for _ in range(6)]
    return CodingRates(*drawn, sparsity=torch.rand(layers), eps=0.1)


def reduced(layers=(0, 2), images=5, heads=3):
    drawn = [torch.rand(len(layers), images, heads) for _ in range(4)]
    return ReducedCodingRates(*drawn, layers, 0.1, 1.0, "operator")


def scores(layers=3, images=5, heads=2):
    return ZeroShotSegmentation(torch.rand(layers, images, heads, 3), tuple(range(layers)), 0.6, "nearest")


def ranks(layers=(0, 1), images=4, heads=2, m=6):
    rank = torch.randint(1, m + 1, (len(layers), images, heads))
    effective = 1 + torch.rand(len(layers), images, heads)
    spectrum = torch.rand(len(layers), heads, m).sort(-1, descending=True).values
    return ExtractionRanks(rank, effective, spectrum, m, ("pool",) * len(layers), layers, None)


def legend(figure):
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.legends[0].get_texts()]


def heights(line):
    return torch.tensor(line.get_ydata(), dtype=torch.float64)


def test_compression_terms_are_sums_over_heads():
    models = {"$one_": rates(), "two": rates(6, 2)}
    figure = plot_compression(models)
    plain, normalized, change = figure.axes
    for place, measured in enumerate(models.values()):
        before, after = (
            sum(v.double()[:, h] for h in range(v.shape[1])) for v in (measured.input, measured.attention)
        )
        assert_close(heights(plain.lines[place]), before, 1e-12)
        assert_close(heights(normalized.lines[place]), measured.normalized_input.double().sum(1), 1e-12)
        assert_close(heights(change.lines[place]), after - before, 1e-9)
    assert legend(figure) == ["$one_", "two"]


def test_an_untrained_model_looks_like_its_twin():
    figure = plot_compression({"a": rates(), "a, untrained": rates(), "b": rates(), "c, untrained": rates()})
    lines = figure.axes[0].lines
    colours = [line.get_color() for line in lines]
    assert colours[0] == colours[1]
    assert len(set(colours)) == 3
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "-"]  # c has no twin beside it


def test_reductions_by_head_and_against_each_other():
    measured = reduced()
    figure = plot_reduction({"$m_": measured})
    assert legend(figure) == ["tokens", "representatives"]
    trend, scatter = figure.axes[:2]
    assert trend.get_title(loc="left") == "$m_: reduction by head, nats"
    tokens = (measured.tokens_before - measured.tokens_after).mean(1).flatten()
    representatives = (measured.representatives_before - measured.representatives_after).mean(1).flatten()
    assert_close(heights(trend.lines[0]), tokens, 1e-6)
    assert_close(heights(trend.lines[1]), representatives, 1e-6)
    assert [label.get_text() for label in trend.get_xticklabels()] == ["1", "3"]
    points = torch.tensor(scatter.collections[0].get_offsets().tolist())
    assert_close(points, torch.stack([tokens, representatives], 1), 1e-6)
    r = torch.corrcoef(torch.stack([tokens, representatives]))[0, 1]
    assert scatter.get_title(loc="left") == f"r = {r:.2f}".replace("-", "−")


def test_a_correlation_that_is_not_defined():
    """One layer, one head: a point has no correlation."""
    figure = plot_reduction({"m": reduced((3,), heads=1)})
    figure.draw_without_rendering()
    assert figure.axes[1].get_title(loc="left") == "r = not defined (one is constant)"


def test_maps_of_several_models():
    images = torch.rand(2, 3, 24, 24)
    maps = {
        "$one_": AttentionMaps(torch.rand(2, 2, 3, 4, 4), (0, 5), (4, 4), 0),
        "two": AttentionMaps(torch.rand(1, 2, 3, 8, 8), (2,), (8, 8), 0),
    }
    figure = compare_attention(images, maps, head=1, titles=["a"])
    figure.draw_without_rendering()
    assert len(figure.axes) == 2 * 4
    assert [axes.get_title().strip() for axes in figure.axes[::2]] == [
        "image",
        "layer 1",
        "layer 6",
        "layer 3",
    ]
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["$one_", "two"]
    assert figure.axes[0].get_ylabel() == "a"
    pixels = to_pixels(images).repeat_interleave(8, 1).repeat_interleave(8, 2)
    shown = torch.as_tensor(figure.axes[5].images[0].get_array())  # second image, layer 6
    assert torch.allclose(shown, overlay(pixels, maps["$one_"].maps[1, :, 1])[1], atol=1e-6)
    with pytest.raises(ValueError, match="two has maps of 2 images, but there are 1 images"):
        compare_attention(images[:1], {"two": maps["two"]})


def test_bars_are_the_best_maps():
    measured = scores()
    figure = plot_zero_shot({"a": measured, "b": scores()}, [0.4, 0.5, math.nan])
    bars = figure.axes[0].containers
    best = measured.jaccard.amax((0, 2)).mean(0)
    assert_close(torch.tensor([bar.get_height() for bar in bars[0]]), best, 1e-6)
    assert figure.axes[0].texts[0].get_text() == f"{best[0]:.2f}"
    assert legend(figure) == ["a", "b", "all pixels"]


def test_a_target_that_no_image_has():
    measured = scores()
    measured.jaccard[..., 2] = torch.nan
    texts = [text.get_text() for text in plot_zero_shot({"a": measured}).axes[0].texts]
    assert texts[2] == "none"


def test_layers_beside_the_papers():
    measured = scores()
    figure = plot_zero_shot_layers({"a": measured}, {"CBT-S": (0.1, 0.2)}, "background", all_pixels=0.3)
    lines = figure.axes[0].lines
    assert_close(heights(lines[0]), measured.jaccard.amax(2).mean(1)[:, 1], 1e-6)
    assert heights(lines[1]).tolist() == [0.1, 0.2]
    assert set(lines[2].get_ydata()) == {0.3}
    assert legend(figure) == ["a", "paper: CBT-S", "all pixels"]
    with pytest.raises(ValueError, match="target='edge': expected one of foreground"):
        plot_zero_shot_layers({"a": measured}, target="edge")


def test_ranks_and_spectrum():
    measured = ranks()
    figure = plot_ranks({"a": measured})
    rank, effective, spectrum = figure.axes
    assert_close(heights(rank.lines[0]), measured.rank.double().mean((1, 2)), 1e-12)
    assert_close(heights(effective.lines[0]), measured.effective_rank.double().mean((1, 2)), 1e-12)
    assert_close(heights(spectrum.lines[0]), measured.spectrum.double().mean((0, 1)), 1e-12)
    assert set(rank.lines[1].get_ydata()) == {6}
    assert legend(figure) == ["a", "largest possible"]


def test_scores_under_noise_are_sorted_by_sigma():
    sweep = NoiseSweep((0.1, 0.0), (0, 1), torch.tensor([[20.0, 40.0], [80.0, 80.0]], dtype=torch.float64))
    figure = plot_noise({"a": sweep}, chance=10)
    plain, share = figure.axes
    assert plain.lines[0].get_xdata().tolist() == [0.0, 0.1]
    assert heights(plain.lines[0]).tolist() == [80, 30]
    assert heights(share.lines[0]).tolist() == [100, 37.5]
    assert legend(figure) == ["a", "chance"]


def test_without_a_score_without_noise_there_is_no_share():
    sweep = NoiseSweep((0.1, 0.2, 0.5), (0,), torch.rand(3, 1))
    assert len(plot_noise({"a": sweep}).axes) == 1


@pytest.mark.parametrize(
    "plot",
    [
        plot_compression,
        plot_reduction,
        plot_zero_shot,
        plot_zero_shot_layers,
        plot_ranks,
        plot_noise,
        lambda nothing: compare_attention(torch.rand(1, 3, 8, 8), nothing),
    ],
)
def test_nothing_to_draw(plot):
    with pytest.raises(ValueError, match="is empty: give th"):
        plot({})
