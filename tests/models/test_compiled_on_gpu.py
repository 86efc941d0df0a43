"""Compiled models on a GPU, where kernels of our own take the place of parts of them."""

import pytest
import torch
from torch.nn import functional as F

from cbsa.models import Transformer
from tests.compare import relative_error

pytestmark = pytest.mark.gpu
BATCHES = 12
SIZE = {"img_size": 64, "patch_size": 8, "num_classes": 10, "embed_dim": 96, "depth": 2, "num_heads": 3}


def make(**options):
    torch.manual_seed(0)
    return Transformer(**(SIZE | options), weight_init="unit_steps").cuda()


def images(batch=64, size=64):
    return torch.randn(batch, 3, size, size, device="cuda").to(memory_format=torch.channels_last)


def train_once(model, x, dtype):
    """Logits and the gradients of all parameters."""
    model.train().zero_grad()
    with torch.autocast("cuda", dtype or torch.float32, enabled=dtype is not None):
        out = model(x)
    target = torch.arange(len(x), device="cuda") % 10
    F.cross_entropy(out.float(), target).backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize(
    "options",
    [{}, {"attention": "agent"}, {"attention": "mssa"}, {"patch_size": 2, "img_size": 16}],
    ids=["cbsa", "agent", "mssa", "one-stage"],
)
def test_training_errs_no_more_than_eager_code(options):
    """Against float32, output and every gradient, in bfloat16; root mean squares over several batches."""
    model = make(**options)
    batches = [images(size=model.img_size[0]) for _ in range(BATCHES)]
    truth = [train_once(model, x, None) for x in batches]
    plain = [train_once(model, x, torch.bfloat16) for x in batches]
    model.compile(dynamic=False)
    ours = [train_once(model, x, torch.bfloat16) for x in batches]
    names = ["output", *(name for name, _ in model.named_parameters())]
    for name, *columns in zip(names, *ours, *plain, *truth, strict=True):
        a, b, t = (torch.stack(columns[BATCHES * k : BATCHES * (k + 1)]) for k in range(3))
        allowed = max(2 * relative_error(b, t), 0.05)
        assert relative_error(a, t) <= allowed, name


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_errs_no_more_than_eager_code(dtype, fused):
    model = make().eval()
    x = images()
    with torch.no_grad():
        truth = model.double()(x.double())
        model = model.to(dtype)
        plain = model(x.to(dtype))
        if fused:
            model.fuse()
        model.compile(dynamic=False)
        ours = model(x.to(dtype))
    floor = 1e-3 if dtype == torch.float32 else 0.02  # convolutions may run in TF32
    assert relative_error(ours, truth) <= max(2 * relative_error(plain, truth), floor)


def test_images_that_need_a_gradient_get_one():
    """The first convolution's kernel has none for them, so that it is not taken."""
    model = make().eval()
    x = images(4).requires_grad_()
    model.compile(dynamic=False)
    with torch.autocast("cuda", torch.bfloat16):
        model(x).sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()
