"""Decoders against their equations, written independently in float64."""

from functools import partial

import pytest
import torch

from cbsa.segmentation import DECODERS, CBTDecoder, DepictDecoder, MaskTransformer
from tests.compare import DEVICES, assert_close, relative_error
from tests.segmentation import formulas

DIM = 24
# Name: decoder's class, its arguments, and the formula with its own.
CBT = {"depth": 2, "num_heads": 3, "head_dim": 5, "representatives": (2, 3)}
VARIANTS = {
    "cbt": (CBTDecoder, CBT, partial(formulas.cbt, depth=2, heads=3, representatives=(2, 3))),
    "cbt, tied": (
        CBTDecoder,
        CBT | {"tied": True, "num_heads": 2},
        partial(formulas.cbt, depth=2, heads=2, representatives=(2, 3)),
    ),
    "depict, self": (
        DepictDecoder,
        {"depth": 2, "num_heads": 3, "head_dim": 5},
        partial(formulas.depict, depth=2, heads=3),
    ),
    "depict, cross": (
        DepictDecoder,
        {"mode": "cross", "depth": 1, "num_heads": 2, "head_dim": 7, "cross_depth": 2, "cross_head_dim": 4},
        partial(formulas.depict, depth=1, heads=2, cross_depth=2),
    ),
    "mask transformer": (
        MaskTransformer,
        {"depth": 2, "num_heads": 3, "mlp_ratio": 2.0},
        partial(formulas.mask_transformer, depth=2, heads=3),
    ),
    "mask transformer, wide heads": (
        MaskTransformer,
        {"depth": 1, "num_heads": 2, "head_dim": 16},
        partial(formulas.mask_transformer, depth=1, heads=2),
    ),
}
GRIDS = [(4, 4), (3, 7), (7, 2), (1, 1), (1, 9)]


def make(variant, classes, device="cpu"):
    """A decoder in float64 whose parameters are all different from their neutral values."""
    kind, options, formula = VARIANTS[variant]
    decoder = kind(DIM, classes, **options).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return decoder.to(device), formula


def truth(formula, patches, weights, grid):
    return torch.stack([formula(image, weights, grid) for image in patches])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("classes", [2, 11])
@pytest.mark.parametrize("variant", VARIANTS)
def test_masks_and_every_gradient(variant, classes, grid, device):
    decoder, formula = make(variant, classes, device)
    patches = torch.randn(2, grid[0] * grid[1], DIM, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(2, classes, *grid, dtype=torch.float64, device=device)
    leaves = [patches, *decoder.parameters()]
    names = ["patches", *(name for name, _ in decoder.named_parameters())]

    ours = decoder(patches, grid)
    expected = truth(formula, patches, dict(decoder.named_parameters()), grid)
    assert_close(ours, expected, 1e-10)
    grads = torch.autograd.grad((ours * weight).sum(), leaves)
    true_grads = torch.autograd.grad((expected * weight).sum(), leaves)
    largest = max(grad.abs().max() for grad in true_grads)
    for name, grad, true in zip(names, grads, true_grads, strict=True):
        error = (grad - true).abs().max()
        assert error <= 1e-9 * max(true.abs().max(), 1e-3 * largest), f"gradient of {name}: {error}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_low_precision(variant, device):
    """bfloat16, as parameters and by autocast: as close to float64 as rounding lets plain PyTorch be."""
    grid, classes = (3, 5), 6
    decoder, formula = make(variant, classes, device)
    decoder = decoder.bfloat16()
    patches = torch.randn(2, 15, DIM, device=device).bfloat16()
    weights = {name: parameter.detach().double() for name, parameter in decoder.named_parameters()}
    expected = truth(formula, patches.double(), weights, grid)
    with torch.no_grad():
        plain = truth(formula, patches, {n: p.detach() for n, p in decoder.named_parameters()}, grid)
        ours = decoder(patches, grid)
        assert ours.dtype == torch.bfloat16
        with torch.autocast(device, torch.bfloat16):
            mixed = decoder.float()(patches.float(), grid)
    assert mixed.dtype == torch.float32
    allowed = 2 * relative_error(plain, expected)
    assert relative_error(ours, expected) <= allowed
    assert relative_error(mixed, expected) <= allowed


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_classes_is_only_their_order(variant):
    """Class tokens are outside the pooling: permuting them permutes the masks and changes nothing else."""
    decoder, _ = make(variant, 5)
    patches, order = torch.randn(1, 12, DIM, dtype=torch.float64), torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        before = decoder(patches, (3, 4))
        decoder.class_tokens.copy_(decoder.class_tokens[:, order])
        for parameter in decoder.mask_norm.parameters():
            parameter.copy_(parameter[order])
        assert_close(decoder(patches, (3, 4)), before[:, order], 1e-12)


def test_representatives_start_from_patches_alone():
    decoder, _ = make("cbt", 3)
    layer, x = decoder.blocks[0].attn, torch.randn(1, 3 + 12, DIM, dtype=torch.float64)

    def representatives():
        return layer.initial_representatives(*layer.project(x), (3, 4))

    with torch.no_grad():
        before = representatives()
        x[:, :3] += 100.0
        assert torch.equal(representatives(), before)
        x[:, -1] += 1.0
        assert not torch.equal(representatives(), before)


def test_the_grid_matters_to_pooling():
    decoder, _ = make("cbt", 3)
    patches = torch.randn(1, 12, DIM, dtype=torch.float64)
    with torch.no_grad():
        wide, tall = decoder(patches, (3, 4)).flatten(2), decoder(patches, (4, 3)).flatten(2)
    assert (wide - tall).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("dim", "depth", "parameters"),
    [(192, 3, 376_830), (384, 3, 753_342), (768, 6, 2_895_696), (1024, 9, 5_713_250)],
)
def test_parameters_of_the_authors_decoders(dim, depth, parameters):
    """0.377, 0.753, 2.896 and 5.713 M for 150 classes, at the default depth of each width."""
    with torch.device("meta"):
        decoder, tied = CBTDecoder(dim, 150), CBTDecoder(dim, 150, tied=True)
        depict = DepictDecoder(dim, 150)
    assert len(decoder.blocks) == len(depict.blocks) == depth
    assert sum(p.numel() for p in decoder.parameters()) == parameters
    layers = depth * (300 * dim + 2 * dim)
    shared = 150 * dim + 2 * dim + 300
    assert sum(p.numel() for p in tied.parameters()) == layers + 6 * depth + shared
    assert sum(p.numel() for p in depict.parameters()) == layers + depth + shared


