"""The CBSA layer against the paper's listing and its own options."""

import pytest
import torch
from torch import nn

from cbsa.layers import CBSA
from tests.compare import assert_close


def listing(layer, x, *, shifted):
    """Appendix D, straight-line, with PyTorch's pooling and the parameters of ``layer``.

    ``shifted`` pools as the listing does (the last token dropped, CLS taken for a patch).
    """
    b, n, _ = x.shape
    heads, p = layer.num_heads, layer.head_dim
    height = width = int(n**0.5)
    w = x @ layer.proj.weight.T
    patches = w[:, :-1] if shifted else w[:, 1:]
    maps = patches.reshape(b, height, width, heads * p).permute(0, 3, 1, 2)
    rep = nn.AdaptiveAvgPool2d((8, 8))(maps).reshape(b, heads * p, -1).permute(0, 2, 1)
    w = w.reshape(b, n, heads, p).permute(0, 2, 1, 3)
    rep = rep.reshape(b, 64, heads, p).permute(0, 2, 1, 3)

    def attention(query, key, value):
        weights = ((query @ key.transpose(-1, -2)) * p**-0.5).softmax(-1)
        return weights @ value, weights

    rep_delta, attn = attention(rep, w, w)
    rep = rep + layer.step_rep.view(-1, 1, 1) * rep_delta
    x_delta, _ = attention(rep, rep, rep)
    x_delta = layer.step_out.view(-1, 1, 1) * (attn.transpose(-1, -2) @ x_delta)
    return x_delta.permute(0, 2, 1, 3).reshape(b, n, heads * p) @ layer.to_out.weight.T + layer.to_out.bias


@pytest.mark.parametrize("legacy_pool", [False, True])
@pytest.mark.parametrize("side", [5, 8, 14])
def test_is_the_papers_listing(legacy_pool, side):
    layer = CBSA(24, 3, legacy_pool=legacy_pool).double()
    x = torch.randn(2, 1 + side * side, 24, dtype=torch.float64)
    expected = listing(layer, x, shifted=legacy_pool)
    assert_close(layer(x), expected, 1e-12)
    weight = torch.randn_like(expected)
    for a, t in zip(
        torch.autograd.grad(layer(x), list(layer.parameters()), weight),
        torch.autograd.grad(expected, list(layer.parameters()), weight),
        strict=True,
    ):
        assert_close(a, t, 1e-10)


def test_legacy_pooling_differs_from_the_right_one():
    layer, x = CBSA(24, 3).double(), torch.randn(2, 65, 24, dtype=torch.float64)
    right = layer(x)
    layer.legacy_pool = True
    assert (layer(x) - right).abs().max() > 1e-3


@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_prefix_tokens_are_gathered_but_not_pooled(prefix):
    """Permuting the prefix permutes the output; it would not if the prefix entered the pooling windows."""
    layer = CBSA(24, 3, num_prefix_tokens=prefix, representatives=(2, 3)).double()
    x = torch.randn(2, prefix + 30, 24, dtype=torch.float64)
    order = torch.cat([torch.randperm(prefix), torch.arange(prefix, prefix + 30)])
    assert_close(layer(x[:, order], (5, 6)), layer(x, (5, 6))[:, order], 1e-12)
    changed = x.clone()
    changed[:, :prefix] += 1
    if prefix:
        assert (layer(changed, (5, 6)) - layer(x, (5, 6)))[:, prefix:].abs().max() > 1e-6


@pytest.mark.parametrize(
    "options", [{}, {"iterations": 2, "broadcast": "per_token"}], ids=["paper", "extended"]
)
def test_stop_gradient_cuts_the_initial_representatives_only(options):
    layer = CBSA(24, 3, stop_gradient=True, representatives=(2, 2), **options).double()
    x = torch.randn(1, 17, 24, dtype=torch.float64)
    free = CBSA(24, 3, representatives=(2, 2), **options).double()
    free.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), free(x))
    stopped = torch.autograd.grad(layer(x).sum(), layer.proj.weight)[0]
    flowing = torch.autograd.grad(free(x).sum(), free.proj.weight)[0]
    assert (stopped - flowing).abs().max() > 1e-6
    # The stopped gradient is that of the layer with its representatives frozen at their present value.
    frozen = layer.initial_representatives(
        (x @ layer.proj.weight.T).view(1, 17, 3, 8).transpose(1, 2), None, None
    ).detach()
    layer.initial_representatives = lambda *_: frozen
    assert_close(torch.autograd.grad(layer(x).sum(), layer.proj.weight)[0], stopped, 1e-12)


