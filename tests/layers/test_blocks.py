"""ISTA and the convolutional stem."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cbsa.layers import ISTA, ConvStem
from tests.compare import assert_close


@pytest.mark.parametrize("tokens", [7, 48, 100])
def test_ista_is_crates_three_products(tokens):
    """With few tokens it takes two products, with many one."""
    layer, x = ISTA(12).double(), torch.randn(2, tokens, 12, dtype=torch.float64)
    d = layer.weight
    expected = F.relu(x + 0.1 * (x @ d - x @ d.T @ d) - 0.1 * 0.1)
    assert_close(layer(x), expected, 1e-12)


def test_ista_is_a_proximal_gradient_step():
    """−∇ of ½‖x₀ − D z‖² at z = x₀ = x, then the non-negative soft threshold of η·λ."""
    layer, x = ISTA(12, step_size=0.3, lambd=0.2).double(), torch.randn(7, 12, dtype=torch.float64)
    z = x.clone().requires_grad_()
    loss = 0.5 * (x.T - layer.weight.detach() @ z.T).square().sum()
    (gradient,) = torch.autograd.grad(loss, z)
    expected = (x - 0.3 * gradient - 0.3 * 0.2).clamp_min(0)
    assert_close(layer(x), expected, 1e-12)


def test_ista_makes_sparse_codes_and_has_one_matrix():
    layer = ISTA(64)
    assert (layer(torch.randn(100, 64)) == 0).float().mean() > 0.3
    assert [tuple(p.shape) for p in layer.parameters()] == [(64, 64)]
    bound = (6 / 64) ** 0.5  # kaiming-uniform
    assert bound * 0.9 < layer.weight.abs().max() <= bound


@pytest.mark.parametrize("tokens", [3, 30])
def test_ista_gradients(tokens):
    layer = ISTA(5).double()
    x = torch.randn(tokens, 5, dtype=torch.float64, requires_grad=True)

    def run(x, weight):
        return torch.func.functional_call(layer, {"weight": weight}, x)

    assert torch.autograd.gradcheck(run, [x, layer.weight])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"dim": 4, "step_size": float("nan")}, "step_size must be finite, got nan"),
        ({"dim": 4, "lambd": -1.0}, "lambd must be at least 0, got -1"),
    ],
)
def test_ista_names_bad_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        ISTA(**arguments)


def test_ista_names_a_wrong_width():
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 4\), got \(2, 5\)"):
        ISTA(4)(torch.randn(2, 5))


@pytest.mark.parametrize(("patch", "channels"), [(16, [3, 24, 48, 96, 192]), (4, [3, 96, 192])])
def test_stem_is_the_references(patch, channels):
    stem = ConvStem(192, patch_size=patch)
    stages = [m for m in stem.proj if isinstance(m, nn.Sequential)]
    assert [s[0].in_channels for s in stages] == channels[:-1]
    assert [s[0].out_channels for s in stages] == channels[1:]
    assert all(s[0].bias is None for s in stages)
    gelus = [i for i, m in enumerate(stem.proj) if isinstance(m, nn.GELU)]
    assert gelus == list(range(1, len(stem.proj), 2))
    assert not isinstance(stem.proj[-1], nn.GELU)


def test_stem_by_hand():
    stem, image = ConvStem(8, patch_size=4).eval().double(), torch.randn(2, 3, 8, 12, dtype=torch.float64)
    x = image
    for i in (0, 2):
        conv, norm = stem.proj[i]
        x = F.conv2d(x, conv.weight, stride=2, padding=1)
        x = (x - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + norm.eps).sqrt()
        x = x * norm.weight[:, None, None] + norm.bias[:, None, None]
        x = F.gelu(x) if i == 0 else x
    assert_close(stem(image), x, 1e-10)
    assert x.shape == (2, 8, 2, 3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_stem_gradients_of_one_image(training, compiled):
    """PyTorch's BatchNorm misreads the gradient of one image's tokens on a CPU, by itself."""
    stem = ConvStem(16, patch_size=4).double().train(training)
    run = torch.compile(stem, backend="eager") if compiled else stem
    x = torch.randn(1, 3, 9, 14, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3 * 4, 16, dtype=torch.float64)

    def gradients(image, copies):
        tokens = run(image.expand(copies, -1, -1, -1)).flatten(2).transpose(1, 2)
        return torch.autograd.grad((tokens.square() * weights).sum(), [image, *stem.parameters()])

    for one, two in zip(gradients(x, 1), gradients(x, 2), strict=True):
        assert_close(2 * one, two, 1e-10)
    if not (training or compiled):
        assert torch.autograd.gradcheck(
            lambda x: stem(x).flatten(2).transpose(1, 2) * weights, x, fast_mode=True
        )


@pytest.mark.parametrize(("size", "grid"), [((224, 224), (14, 14)), ((33, 16), (3, 1)), ((1, 250), (1, 16))])
def test_stem_covers_every_pixel(size, grid):
    """A side of n pixels gives ⌈n / patch⌉ patches."""
    assert ConvStem(16)(torch.randn(2, 3, *size)).shape == (2, 16, *grid)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvStem(192, patch_size=12), "patch_size must be a power of two of at least 2, got 12"),
        (lambda: ConvStem(192, patch_size=1), "patch_size must be a power of two of at least 2, got 1"),
        (lambda: ConvStem(20, patch_size=16), "dim=20 must be a multiple of patch_size / 2 = 8"),
        (lambda: ConvStem(192)(torch.randn(2, 1, 32, 32)), r"\(B, 3, height, width\), got \(2, 1, 32, 32\)"),
        (lambda: ConvStem(192)(torch.randn(3, 32, 32)), r"\(B, 3, height, width\), got \(3, 32, 32\)"),
    ],
)
def test_stem_names_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
