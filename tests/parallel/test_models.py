"""Whole models over 2, 3 and 4 processes: logits, every gradient and the statistics of one process."""

import copy
from functools import partial

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from cbsa.models import Transformer
from cbsa.models.compiling import compile_blocks
from cbsa.parallel import ContextGroup, context_parallel, costs, count_traffic, own_rows
from tests.compare import assert_close
from tests.parallel.processes import summed

TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4, "num_classes": 5, "img_size": 32}
FEW = {"representatives": (3, 2), "weight_init": "unit_steps"}


def tiny(**more):
    return Transformer(**TINY, **FEW, **more).double()


def shard(images, mesh, heights=None):
    """This process's rows: as even as possible, or of these heights."""
    if heights is None:
        return own_rows(images, mesh, patch_size=4)
    group = ContextGroup.of(mesh)
    heights = heights[group.size]
    start = sum(heights[: group.rank])
    return images[:, :, start : start + heights[group.rank]]


def loss_of(logits):
    return F.cross_entropy(logits.double(), torch.arange(len(logits)) % 5)


def check_gradients(model, truth, tolerance, processes=None):
    """The mean over processes is the gradient of the loss in one process."""
    for (name, parameter), own in zip(truth.named_parameters(), model.parameters(), strict=True):
        mean = own.grad if processes is None else summed(own.grad) / processes
        assert_close(mean, parameter.grad, tolerance, f"gradient of {name}")


def check(mesh, size=(36, 20), heights=None, whole=False, dtype=torch.float64, prepare=None, **options):
    model = tiny(**options).to(dtype)
    images = torch.randn(2, 3, *size, dtype=dtype)
    alone = copy.deepcopy(model).double()
    expected = alone(images.double())
    loss_of(expected).backward()
    parallel = context_parallel(model, mesh, whole_images=whole)
    assert list(parallel.state_dict()) == list(alone.state_dict())
    if prepare is not None:
        prepare(parallel)
    logits = parallel(images if whole else shard(images, mesh, heights))
    loss_of(logits).backward()
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    assert_close(logits, expected, tolerance, "logits")
    check_gradients(model, alone, tolerance, mesh.size())
    for (name, buffer), own in zip(alone.named_buffers(), parallel.buffers(), strict=True):
        assert_close(own.double(), buffer.double(), tolerance, name)


UNEVEN = {2: (28, 6), 3: (4, 24, 6), 4: (4, 16, 12, 2)}  # rows of pixels, 34 in all


def inference(mesh):
    """Evaluation, the fused form, features and maps of this process's rows."""
    model = tiny(global_pool="avg").eval()
    images = torch.randn(2, 3, 40, 24, dtype=torch.float64)
    rows = shard(images, mesh)
    parallel = context_parallel(model, mesh)
    with torch.no_grad():
        assert_close(parallel(rows), model(images), 1e-10)
        features, maps = model.forward_intermediates(images, [0, 1])
        own_features, own_maps = parallel.forward_intermediates(rows, [0, 1])
        start = sum(len(r[0, 0]) for r in gathered(rows)[: mesh.get_local_rank()]) // 4
        for own, whole in zip(own_maps, maps, strict=True):
            assert_close(own, whole[:, :, start : start + own.shape[2]], 1e-10)
        assert_close(own_features[:, :1], features[:, :1], 1e-10)
        assert_close(parallel.fuse()(rows), model(images), 1e-10)
        parallel.stem_bytes = 0  # the stem in tiles of one row of patches, the first with rows from above
        assert_close(parallel(rows), model(images), 1e-10)
        images = images[:, :, :34]
        with count_traffic() as traffic:
            assert_close(parallel(shard(images, mesh, UNEVEN)), model(images), 1e-10)
        assert traffic.calls["all_to_all"] == 1
        parallel.unfuse()
        compile_blocks(parallel, backend="eager")  # tiles are no part of what was compiled
        assert_close(parallel(shard(images, mesh, UNEVEN)), model(images), 1e-10)


def gathered(x):
    boxes = [None] * distributed.get_world_size()
    distributed.all_gather_object(boxes, x)
    return boxes


def in_half_precision(mesh, dtype=torch.float32, prepare=None):
    """Logits and gradients: as near to float64 as those of one process are, within a factor of 2.

    In autocast, or with parameters and images in bfloat16 too.
    """
    model, images = tiny().to(dtype), torch.randn(2, 3, 32, 32, dtype=dtype)
    truth = copy.deepcopy(model).double()
    parallel = context_parallel(copy.deepcopy(model), mesh)
    if prepare is not None:
        prepare(parallel)
    results = []
    for subject, x in ((truth, images.double()), (model, images), (parallel, shard(images, mesh))):
        with torch.autocast("cpu", torch.bfloat16, enabled=subject is not truth and dtype == torch.float32):
            logits = subject(x)
        loss_of(logits).backward()
        gradients = torch.cat([p.grad.double().flatten() for p in subject.parameters()])
        results.append((logits, summed(gradients) / mesh.size()))
    for what, exact, alone, ours in zip(("logits", "gradients"), *results, strict=True):
        assert ours.dtype == alone.dtype
        error, allowed = ((x.double() - exact).norm() / exact.norm() for x in (ours, alone))
        assert error <= 2 * allowed + 1e-2, f"{what}: {error:.3g}, in one process {allowed:.3g}"


