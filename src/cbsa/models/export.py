"""Export of models: graphs of ``torch.export`` and ONNX, with dynamic batch, height and width."""

from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from cbsa._checks import check_int
from cbsa.models.transformer import Transformer


def export_program(model: Transformer, *, max_size: int = 4096) -> ExportedProgram:
    """Trace a model for any batch and any image of up to ``max_size`` pixels a side, in patches.

    Height and width must be multiples of the patch size in the exported graph. The model is traced in
    evaluation mode, at its own size.
    """
    model = model.eval()
    patch = model.patch_size
    least = patch * max(3, *model.grid)
    if check_int("max_size", max_size) < least:
        raise ValueError(f"max_size={max_size} is less than the {least} px that the model is traced at")
    example = torch.zeros(
        2,
        model.patch_embed.in_chans,
        patch * max(3, model.grid[0]),
        patch * max(2, model.grid[1] - 1),
        dtype=model.pos_embed.dtype,
        device=model.pos_embed.device,
    )
    rows, columns = Dim("rows", min=2, max=max_size // patch), Dim("columns", min=2, max=max_size // patch)
    shapes = {"images": {0: Dim("batch", min=1, max=4096), 2: patch * rows, 3: patch * columns}}
    with torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes=shapes)


def _called(program: ExportedProgram) -> str:
    """Names of all that a graph calls, also in the graphs within it."""
    graphs = (module.graph for module in program.graph_module.modules() if isinstance(module, GraphModule))
    return " ".join(str(node.target) for graph in graphs for node in graph.nodes)


def export_onnx(model: Transformer, path: str | Path, *, max_size: int = 4096) -> Path:
    """Write a model as ONNX with dynamic batch, height and width (needs the ``onnx`` extra).

    Exact contraction and ``linear_cbsa`` solve linear systems, which ONNX cannot: they are refused.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("ONNX export needs the extra: pip install 'cbsa[onnx]'") from error
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    program = export_program(model, max_size=max_size)
    if "cholesky" in _called(program):
        raise ValueError(
            "ONNX has no Cholesky factorisation, by which exact contraction and linear_cbsa solve: export to "
            ".pt2 (export_program) instead, or take contraction='softmax'"
        )
    onnx_program = torch.onnx.export(
        program, input_names=["images"], output_names=["logits"], dynamo=True, verbose=False
    )
    if onnx_program is None:
        raise RuntimeError("PyTorch exported nothing")
    onnx_program.save(path)
    return path
