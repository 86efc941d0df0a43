"""Compiled and exported models compute what the model computes, at sizes other than the traced one."""

import pytest
import torch
from typer.testing import CliRunner

from cbsa.cli import app
from cbsa.models import Transformer, create_model, save_model
from cbsa.models.export import export_onnx, export_program
from tests.compare import assert_close

KINDS = {
    "cbt": {},
    "crate": {"attention": "mssa"},
    "tost": {"attention": "tssa"},
    "agent": {"attention": "agent"},
    "hybrid": {"attention": ["mssa", "cbsa"]},
    "vit": {"attention": "mhsa", "feed_forward": "mlp"},
    "linear-stem": {"attention": "mssa", "stem": "linear"},
    "legacy": {"legacy_pool": True},
}
SIZES = [
    (1, 32, 32),
    (2, 96, 64),
    (3, 128, 160),
    (1, 32, 256),
]  # grids below and above the traced one


def little(kind, **more):
    options = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 64, "num_classes": 5}
    return Transformer(**(options | KINDS[kind] | more)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_compile_forward_and_backward(kind):
    model = little(kind, depth=2 if kind == "hybrid" else 1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for batch, height, width in SIZES[:3]:
        images = torch.randn(batch, 3, height, width)
        expected, actual = model(images), compiled(images)
        assert_close(actual, expected, 1e-4)
        weight = torch.randn_like(expected)
        for a, t in zip(
            torch.autograd.grad(actual, list(model.parameters()), weight),
            torch.autograd.grad(expected, list(model.parameters()), weight),
            strict=True,
        ):
            assert_close(a, t, 1e-3)


def test_compile_with_inductor():
    model = Transformer(embed_dim=24, depth=1, num_heads=3, img_size=32, patch_size=8, num_classes=5)
    compiled = torch.compile(model, fullgraph=True)
    images = torch.randn(2, 3, 32, 32)
    assert_close(compiled(images), model(images), 1e-4)
    compiled(images).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_export_with_dynamic_batch_height_and_width(kind, fused):
    model = little(kind)
    if fused:
        model.fuse()
    program = export_program(model).module()
    for batch, height, width in SIZES:
        images = torch.randn(batch, 3, height, width)
        with torch.no_grad():
            assert_close(program(images), model(images), 1e-5)


@pytest.mark.parametrize("kind", ["cbt", "hybrid", "tost", "vit", "linear-stem"])
def test_onnx_with_dynamic_batch_height_and_width(kind, tmp_path):
    import onnxruntime

    model = little(kind)
    path = export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(path)
    for batch, height, width in SIZES:
        images = torch.randn(batch, 3, height, width)
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        with torch.no_grad():
            assert_close(torch.from_numpy(logits), model(images), 1e-4)


@pytest.mark.parametrize(
    "choice", [{"attention_kwargs": {"contraction": "exact"}}, {"attention": "linear_cbsa"}]
)
def test_what_onnx_cannot_solve_is_refused_before_it_is_translated(choice, tmp_path):
    pytest.importorskip("onnxscript")
    model = Transformer(16, 8, embed_dim=16, depth=1, num_heads=2, representatives=(2, 2), **choice)
    with pytest.raises(ValueError, match=r"ONNX has no Cholesky factorisation.* export to \.pt2"):
        export_onnx(model, tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


def test_a_registered_model_through_onnx(tmp_path):
    import onnxruntime

    model = create_model("cbt_tiny_patch4_32", depth=2).eval().fuse()
    session = onnxruntime.InferenceSession(export_onnx(model, tmp_path / "model.onnx"))
    for size in (32, 48, 20):
        images = torch.randn(2, 3, size, size)
        (logits,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            assert_close(torch.from_numpy(logits), model(images), 1e-4)


@pytest.mark.parametrize("by_name", [False, True])
def test_the_command_exports_what_no_weight_shows(by_name, tmp_path):
    """Layout of the representatives, pooling, channels and classes are those stored with the weights."""
    model = create_model(
        "cbt_tiny_patch4_32",
        embed_dim=16,
        depth=1,
        num_heads=2,
        in_chans=1,
        num_classes=3,
        representatives=(3, 2),
        legacy_pool=True,
    ).eval()
    folder = save_model(model, tmp_path / "[b]mine", architecture="cbt_tiny_patch4_32")
    weights = ["--weights", str(folder / "model.safetensors")] if by_name else []
    out = tmp_path / "new" / "model.pt2"
    arguments = ["-m", "cbt_tiny_patch4_32" if by_name else str(folder), *weights, "-o", str(out)]
    result = CliRunner().invoke(app, ["export", *arguments])
    assert result.exit_code == 0, result.output
    images = torch.randn(2, 1, 40, 24)
    with torch.no_grad():
        assert_close(torch.export.load(out).module()(images), model(images), 1e-5)