def test_initialisation():
    decoder = CBTDecoder(192, 150)
    assert decoder.class_tokens.std().item() == pytest.approx(0.02, rel=0.05)
    assert decoder.blocks[0].attn.proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert decoder.blocks[0].attn.to_out.bias.abs().max() == 0
    steps = torch.cat([block.attn.step_out for block in CBTDecoder(192, 3, depth=40).blocks])
    assert steps.std().item() == pytest.approx(1, rel=0.3)
    for kind in (CBTDecoder, DepictDecoder):
        unit = kind(192, 3, weight_init="unit_steps")
        assert all((block.attn.step_out == 1).all() for block in unit.blocks)
    tied = CBTDecoder(192, 3, tied=True)
    assert tied.blocks[0].attn.proj.weight.norm(dim=1).mean().item() == pytest.approx(1, rel=0.05)
    assert MaskTransformer(192, 3).proj_classes.weight.std().item() == pytest.approx(192**-0.5, rel=0.05)


def test_no_weight_decay_names_parameters():
    for kind in DECODERS.values():
        decoder = kind(64, 3)
        assert "class_tokens" in decoder.no_weight_decay() <= dict(decoder.named_parameters()).keys()
    assert "blocks.0.attn.step_rep" in CBTDecoder(64, 3).no_weight_decay()


def test_compiles_as_one_graph():
    decoder = CBTDecoder(DIM, 5, depth=1).eval()
    patches = torch.randn(2, 12, DIM)
    with torch.no_grad():
        compiled = torch.compile(decoder, fullgraph=True, backend="eager")(patches, (3, 4))
        assert_close(compiled, decoder(patches, (3, 4)), 1e-6)


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (CBTDecoder, {"num_classes": 1}, ValueError, "num_classes must be at least 2, got 1; background"),
        (CBTDecoder, {"num_classes": 0}, ValueError, "num_classes must be at least 1, got 0"),
        (CBTDecoder, {"num_classes": 2.0}, TypeError, "num_classes must be an integer, got 2.0"),
        (CBTDecoder, {"depth": 0}, ValueError, "depth must be at least 1, got 0"),
        (CBTDecoder, {"weight_init": "zeros"}, ValueError, "weight_init='zeros': expected one of"),
        (DepictDecoder, {"mode": "ca"}, ValueError, "mode='ca': expected one of 'self', 'cross'"),
        (DepictDecoder, {"mode": "cross", "cross_depth": 0}, ValueError, "cross_depth must be at least 1"),
        (
            MaskTransformer,
            {"num_heads": 5},
            ValueError,
            "dim=24 is not divisible by num_heads=5; give head_dim=",
        ),
    ],
)
def test_bad_options_are_named(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind(**({"dim": DIM, "num_classes": 3} | options))


@pytest.mark.parametrize(
    ("patches", "error", "message"),
    [
        (torch.zeros(2, 12, DIM), ValueError, r"\(B, 3·5, 24\) for grid=\(3, 5\), got \(2, 12, 24\)"),
        (torch.zeros(2, 15, 25), ValueError, r"got \(2, 15, 25\)"),
        (torch.zeros(15, DIM), ValueError, r"got \(15, 24\)"),
        (torch.zeros(2, 15, DIM, dtype=torch.int64), TypeError, "patches must be of a real floating-point"),
    ],
)
def test_bad_patches_are_named(patches, error, message):
    with pytest.raises(error, match=message):
        CBTDecoder(DIM, 3)(patches, (3, 5))
