"""A product with a threshold in its epilogue."""

import pytest
import torch
from torch.nn import functional as F

from cbsa.ops.fused_relu import _forward, linear_relu
from tests.compare import DEVICES, HALF_DTYPES, assert_as_good_as, value_and_grads

NAMES = ("dx", "dweight")


def draw(*shape, device):
    return [torch.randn(*shape, device=device), torch.randn(7, shape[-1], device=device)]


def shift(x):
    return torch.linspace(-1, 1, 7).to(x)


def run(x, weight):
    return linear_relu(x, weight, shift(x))


def plain(x, weight):
    return F.relu(F.linear(x, weight, shift(x)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES])
@pytest.mark.parametrize("shape", [(2, 5, 12), (1, 8), (3, 1, 16)], ids=str)
def test_value_and_every_gradient_are_as_good_as_plain_pytorch(shape, dtype, device):
    floor = 4 if dtype == torch.float32 else 0.5
    assert_as_good_as(run, plain, plain, lambda: draw(*shape, device=device), dtype, NAMES, floor_ulps=floor)


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_well_formed_and_compiles_into_one_graph(device):
    inputs = draw(2, 5, 12, device=device)
    arguments = (*inputs, shift(inputs[0]))
    torch.library.opcheck(_forward, arguments, test_utils=("test_schema", "test_faketensor"))
    weight = torch.randn(2, 5, 7, device=device)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        value_and_grads(compiled, inputs, weight), value_and_grads(run, inputs, weight), strict=True
    ):
        assert torch.equal(a, b)