def compiled(mesh):
    check(mesh, prepare=partial(compile_blocks, backend="aot_eager"))


def recompute_in_compiled_blocks(model):
    model.set_grad_checkpointing()
    compile_blocks(model, backend="aot_eager")


def recompute_by_size(model):
    """More would be kept than may be: in all processes, though they have different numbers of rows."""
    assert model.grad_checkpointing is None
    model.kept_bytes = 0


def wrapped(mesh, kind):
    """DDP or FSDP2 over a mesh of data and context: two steps are those of one process on all images.

    Statistics of BatchNorm are those of the context dimension, of each half of the images.
    """
    if mesh.size() != 4:
        return
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    model, images = tiny(), torch.randn(4, 3, 24, 20, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3])
    alone = copy.deepcopy(model)
    parallel = context_parallel(model, grid)
    assert parallel.group.size == 2
    if kind == "ddp":
        trained = DistributedDataParallel(parallel)
    else:
        for block in parallel.blocks:
            fully_shard(block, mesh=grid)
        trained = fully_shard(parallel, mesh=grid)
    mine = slice(2 * grid.get_local_rank("data"), 2 * grid.get_local_rank("data") + 2)
    own = own_rows(images[mine], grid, patch_size=4)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, trained)]
    for _ in range(2):
        halves = [
            F.cross_entropy(alone(x), y) for x, y in zip(images.chunk(2), targets.chunk(2), strict=True)
        ]
        for loss, optimizer in zip(
            (sum(halves) / 2, F.cross_entropy(trained(own), targets[mine])), optimizers, strict=True
        ):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for (name, truth), parameter in zip(alone.named_parameters(), trained.parameters(), strict=True):
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        assert_close(whole, truth, 1e-10, name)


def training(mesh):
    """Ten steps of AdamW under DDP: the loss curve, weights and statistics of one process."""
    model, images = tiny(), torch.randn(4, 3, 24, 20, dtype=torch.float64)
    alone = copy.deepcopy(model)
    trained = DistributedDataParallel(context_parallel(model, mesh))
    curves = []
    for subject, x in ((alone, images), (trained, shard(images, mesh))):
        optimizer, losses = torch.optim.AdamW(subject.parameters(), lr=1e-3), []
        for _ in range(10):
            loss = loss_of(subject(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0][-1] < curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=1e-8)
    restored = tiny()
    restored.load_state_dict(trained.module.state_dict())  # a checkpoint like any other
    for (name, truth), value in zip(alone.state_dict().items(), restored.state_dict().values(), strict=True):
        assert_close(value.double(), truth.double(), 1e-6, name)


