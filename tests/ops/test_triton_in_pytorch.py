"""The Triton operator inside PyTorch's machinery: compiler, checkpointing, autocast, DDP, CUDA graphs."""

import shutil
from functools import partial

import pytest
import torch
from torch import distributed, multiprocessing
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cbsa
from cbsa.ops import contract_broadcast
from tests.compare import KERNEL_DEVICES, assert_close, value_and_grads

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")

NAMES = ("output", "dw", "dreps", "dstep_rep", "dstep_out")
# Batch, heads, tokens, representatives, dimensions: a short sequence, a long one of few heads, one of many.
SHAPES = [(2, 2, 40, 16, 16), (1, 2, 150, 16, 16), (2, 4, 100, 20, 12)]
run = partial(contract_broadcast, impl="triton")
on_each_device = pytest.mark.parametrize("device", KERNEL_DEVICES)


def make_inputs(batch, heads, n, m, d, device="cpu", dtype=torch.float32):
    w = torch.randn(batch, n, heads, d, device=device).transpose(1, 2)  # as a projection leaves it
    reps = torch.randn(batch, heads, m, d, device=device)
    steps = torch.randn(2, heads, device=device).unbind()
    return [x.to(dtype) for x in (w, reps, *steps)]


def assert_same_bits(actual, expected):
    for name, a, b in zip(NAMES, actual, expected, strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


def assert_all_close(actual, expected, tolerance=1e-6):
    for name, a, b in zip(NAMES, actual, expected, strict=True):
        assert_close(a, b, tolerance, name)


# --- the compiler ----------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize(
    ("backend", "shape"), [*(("aot_eager", shape) for shape in SHAPES), ("inductor", SHAPES[0])], ids=str
)
def test_compiles_into_one_graph(backend, shape, device):
    """Between other operations, as in a layer: the compiler chooses layouts around it."""
    if (backend, device) == ("inductor", "cpu") and not shutil.which("g++"):
        pytest.skip("compiling for the CPU needs g++")

    def function(w, *others):
        return run(torch.sin(w), *others) + w

    inputs = make_inputs(*shape, device=device)
    weight = torch.randn_like(inputs[0])
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert_all_close(
        value_and_grads(compiled, inputs, weight), value_and_grads(function, inputs, weight), 1e-5
    )


@on_each_device
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("how", ["dynamic=True", "mark_dynamic"])
def test_the_number_of_tokens_may_be_dynamic(how, masked, device):
    """Right for each number, by fewer compilations than there are numbers: one for each way to run."""
    counter = CompileCounterWithBackend("aot_eager")
    dynamic = True if how == "dynamic=True" else None
    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend=counter)
    for n in (33, 40, 131, 200, 300):
        inputs = make_inputs(1, 2, n, 16, 16, device)
        mask = torch.rand(1, n, device=device) < 0.7 if masked else None
        weight = torch.randn_like(inputs[0])

        def compiled_on_leaves(w, *others, mask=mask):
            if how == "mark_dynamic":
                torch._dynamo.mark_dynamic(w, 2)
                if mask is not None:
                    torch._dynamo.mark_dynamic(mask, 1)
            return compiled(w, *others, mask=mask)

        expected = value_and_grads(partial(run, mask=mask), inputs, weight)
        assert_all_close(value_and_grads(compiled_on_leaves, inputs, weight), expected)
    assert 1 <= counter.frame_count <= 3


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4, 6, 197, 64, 64), (2, 6, 1025, 64, 64)], ids=str)
def test_compiled_with_cuda_graphs(shape):
    compiled = torch.compile(run, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):  # warms up, records, replays
        inputs = make_inputs(*shape, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn_like(inputs[0])
        torch.compiler.cudagraph_mark_step_begin()
        actual = [x.clone() for x in value_and_grads(compiled, inputs, weight)]
        assert_same_bits(actual, value_and_grads(run, inputs, weight))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(4, 6, 197, 64, 64), (40, 6, 1025, 64, 64), (1, 6, 5000, 64, 64), (1, 2, 700, 150, 64)], ids=str
)
def test_a_captured_graph_replays_what_eager_computes(shape):
    leaves = [x.requires_grad_() for x in make_inputs(*shape, device="cuda", dtype=torch.bfloat16)]
    weight = torch.randn_like(leaves[0])

    def step():
        out = run(*leaves)
        return out, *torch.autograd.grad(out, leaves, weight)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # kernels are compiled before capture
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        with torch.no_grad():
            for leaf, value in zip(leaves, make_inputs(*shape, device="cuda"), strict=True):
                leaf.copy_(value)
            weight.normal_()
            for result in captured:
                result.fill_(torch.nan)
        graph.replay()
        assert_same_bits(captured, step())