def test_tied_layer_projects_back_with_its_bases():
    tied, free = CBSA(24, 3, tied=True).double(), CBSA(24, 3).double()
    assert tied.tied
    assert not free.tied
    free.load_state_dict(tied.state_dict(), strict=False)
    with torch.no_grad():
        free.to_out.weight.copy_(tied.proj.weight.T)
        free.to_out.bias.zero_()
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    assert_close(tied(x), free(x), 1e-12)


def test_learned_representatives_need_no_grid():
    layer = CBSA(24, 3, init="learned", representatives=16)
    assert layer.initial_reps.shape == (16, 24)
    assert layer(torch.randn(2, 13, 24)).shape == (2, 13, 24)  # 12 patches: no square
    with pytest.raises(ValueError, match=r"grid=\(5,\) holds 5 tokens, but there are 12"):
        layer(torch.randn(2, 13, 24), (5,))


@pytest.mark.parametrize(("dim", "heads"), [(192, 3), (384, 6), (768, 12)])
def test_number_of_parameters(dim, heads):
    """Two d×d matrices, one bias, two steps per head: the reference's count per layer."""
    count = sum(p.numel() for p in CBSA(dim, heads).parameters())
    assert count == 2 * dim * dim + dim + 2 * heads


def test_steps_are_drawn_as_in_the_reference():
    steps = torch.cat([CBSA(64, 64).step_rep.detach() for _ in range(200)])
    assert abs(steps.mean().item()) < 0.05
    assert abs(steps.std().item() - 1) < 0.05


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"representatives": (8, 0)}, ValueError, r"representatives\[1\] must be at least 1, got 0"),
        ({"representatives": ()}, TypeError, "representatives must be an integer or a non-empty sequence"),
        ({"representatives": "8x8"}, TypeError, "representatives must be an integer or a non-empty sequence"),
        (
            {"init": "pooled"},
            ValueError,
            "init='pooled': expected one of 'pool', 'learned'; did you",
        ),
        ({"contraction": "agent"}, ValueError, "contraction='agent': expected one of 'softmax'"),
        ({"impl": "flash"}, ValueError, "impl='flash': expected one of 'auto'"),
        ({"num_prefix_tokens": -1}, ValueError, "num_prefix_tokens must be at least 0, got -1"),
        ({"num_prefix_tokens": True}, TypeError, "num_prefix_tokens must be an integer, got True"),
        ({"eps": float("nan")}, ValueError, "eps must be finite, got nan"),
    ],
)
def test_bad_options_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        CBSA(24, 3, **arguments)


@pytest.mark.parametrize(
    ("n", "grid", "representatives", "message"),
    [
        (13, None, (8, 8), "12 patch tokens do not form a square: give their layout as grid="),
        (10, None, (2, 2, 2), "9 patch tokens do not form a cube"),
        (13, (3, 3), (8, 8), r"grid=\(3, 3\) holds 9 tokens, but there are 12 patch tokens"),
        (13, (12,), (8, 8), r"grid=\(12,\) and representatives=\(8, 8\) must have the same rank"),
        (1, None, (8, 8), "x has 1 tokens: no patch is left after num_prefix_tokens=1"),
    ],
)
def test_tokens_that_do_not_fit_the_grid(n, grid, representatives, message):
    with pytest.raises(ValueError, match=message):
        CBSA(24, 3, representatives=representatives)(torch.randn(2, n, 24), grid)


def test_nan_steps_are_reported():
    layer = CBSA(24, 3)
    with torch.no_grad():
        layer.step_out[1] = torch.nan
    with pytest.raises(ValueError, match=r"step_out must be finite, got .*nan"):
        layer(torch.randn(2, 17, 24))