def bad_images(mesh):
    """Every process gets the same error, whichever of them is wrong."""
    size, last = mesh.size(), mesh.get_local_rank() == mesh.size() - 1
    parallel = context_parallel(tiny().float(), mesh)
    for error, message, shape, dtype in (
        (ValueError, "width must be the same", (2, 3, 8, 20 if last else 24), torch.float32),
        (ValueError, "batch size must be the same", (1 if last else 2, 3, 8, 20), torch.float32),
        (ValueError, "number of channels must be the same", (2, 1 if last else 3, 8, 20), torch.float32),
        (TypeError, "dtype must be the same.*float64", (2, 3, 8, 20), torch.float64 if last else None),
        (ValueError, "multiple of patch_size=4", (2, 3, 6, 20), None),
        (ValueError, "each needs some", (2, 3, 0 if last else 8, 20), None),
        (ValueError, "smaller than a patch", (2, 3, 8, 3), None),
    ):
        with pytest.raises(error, match=message):
            parallel(torch.zeros(shape, dtype=dtype))
    whole = context_parallel(tiny().float(), mesh, whole_images=True)
    for error, message, images in (
        (ValueError, f"process {size - 1} of {size} gives a tensor of 3 dimensions", torch.zeros(3, 8, 20)),
        (TypeError, f"process {size - 1} of {size} gives what is no tensor", [[0.0]]),
    ):
        for model in (parallel, whole):
            with pytest.raises(error, match=message):
                model(images if last else torch.zeros(2, 3, 24, 20))
    with pytest.raises(ValueError, match=r"height must be the same.*16\] by process; with whole_images=True"):
        whole(torch.zeros(2, 3, 16 if last else 24, 20))
    with pytest.raises(ValueError, match="whole_images must be the same"):
        (whole if last else parallel)(torch.zeros(2, 3, 24, 20))
    different = pytest.raises(ValueError, match="enabled gradients must be the same")
    with different, torch.set_grad_enabled(not last):
        parallel(torch.zeros(2, 3, 8, 20))
    with pytest.raises(ValueError, match=r"training must be the same .* by process; 0 stands for False"):
        context_parallel(tiny().float().train(not last), mesh)(torch.zeros(2, 3, 8, 20))
    compiled = tiny()
    compile_blocks(compiled, backend="eager")
    with pytest.raises(ValueError, match="model is compiled, for the images of one process"):
        context_parallel(compiled, mesh)
    with pytest.raises(ValueError, match="model is context-parallel already"):
        context_parallel(parallel, mesh)
    mixed = context_parallel(tiny().to(torch.float64 if last else torch.float32), mesh)
    with pytest.raises(TypeError, match="dtype of the parameters must be the same"):
        mixed(torch.zeros(2, 3, 8, 20))
    with pytest.raises(ValueError, match=f"1 rows of tokens cannot be divided among {size} processes"):
        own_rows(torch.zeros(2, 3, 4, 20), mesh, patch_size=4)
    with pytest.raises(ValueError, match=f"1 rows of tokens cannot be divided among {size} processes"):
        context_parallel(tiny(), mesh, whole_images=True)(torch.zeros(2, 3, 4, 20))
    with pytest.raises(ValueError, match=r"images must have shape \(B, C, height, width\), got \(3, 8, 20\)"):
        own_rows(torch.zeros(3, 8, 20), mesh)
    with pytest.raises(TypeError, match="images must be a tensor, got list"):
        own_rows([0.0], mesh)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn is an MSSA"):
        context_parallel(tiny(attention="mssa"), mesh)
    with pytest.raises(ValueError, match=r"dim='data': the mesh has 1 dimensions, named \['context'\]"):
        context_parallel(tiny(), mesh, dim="data")
    with pytest.raises(TypeError, match=r"must be a cbsa\.models\.Transformer, got Linear"):
        context_parallel(torch.nn.Linear(2, 2), mesh)


def traffic(mesh):
    """What a step sends is what the cost model says: it depends on the width, and not on the rows."""
    model, rank, size = tiny().float(), mesh.get_local_rank(), mesh.size()
    parallel = context_parallel(model, mesh)
    for rows, width in ((8, 20), (40, 20), (8, 36)):
        with count_traffic() as forward:
            loss = loss_of(parallel(torch.randn(2, 3, rows, width)))
        with count_traffic() as backward:
            loss.backward()
        agreement = forward.bytes.pop("all_gather")
        assert agreement == 12 * 8
        blocks, stem = costs.blocks_bytes(model, 2), costs.stem_bytes(model.patch_embed, width, 2)
        if 0 < rank < size - 1:  # one that has neighbours above and below
            assert forward.total_bytes() == blocks.forward + stem.forward
            assert backward.total_bytes() == blocks.backward + stem.backward
        else:
            assert forward.total_bytes() <= blocks.forward + stem.forward


CASES = {
    "even": partial(check, size=(48, 20)),
    "rectangular": check,
    "uneven": partial(check, size=(34, 20), heights=UNEVEN),
    "the model's own size": partial(check, size=(32, 32)),
    "whole images": partial(check, size=(33, 18), whole=True),
    "float32": partial(check, dtype=torch.float32),
    "mean of patches": partial(check, global_pool="avg"),
    "linear stem": partial(check, stem="linear"),
    "mlp": partial(check, feed_forward="mlp"),
    "registers": partial(check, reg_tokens=2),
    "options": partial(
        check, size=(34, 20), heights=UNEVEN, attention_kwargs={"dwconv": 3, "broadcast": "per_token"}
    ),
    "tssa": partial(check, attention="tssa"),
    "linear and agent": partial(check, attention=("linear", "agent")),
    "orthogonal": partial(check, attention=("linear_cbsa", "channel_cbsa")),
    "recomputed": partial(check, prepare=lambda model: model.set_grad_checkpointing()),
    "recomputed by size": partial(check, size=(34, 20), heights=UNEVEN, prepare=recompute_by_size),
    "compiled": compiled,
    "autocast": in_half_precision,
    "bfloat16": partial(in_half_precision, dtype=torch.bfloat16),
    "autocast, compiled, recomputed": partial(in_half_precision, prepare=recompute_in_compiled_blocks),
    "inference": inference,
    "ddp on two dimensions": partial(wrapped, kind="ddp"),
    "fsdp on two dimensions": partial(wrapped, kind="fsdp"),
    "training": training,
    "bad images": bad_images,
    "traffic": traffic,
}


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_over_processes(outcomes, processes, case):
    for rank, error in enumerate(outcomes(processes)[case]):
        assert error is None, f"process {rank}: {error}"
