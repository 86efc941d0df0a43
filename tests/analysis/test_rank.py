"""Ranks of the extraction against NumPy and constructed matrices."""

import math

import numpy as np
import pytest
import torch

from cbsa.analysis import extraction_factors, extraction_rank
from tests import truth
from tests.analysis.models import pixels, small_model, states
from tests.analysis.test_maps import heads_of, pooled
from tests.compare import DEVICES, assert_close

LEARNED = {"attention_kwargs": {"init": "learned"}}


@torch.no_grad()
def factors_by_definition(model, images):
    """A_kᵀ (layers, B, H, m, N), looped."""
    inputs, grid = states(model, images)
    result = []
    for block, (x, _, _) in zip(model.blocks, inputs, strict=True):
        attn = block.attn
        for tokens in block.norm1(x):
            for h, w in enumerate(heads_of(attn.proj, tokens, 3)):
                learned = attn.initial_reps is not None
                reps = heads_of(attn.proj, attn.initial_reps, 3)[h] if learned else pooled(w, grid, False)
                result.append(truth.extraction_matrix(w.T, reps.T, 8**-0.5).T)
    return torch.stack(result).view(len(model.blocks), len(images), 3, *result[0].shape)


@pytest.mark.parametrize("kwargs", [{}, LEARNED], ids=str)
@pytest.mark.parametrize("size", [(20, 12), (9, 29), (4, 4)])
def test_ranks_are_numpys(kwargs, size):
    model, images = small_model(**kwargs), pixels(*size, batch=3)
    ranks = extraction_rank(model, images)
    factors = factors_by_definition(model, images).numpy()
    assert np.array_equal(ranks.rank.numpy(), np.linalg.matrix_rank(factors))
    values = np.linalg.svd(factors, compute_uv=False)
    q = values / values.sum(-1, keepdims=True)
    entropy = -np.where(q > 0, q * np.log(np.maximum(q, 1e-300)), 0).sum(-1)
    assert_close(ranks.effective_rank, torch.from_numpy(np.exp(entropy)), 1e-9)
    spectrum = np.zeros((3, 3, 4))
    spectrum[..., : values.shape[-1]] = (values / values[..., :1]).mean(1)
    assert_close(ranks.spectrum, torch.from_numpy(spectrum), 1e-9)
    assert ranks.maximum == min(4, factors.shape[-1])
    assert ranks.init == ("learned" if kwargs else "pool",) * 3


@torch.no_grad()
def test_rank_of_a_constructed_extraction():
    """Of four learned representatives, equal ones are one; all zero, A is constant and of rank 1."""
    model, images = small_model(**LEARNED), pixels(20, 12)
    reps = [block.attn.initial_reps for block in model.blocks]
    reps[0].zero_()
    reps[1][1:] = reps[1][0]
    reps[2][2:] = reps[2][:2]
    ranks = extraction_rank(model, images)
    assert ranks.rank[0].eq(1).all()
    assert ranks.rank[1].eq(1).all()
    assert ranks.rank[2].eq(2).all()
    assert_close(ranks.effective_rank[:2], torch.ones(2, 2, 3).double(), 1e-6)
    assert ((ranks.effective_rank[2] > 1) & (ranks.effective_rank[2] < 2)).all()


@torch.no_grad()
def test_orthogonal_rows_have_full_effective_rank():
    """Representatives that each pick tokens of their own: four rows of equal norm, effective rank 4."""
    model = small_model(depth=1, **LEARNED)  # 3 heads of 8
    attn = model.blocks[0].attn
    torch.nn.init.zeros_(attn.proj.weight)
    for h in range(3):
        attn.proj.weight[8 * h : 8 * h + 4, :4] = torch.eye(4)
    attn.initial_reps.zero_()[:, :4] = 200 * torch.eye(4)
    ready = torch.zeros(1, 5, 24, dtype=torch.float64)
    ready[0, 1:, :4] = 10 * torch.eye(4)  # token n is the n-th direction, CLS is 0
    model.blocks[0].norm1.register_forward_hook(lambda *_: ready)
    ranks = extraction_rank(model, pixels(8, 8, batch=1))
    assert ranks.rank.tolist() == [[[4, 4, 4]]]
    assert_close(ranks.effective_rank, torch.full((1, 1, 3), 4.0).double(), 1e-9)
    assert_close(ranks.spectrum, torch.ones(1, 3, 4).double(), 1e-9)


@torch.no_grad()
def test_rounding_in_single_precision_is_not_rank():
    """Equal representatives stay of rank 1 in float32, with the tolerance of float32."""
    model = small_model(depth=1, **LEARNED).float()
    model.blocks[0].attn.initial_reps[1:] = (1 + 1e-7) * model.blocks[0].attn.initial_reps[0]
    assert extraction_rank(model, pixels(20, 12).float()).rank.eq(1).all()


def test_tolerance_counts_singular_values():
    model, images = small_model(), pixels(20, 12)
    values = np.linalg.svd(factors_by_definition(model, images).numpy(), compute_uv=False)
    ranks = extraction_rank(model, images, tolerance=0.1)
    assert np.array_equal(ranks.rank.numpy(), (values > 0.1 * values[..., :1]).sum(-1))
    assert ranks.tolerance == 0.1


@pytest.mark.parametrize("tolerance", [-0.1, 1.0])
def test_tolerance_is_a_share(tolerance):
    with pytest.raises(ValueError, match=f"tolerance is a share .*got {tolerance}"):
        extraction_rank(small_model(), pixels(8, 8), tolerance=tolerance)


def test_table_and_hybrids():
    model = small_model(["mssa", "cbsa", "cbsa"])
    ranks = extraction_rank(model, pixels(20, 12))
    rows = ranks.table()
    assert [(r["layer"], r["head"], r["init"]) for r in rows] == [
        (i, h, "pool") for i in (1, 2) for h in range(3)
    ]
    assert rows[4]["rank"] == ranks.rank[1, :, 1].double().mean().item()
    assert rows[4]["lowest_rank"] <= rows[4]["rank"] <= rows[4]["highest_rank"] <= rows[4]["maximum"] == 4
    assert rows[4]["effective_rank"] == ranks.effective_rank[1, :, 1].mean().item()
    with pytest.raises(TypeError, match=r"the model has no CBSA or Agent layer .its attention is TSSA"):
        extraction_rank(small_model("tssa"), pixels(8, 8))


@pytest.mark.parametrize("kwargs", [{}, LEARNED], ids=str)
def test_factors_and_their_rows(kwargs):
    model, images = small_model(**kwargs), pixels(9, 29)
    found = extraction_factors(model, images)
    expected = factors_by_definition(model, images)
    assert found.grid == (3, 8)
    assert_close(found.factors, expected, 1e-12)
    for query in (0, 7, 24):
        assert_close(found.row(query), (expected.mT @ expected)[..., query, :], 1e-12)
    with pytest.raises(ValueError, match="query must be below the number of tokens, 25, got 25"):
        found.row(25)


@pytest.mark.parametrize("device", DEVICES)
def test_devices(device):
    model, images = small_model().float().to(device), pixels(20, 12).float()
    ranks = extraction_rank(model, images)
    assert ranks.rank.device.type == device
    assert ranks.effective_rank.dtype == torch.float32
    assert all(math.isfinite(row["effective_rank"]) for row in ranks.table())
