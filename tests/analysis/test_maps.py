"""Attention maps against the whole N×N matrices, written out token by token."""

from functools import partial

import pytest
import torch

from cbsa.analysis import attention_factors, attention_maps, extraction_factors, zero_shot_segmentation
from tests import truth
from tests.analysis.models import pixels, small_model, states
from tests.compare import DEVICES, assert_close
from tests.largest import LargestTensor

GRIDS = {(20, 12): (5, 3), (9, 29): (3, 8), (4, 4): (1, 1)}  # sizes in pixels -> patches


def heads_of(linear, x, heads):
    """Tokens x (N, dim) through a linear map, cut into heads: a list of (N, p)."""
    return list(linear(x).chunk(heads, dim=-1))


def windows(n, o):
    return [(i * n // o, -(-(i + 1) * n // o)) for i in range(o)]


def pooled(w, grid, legacy):
    """2×2 adaptive averages of head tokens w (N, p), looped; legacy drops the last token, not CLS."""
    patches = (w[:-1] if legacy else w[1:]).reshape(*grid, -1)
    return torch.stack(
        [patches[a:b, c:d].mean((0, 1)) for a, b in windows(grid[0], 2) for c, d in windows(grid[1], 2)]
    )


def full_matrix(attn, w, reps):
    """A_k A_kᵀ (N×N) in the paper's columns, from head tokens w (N, p) and representatives (m, p)."""
    a = truth.extraction_matrix(w.T, reps.T, attn.head_dim**-0.5)  # N×m
    return a @ a.T


def truth_rows(attn, x, grid, query):
    """Row ``query`` of one image's map over all tokens, (H, N)."""
    rows = []
    for h, w in enumerate(heads_of(attn.proj, x, 3)):
        if attn.initial_reps is None:
            reps = pooled(w, grid, attn.legacy_pool)
        else:
            reps = heads_of(attn.proj, attn.initial_reps, 3)[h]
        rows.append(full_matrix(attn, w, reps)[query])
    return torch.stack(rows)


def check(model, images, expected_rows, query, grid):
    """Compare raw and normalised maps with rows(attn, x) of the test's own, one image at a time."""
    raw = attention_maps(model, images, query=query, normalize=False)
    result = attention_maps(model, images, query=query)
    assert result.layers == tuple(range(len(model.blocks)))
    assert result.grid == grid
    assert result.query == query
    for layer, (block, (x, _, _)) in enumerate(zip(model.blocks, states(model, images)[0], strict=True)):
        for b, tokens in enumerate(block.norm1(x)):
            rows = expected_rows(block.attn, tokens)[:, 1:]  # (H, h·w)
            assert_close(raw.maps[layer, b].flatten(1), rows, 1e-12)
            assert_close(result.maps[layer, b].flatten(1), rows / rows.sum(-1, keepdim=True), 1e-12)


@pytest.mark.parametrize("size", GRIDS)
@pytest.mark.parametrize("query", [0, 1])
@pytest.mark.parametrize("attention", ["cbsa", "agent"])
@pytest.mark.parametrize(
    "kwargs", [{}, {"legacy_pool": True}, {"attention_kwargs": {"init": "learned"}}], ids=str
)
@torch.no_grad()
def test_cbsa_is_a_row_of_the_papers_matrix(attention, size, query, kwargs):
    model, grid = small_model(attention, **kwargs), GRIDS[size]
    check(model, pixels(*size), lambda attn, x: truth_rows(attn, x, grid, query), query, grid)


@pytest.mark.parametrize("broadcast", ["per_token", "softmax"])
@pytest.mark.parametrize("query", [0, 6])
@torch.no_grad()
def test_other_broadcasts_have_their_own_weights_of_the_query(broadcast, query):
    """Not A_k A_kᵀ there: row = weights[query]·A_k, against the dense product."""

    def rows(attn, x):
        found = []
        for w in heads_of(attn.proj, x, 3):
            scores = attn.head_dim**-0.5 * w @ pooled(w, (5, 3), False).T  # N×m
            a = scores.softmax(0)
            weights = scores.softmax(1) if broadcast == "softmax" else a / a.sum(1, keepdim=True)
            found.append((weights @ a.T)[query])
        return torch.stack(found)

    model, images = small_model(attention_kwargs={"broadcast": broadcast}), pixels(20, 12)
    check(model, images, rows, query, (5, 3))
    maps = attention_maps(model, images, query=query, normalize=False).maps.flatten(-2)
    assert_close(extraction_factors(model, images).row(query)[..., 1:], maps, 1e-12)
    for layer, found in zip(maps, attention_factors(model, images).factors, strict=True):
        assert_close(found.row(query)[..., 1:], layer, 1e-12)
        assert len(found.factors) == 2  # both are stored, where they differ


@pytest.mark.parametrize("attention", ["mssa", "mhsa"])
@torch.no_grad()
def test_softmax_attention_is_its_softmax(attention):
    def rows(attn, x):
        streams = attn.proj(x).chunk(attn.streams, dim=-1)
        q, k = streams[0], streams[1] if attention == "mhsa" else streams[0]
        pairs = zip(q.chunk(3, dim=-1), k.chunk(3, dim=-1), strict=True)
        return torch.stack([torch.softmax(qh @ kh.T / 8**0.5, dim=-1)[4] for qh, kh in pairs])

    model = small_model(attention)
    check(model, pixels(20, 12), rows, 4, (5, 3))


@pytest.mark.parametrize("kernel", ["elu", "relu"])
@torch.no_grad()
def test_linear_attention_is_its_kernel(kernel):
    def phi(x):
        return x.clamp(min=0) if kernel == "relu" else torch.where(x > 0, x + 1, x.exp())

    def rows(attn, x):
        q, k, _ = attn.proj(x).chunk(3, dim=-1)
        pairs = zip(q.chunk(3, dim=-1), k.chunk(3, dim=-1), strict=True)
        products = torch.stack([phi(qh[2]) @ phi(kh).T for qh, kh in pairs])
        return products / products.sum(-1, keepdim=True)

    check(small_model("linear", attention_kwargs={"kernel": kernel}), pixels(20, 12), rows, 2, (5, 3))


def test_a_query_without_any_key_maps_to_zero():
    model = small_model("linear", attention_kwargs={"kernel": "relu"})
    torch.nn.init.constant_(model.blocks[0].attn.proj.bias, -1e3)
    assert attention_maps(model, pixels(8, 8), [0]).maps.eq(0).all()


def test_layers_in_the_order_asked_for():
    model, images = small_model(), pixels(20, 12)
    every = attention_maps(model, images)
    some = attention_maps(model, images, [-1, 0])
    assert some.layers == (2, 0)
    assert torch.equal(some.maps, every.maps[[2, 0]])
    assert every.maps.shape == (3, 2, 3, 5, 3)


@pytest.mark.parametrize(
    ("attention", "kwargs", "reason"),
    [
        ("tssa", {}, r"layer 1 is TSSA: its softmax is over heads, not a map over tokens"),
        ("linear_cbsa", {}, r"layer 1 is LinearCBSA: .*no map over tokens"),
        ("channel_cbsa", {}, r"layer 1 is ChannelCBSA: .*no map over tokens"),
        ("mssa", {"attention_kwargs": {"contraction": "exact"}}, r"layer 1 is MSSA with contraction='exact'"),
    ],
)
def test_refuses_what_has_no_map(attention, kwargs, reason):
    with pytest.raises(TypeError, match=reason):
        attention_maps(small_model(attention, **kwargs), pixels(8, 8), [1])


def test_hybrids_are_refused_only_where_asked_for():
    model, images = small_model(["tssa", "cbsa", "mssa"]), pixels(8, 8)
    assert attention_maps(model, images, [1, 2]).layers == (1, 2)
    with pytest.raises(TypeError, match="layer 0 is TSSA"):
        attention_maps(model, images)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [3]}, r"layers must be some of the 3 blocks, -3 to 2, got \[3\]"),
        ({"layers": []}, "layers must be some of the 3 blocks"),
        ({"query": 16}, "query must be below the number of tokens, 16, got 16"),
        ({"query": -1}, "query must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        attention_maps(small_model(), pixels(20, 12), **arguments)


@pytest.mark.parametrize("attention", ["cbsa", "mssa", "mhsa", "linear"])
def test_nothing_of_n_by_n_at_high_resolution(attention):
    size = 240  # as 960 px in patches of 16: 3,601 tokens
    model = small_model(attention, depth=2).float()
    images, masks = torch.randn(1, 2, size, size), torch.ones(1, size, size, dtype=torch.long)
    tokens = 1 + (size // 4) ** 2
    for probe in (attention_maps, partial(zero_shot_segmentation, masks=masks)):
        with LargestTensor() as watch:
            probe(model, images)
        assert tokens < watch.entries < tokens**2 / 10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["cbsa", "mssa", "mhsa", "linear"])
def test_single_precision_and_autocast(attention, device):
    model, images = small_model(attention), pixels(20, 12)
    expected = attention_maps(model, images).maps
    model = model.float().to(device)
    assert_close(attention_maps(model, images.float()).maps.cpu(), expected, 1e-5)
    with torch.autocast(device, torch.bfloat16):
        low = attention_maps(model, images.float()).maps
    assert low.dtype == torch.float32
    assert_close(low.cpu(), expected, 0.1)