@pytest.mark.gpu
def test_runs_on_the_current_stream():
    """Inputs are written by a stream that has long been at work: any other stream would come too early."""
    shape = (4, 6, 1025, 64, 64)
    values = make_inputs(*shape, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn_like(values[0])
    expected = value_and_grads(run, values, weight)
    late = [torch.full_like(x, torch.nan) for x in values]
    torch.cuda.synchronize()
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        torch.cuda._sleep(200_000_000)
        for x, value in zip(late, values, strict=True):
            x.copy_(value)
        actual = value_and_grads(run, late, weight)
    aside.synchronize()
    assert_same_bits(actual, expected)


# --- operators as PyTorch knows them ---------------------------------------------------------------------


class Calls(TorchDispatchMode):
    """Remember what operators of this package are called with."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "cbsa":
            self.calls[func] = (args, kwargs or {})
        return func(*args, **(kwargs or {}))


@on_each_device
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_operators_are_well_formed(shape, masked, device):
    leaves = [x.requires_grad_() for x in make_inputs(*shape, device=device)]
    mask = torch.rand(shape[0], shape[2], device=device) < 0.7 if masked else None
    with Calls() as seen:
        out = run(*leaves, mask=mask)
        torch.autograd.grad(out.square().sum(), leaves)
    assert sum("triton" in str(op) for op in seen.calls) >= 2, "a forward and a backward"
    for position, (op, (args, kwargs)) in enumerate(seen.calls.items()):
        forward = position == 0  # the backward has no derivative of its own
        args = [
            x.detach().requires_grad_(forward and x.requires_grad) if isinstance(x, torch.Tensor) else x
            for x in args
        ]
        torch.library.opcheck(op, tuple(args), kwargs)


@on_each_device
def test_nothing_as_long_as_the_sequence_is_saved_but_the_input(device):
    shape = batch, heads, _, m, d = (1, 2, 300, 16, 16)
    w, reps, *steps = leaves = [x.requires_grad_() for x in make_inputs(*shape, device=device)]
    saved = []
    with saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        run(*leaves)
    storages = {x.untyped_storage().data_ptr() for x in (w, reps, *steps)}
    own = [x for x in saved if x.untyped_storage().data_ptr() not in storages]
    assert any(x.untyped_storage().data_ptr() == w.untyped_storage().data_ptr() for x in saved)
    assert all(x.numel() <= batch * heads * m * d for x in own), [tuple(x.shape) for x in own]


@on_each_device
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_gradients_the_same_bits_and_no_graph(shape, device):
    leaves = [x.requires_grad_() for x in make_inputs(*shape, device=device)]
    expected = run(*leaves)
    assert expected.requires_grad
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = run(*leaves)
        assert out.grad_fn is None
        assert not out.requires_grad
        assert torch.equal(out, expected)


@on_each_device
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_each_gradient_alone_is_what_it_is_among_all(shape, device):
    inputs = make_inputs(*shape, device=device)
    weight = torch.randn_like(inputs[0])
    _, *together = value_and_grads(run, inputs, weight)
    for i, expected in enumerate(together):
        leaves = [x.detach().requires_grad_(i == j) for j, x in enumerate(inputs)]
        (alone,) = torch.autograd.grad(run(*leaves), leaves[i], weight)
        assert torch.equal(alone, expected), NAMES[1 + i]


@on_each_device
def test_a_second_derivative_is_refused_by_name(device):
    inputs = [x.requires_grad_() for x in make_inputs(*SHAPES[0], device=device)]
    (grad,) = torch.autograd.grad(run(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(NotImplementedError, match='no second derivative; use impl="reference"'):
        grad.sum().backward()


@on_each_device
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "vmap", "forward mode"])
def test_transforms_are_refused_by_name(transform, device):
    w, reps, *steps = make_inputs(*SHAPES[0], device=device)

    def function(x):
        return run(x, reps, *steps)

    def under_transform():
        if transform == "grad":
            torch.func.grad(lambda x: function(x).sum())(w)
        elif transform == "vjp":
            torch.func.vjp(function, w)
        elif transform == "jvp":
            torch.func.jvp(function, (w,), (w,))
        elif transform == "vmap":
            torch.func.vmap(lambda x: function(x[None].expand_as(w)))(w)
        else:
            with forward_ad.dual_level():
                function(forward_ad.make_dual(w, w))

    with pytest.raises(ValueError, match=r"impl='triton' supports neither .*; use impl='reference'"):
        under_transform()


# --- training --------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_activation_checkpointing_changes_no_bit(shape, reentrant, device):
    inputs = make_inputs(*shape, device=device)
    weight = torch.randn_like(inputs[0])
    leaves = [x.requires_grad_() for x in inputs]
    out = checkpoint(run, *leaves, use_reentrant=reentrant)
    out.backward(weight)  # reentrant checkpoints know no torch.autograd.grad
    recomputed = (out.detach(), *(x.grad for x in leaves))
    assert_same_bits(recomputed, value_and_grads(run, inputs, weight))


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param(device, dtype, id=f"{device}-{dtype}")
        for device in KERNEL_DEVICES
        for dtype in (torch.float16, torch.bfloat16)
        if device == "cuda" or dtype == torch.float16  # the interpreter does not multiply bfloat16 rightly
    ],
)
def test_autocast_is_a_cast_of_the_tokens(device, dtype):
    """Bitwise; steps, which are parameters, stay in float32, and so do all gradients."""
    inputs = make_inputs(1, 2, 60, 16, 16, device)
    weight = torch.randn_like(inputs[0]).to(dtype)

    def cast(w, reps, *steps):
        return run(w.to(dtype), reps.to(dtype), *steps)

    with torch.autocast(device, dtype):
        actual = value_and_grads(run, inputs, weight)
    assert actual[0].dtype == dtype
    assert all(grad.dtype == torch.float32 for grad in actual[1:])
    assert_same_bits(actual, value_and_grads(cast, inputs, weight))


def little(impl, device, **options):
    """A CBT of two blocks over 8×8 patches, the same for every implementation."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 4, "num_classes": 5}
    model = cbsa.create_model(
        "cbt_tiny_patch16_224",
        attention_kwargs={"impl": impl},
        representatives=(3, 3),
        **(sizes | options),
    )
    return model.to(device)


def parameter_gradients(model, images, weight):
    out = model(images)
    out.backward(weight)
    return {"output": out.detach(), **{name: p.grad for name, p in model.named_parameters()}}


@on_each_device
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_model_is_that_of_the_reference(compiled, device):
    """Outputs and the gradient of every parameter, training: batch statistics included."""
    images, weight = torch.randn(3, 3, 32, 32, device=device), torch.randn(3, 5, device=device)
    ours, plain = little("triton", device), little("reference", device)
    assert {block.attn.impl for block in ours.blocks} == {"triton"}
    runnable = torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = parameter_gradients(plain, images, weight)
        out = runnable(images)
        out.backward(weight)
    assert_close(out, expected.pop("output"), 1e-5, "output")
    for name, parameter in ours.named_parameters():
        assert_close(parameter.grad, expected.pop(name), 1e-4, name)
    assert not expected


def _rank(rank, folder, device):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    given = torch.load(f"{folder}/given.pt", map_location=device)
    model = DistributedDataParallel(little("triton", device, stem="linear"))
    results = parameter_gradients(model, given["images"].chunk(2)[rank], given["weight"].chunk(2)[rank])
    torch.save({name: x.cpu() for name, x in results.items()}, f"{folder}/rank{rank}.pt")
    distributed.destroy_process_group()


@on_each_device
def test_two_processes_have_the_gradients_of_the_joint_batch(device, tmp_path):
    """DDP; with a GPU both processes share it. The linear stem has no batch statistics."""
    images, weight = torch.randn(4, 3, 32, 32), torch.randn(4, 5)
    torch.save({"images": images, "weight": weight}, tmp_path / "given.pt")
    model = little("triton", device, stem="linear")
    expected = parameter_gradients(model, images.to(device), weight.to(device))
    multiprocessing.spawn(_rank, (str(tmp_path), device), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    outputs = [results.pop("output") for results in (first, second)]
    assert_close(torch.cat(outputs), expected.pop("output").cpu(), 1e-6, "output")
    assert {f"module.{name}" for name in expected} == first.keys() == second.keys()
    for name, grad in expected.items():
        assert torch.equal(first[f"module.{name}"], second[f"module.{name}"]), name
        assert_close(2 * first[f"module.{name}"], grad.cpu(), 1e-5, name)  # DDP takes the mean of processes
