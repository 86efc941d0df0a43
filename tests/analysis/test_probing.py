"""Probes leave the model as they found it, whatever happens."""

import pytest
import torch

from cbsa.analysis import (
    attention_maps,
    coding_rates,
    extraction_factors,
    extraction_rank,
    reduced_coding_rates,
    zero_shot_segmentation,
)
from tests.analysis.models import pixels, small_model


def segmentation(model, images):
    """With masks that fit: the left half is foreground."""
    masks = torch.full((len(images), 20, 12), 2)
    masks[..., :6] = 1
    return zero_shot_segmentation(model, images, masks)


PROBES = [
    coding_rates,
    attention_maps,
    reduced_coding_rates,
    extraction_rank,
    extraction_factors,
    segmentation,
]


def traces(model):
    """Everything a probe might leave behind."""
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    modes = [m.training for m in model.modules()]
    buffers = {name: value.clone() for name, value in model.state_dict().items()}
    return hooks, modes, buffers


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("fails", [False, True])
def test_no_trace_is_left(probe, fails):
    model = small_model().train()
    model.blocks[1].eval()  # a mode that is not the same everywhere
    hooks, modes, before = traces(model)
    if fails:
        with pytest.raises(ValueError, match="images must have shape"):
            probe(model, torch.randn(2, 5, 8, 8, dtype=torch.float64))
    else:
        probe(model, pixels(20, 12))
    hooks_after, modes_after, after = traces(model)
    assert hooks_after == hooks
    assert modes_after == modes
    assert all(torch.equal(before[name], after[name]) for name in before)  # BatchNorm's statistics too


@pytest.mark.parametrize("probe", PROBES)
def test_results_are_those_of_evaluation_without_gradients(probe):
    model, images = small_model(), pixels(20, 12)
    expected = probe(model, images)
    tensors = {name: value for name, value in vars(expected).items() if isinstance(value, torch.Tensor)}
    again = probe(model.train(), images)
    for name, value in tensors.items():
        assert not value.requires_grad
        assert torch.equal(value.nan_to_num(-1), getattr(again, name).nan_to_num(-1))


@pytest.mark.parametrize("probe", PROBES)
def test_fused_and_compiled_models(probe):
    """The inference form stays, and hooks are not lost in compiled code."""
    model, images = small_model(), pixels(20, 12)
    expected = vars(probe(model, images))
    model.fuse()
    for index in range(2):
        model.blocks[index].compile(backend="eager")
    model(images)  # compiled before there were hooks
    model.blocks[2] = torch.compile(model.blocks[2], backend="eager")
    actual = vars(probe(model, images))
    assert model.fused
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.allclose(value, actual[name], rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("probe", PROBES)
def test_other_models_are_refused(probe):
    with pytest.raises(TypeError, match="probes cannot look into a Linear: give a model of cbsa"):
        probe(torch.nn.Linear(2, 2), torch.randn(1, 3, 32, 32))
