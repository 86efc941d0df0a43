"""Attention layers over 2, 3 and 4 processes: outputs and every gradient are those of one process."""

import copy
import math
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint

from cbsa.layers import CBSA, MHSA, MSSA, TSSA, ChannelCBSA, LinearAttention, LinearCBSA
from cbsa.parallel import ContextGroup, Shard, costs, count_traffic, shard_attention
from tests.compare import assert_close
from tests.parallel.processes import summed

ROWS = {2: (5, 2), 3: (1, 4, 2), 4: (1, 3, 2, 1)}  # of 7, by number of processes
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 4e-2}


def problem(grid, *, prefix=1, dim=12, batch=2, dtype=torch.float64, padding=False):
    """Tokens, weights of the outputs, and a mask if there is padding."""
    n = prefix + math.prod(grid)
    x, weight = (torch.randn(batch, n, dim, dtype=dtype) for _ in range(2))
    if not padding:
        return x, weight, None
    real = torch.rand(batch, *grid) > 0.3
    real[0, -1] = real[0, 0] = False  # rows that are padding everywhere
    real[0, 3] = True
    if len(grid) > 1:
        real[0, :, 1] = False
    real[1] = False if padding == "empty" else real[1]
    return x, weight, torch.cat([torch.ones(batch, prefix, dtype=torch.bool), real.flatten(1)], 1)


def places(grid, rows, rank, prefix):
    """Indices of the tokens that a process has."""
    row = math.prod(grid[1:])
    start = prefix + sum(rows[:rank]) * row
    return [*range(prefix), *range(start, start + rows[rank] * row)]


def check(mesh, layer, grid, *, prefix=1, dtype=torch.float64, padding=False, call=None, known=False):
    """Compare a layer over processes with the same layer in one; every process has a share of the loss."""
    group = ContextGroup.of(mesh)
    rows = ROWS[group.size]
    layer = layer().to(dtype)
    x, weight, mask = problem(grid, prefix=prefix, dtype=dtype, padding=padding)
    mine = places(grid, rows, group.rank, prefix)

    alone = copy.deepcopy(layer).double()
    whole = x.double().clone().requires_grad_()
    truth = alone(whole, grid, mask)
    truth.backward(weight.double())

    sharded = shard_attention(layer, group)
    local = x[:, mine].requires_grad_()
    sizes = (rows[group.rank], *grid[1:])
    shard = Shard(sizes, sum(rows[: group.rank]), sum(rows)) if known else sizes
    part = None if mask is None else mask[:, mine]
    out = (call or (lambda layer, *given: layer(*given)))(sharded, local, shard, part)
    share = weight[:, mine].clone()
    shares = torch.rand(
        group.size, dtype=torch.float64
    )  # the same in all processes: how much of the prefix's loss each has
    share[:, :prefix] *= (shares / shares.sum())[group.rank]
    out.backward(share.to(out.dtype))

    tolerance = TOLERANCES[torch.bfloat16 if out.dtype == torch.bfloat16 else dtype]
    assert_close(out, truth[:, mine], tolerance, "output")
    assert_close(local.grad[:, prefix:], whole.grad[:, mine[prefix:]], tolerance, "gradient of patches")
    assert_close(summed(local.grad[:, :prefix]), whole.grad[:, :prefix], tolerance, "gradient of the prefix")
    for (name, parameter), own in zip(alone.named_parameters(), layer.parameters(), strict=True):
        assert_close(summed(own.grad), parameter.grad, tolerance, f"gradient of {name}")


IMAGE = (7, 5)
FEW = {"representatives": (3, 2)}


def under_autocast(layer, *given):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(*given)


def recomputed(layer, *given):
    return checkpoint(layer, *given, use_reentrant=False)


def compiled(layer, *given, backend):
    return torch.compile(layer, fullgraph=True, backend=backend)(*given)


def bytes_do_not_depend_on_n(mesh):
    """What the collectives are given is what the cost model says, whatever N is."""
    group = ContextGroup.of(mesh)
    for layer in (
        CBSA(12, 2, **FEW),
        CBSA(12, 2, **FEW, stop_gradient=True),
        CBSA(12, 2, **FEW, init="learned"),
        CBSA(12, 2, **FEW, iterations=3, rep_norm="layer"),
        CBSA(12, 2, **FEW, broadcast="softmax", init="learned"),
        CBSA(12, 2, **FEW, broadcast="per_token", iterations=2),
        TSSA(12, 2),
        LinearAttention(12, 2),
        LinearCBSA(12, 2),
        ChannelCBSA(12, 2),
        MSSA(12, 2, contraction="exact"),
    ):
        sharded = shard_attention(layer, group)
        for height, width in ((4, 3), (20, 31)):
            x = torch.randn(2, 1 + height * width, 12, requires_grad=True)
            shard = Shard((height, width), group.rank * height, group.size * height)
            with count_traffic() as forward:
                out = sharded(x, shard)
            with count_traffic() as backward:
                out.sum().backward()
            assert forward.calls.keys() == backward.calls.keys() == {"all_reduce"}
            sent = forward.total_bytes(), backward.total_bytes()
            assert sent == costs.attention_bytes(layer, batch=2), layer
            mask = torch.rand(x.shape[:2]) > 0.2
            with count_traffic() as forward:
                out = sharded(x, shard, mask)
            with count_traffic() as backward:
                out.sum().backward()
            sent = forward.total_bytes(), backward.total_bytes()
            assert sent == costs.attention_bytes(layer, batch=2, masked=(height, width)), layer


OPTIONS = {
    "iterations": {"iterations": 3},
    "layer norm": {"rep_norm": "layer"},
    "rms norm, exact": {"rep_norm": "rms", "contraction": "exact"},
    "per token": {"broadcast": "per_token"},
    "softmax": {"broadcast": "softmax", "iterations": 2},
    "positions": {"rep_pos": True},
    "learned": {"init": "learned", "broadcast": "per_token"},
}


def options_beyond_the_paper(mesh):
    """Every option, with and without padding, some of it an element's all."""
    for options in OPTIONS.values():
        layer = partial(CBSA, 12, 2, **FEW, **options)
        check(mesh, layer, IMAGE)
        check(mesh, layer, IMAGE, padding=True)
    check(mesh, partial(CBSA, 12, 2, **FEW, num_prefix_tokens=0, broadcast="softmax"), IMAGE, prefix=0,
          padding="empty")  # fmt: skip
    for options in ({"broadcast": "per_token"}, {"rep_norm": "layer"}):
        check(mesh, partial(CBSA, 12, 2, **FEW, **options), IMAGE, dtype=torch.float32, call=under_autocast)
    layer = partial(CBSA, 12, 2, **FEW, rep_norm="layer", iterations=2)
    check(mesh, layer, IMAGE, call=recomputed, padding=True)
    if mesh.size() == 2:
        layer = partial(layer, dwconv=3)
        check(mesh, layer, IMAGE, known=True, call=partial(compiled, backend="aot_eager"))


class Largest(TorchDispatchMode):
    """The numbers of the largest result."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_iter(out) if isinstance(x, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return out


def nothing_of_size_n_m(mesh):
    """However many representatives there are, no result is much larger than the tokens."""
    group = ContextGroup.of(mesh)
    for options in ({}, *OPTIONS.values()):
        layer = shard_attention(CBSA(8, 2, representatives=(8, 8), **options), group)
        x = torch.randn(1, 1 + 60 * 10, 8, requires_grad=True)
        with Largest() as largest:
            layer(x, Shard((60, 10), group.rank * 60, group.size * 60)).sum().backward()
        assert largest.numbers <= 2 * max(x.numel(), 64 * 64), options  # the tokens times m are 32 times more


def convolution(mesh):
    """A depth-wise convolution reads rows of other processes, also through those that have few."""
    for side, grid in ((3, IMAGE), (7, IMAGE), (3, (7,)), (5, (7,)), (3, (7, 3, 2))):
        layer = partial(CBSA, 12, 2, representatives=(2,) * len(grid), dwconv=side)
        check(mesh, layer, grid, padding=side == 7)
    check(mesh, partial(CBSA, 12, 2, **FEW, num_prefix_tokens=3, dwconv=3), IMAGE, prefix=3, call=recomputed)
    check(mesh, partial(MSSA, 12, 2, contraction="exact", dwconv=3), IMAGE)
    group = ContextGroup.of(mesh)
    layer = CBSA(12, 2, **FEW, dwconv=5)
    x = torch.randn(2, 1 + 4 * 3, 12, requires_grad=True)
    with count_traffic() as traffic:
        shard_attention(layer, group)(x, Shard((4, 3), group.rank * 4, group.size * 4)).sum().backward()
    sent = sum(costs.convolution_bytes(layer, (4, 3), batch=2))
    assert sent == 2 * 4 * 2 * 3 * 12 * 4  # both ways, 4 rows of 2 images, 3 tokens of 12 channels of 4 bytes
    neighbours = (group.rank > 0) + (group.rank < group.size - 1)
    assert traffic.bytes["all_to_all"] == sent * neighbours / 2
    with pytest.raises(ValueError, match="give the layout of the 6 patch tokens"):
        shard_attention(MSSA(12, 2, contraction="exact", dwconv=3), group)(torch.randn(2, 7, 12))
    with pytest.raises(ValueError, match=r"grid=\(6,\): the convolution runs over 2 axes"):
        shard_attention(MSSA(12, 2, contraction="exact", dwconv=3), group)(torch.randn(2, 7, 12), 6)


def every_layer_recomputed(mesh):
    """Activation checkpointing repeats the collectives of the forward within the backward."""
    for layer in (CBSA, TSSA, LinearAttention, LinearCBSA, ChannelCBSA, partial(MSSA, contraction="exact")):
        check(mesh, partial(layer, 12, 2), IMAGE, call=recomputed, padding=layer is not ChannelCBSA)


def large_scores(mesh):
    """Scores of hundreds, and padding alone in some processes: nothing overflows."""
    group = ContextGroup.of(mesh)
    layer = shard_attention(CBSA(12, 2, representatives=4, num_prefix_tokens=0), group)
    x = -200 + torch.randn(2, 5, 12)
    mask = torch.full((2, 5), group.rank == 0)
    with torch.no_grad():
        layer.proj.weight.fill_(1)
    x.requires_grad_()
    layer(x, 5, mask).sum().backward()
    assert x.grad.isfinite().all()


def bad_shards(mesh):
    """Every process gets the same error, whichever of them is wrong."""
    group = ContextGroup.of(mesh)
    layer, last = shard_attention(CBSA(12, 2, **FEW), group), group.rank == group.size - 1
    for error, message, width, batch, dtype, mask in (
        (ValueError, r"grid\[1\] must be the same", 4 if last else 3, 2, torch.float32, False),
        (ValueError, "batch size must be the same", 3, 3 if last else 2, torch.float32, False),
        (ValueError, "mask must be the same", 3, 2, torch.float32, last),
        (
            TypeError,
            r"dtype must be the same.*float64",
            3,
            2,
            torch.float64 if last else torch.float32,
            False,
        ),
    ):
        x = torch.randn(batch, 1 + 2 * width, 12, dtype=dtype)
        given = torch.ones(x.shape[:2], dtype=torch.bool) if mask else None
        with pytest.raises(error, match=message):
            layer(x, (2, width), given)
    with pytest.raises(ValueError, match=r"has 6 patch tokens and grid=\(3, 3\)"):
        layer(torch.randn(2, 7, 12), (3, 3) if last else (2, 3))
    with pytest.raises(ValueError, match="give the layout of the 6 patch tokens"):
        layer(torch.randn(2, 7, 12))
    with pytest.raises(ValueError, match="must have the same rank"):
        layer(torch.randn(2, 7, 12), 6)
    for shard in (Shard((3, 3), 0, 3 * group.size), Shard((2, 3), -1, 9), Shard((2, 3), 8, 9)):
        with pytest.raises(ValueError, match=r"does not describe the 6 patch tokens of this process"):
            layer(torch.randn(2, 7, 12), shard)
    with pytest.raises(ValueError, match=r"rank of grid must be the same .*\[2, .*1\] by process"):
        layer(torch.randn(2, 7, 12), 6 if last else (2, 3))
    with pytest.raises(ValueError, match="has 9 axes: tokens can be spread on at most 8"):
        layer(torch.randn(2, 7, 12), (1,) * 7 + (2, 3))


CASES = {
    **{
        f"cbsa {contraction}": partial(
            check, layer=partial(CBSA, 12, 2, **FEW, contraction=contraction), grid=IMAGE
        )
        for contraction in ("softmax", "exact", "none")
    },
    "cbsa learned": partial(check, layer=partial(CBSA, 12, 2, **FEW, init="learned"), grid=IMAGE),
    "cbsa stop-gradient": partial(check, layer=partial(CBSA, 12, 2, **FEW, stop_gradient=True), grid=IMAGE),
    "cbsa tied": partial(check, layer=partial(CBSA, 12, 2, **FEW, tied=True), grid=IMAGE),
    "cbsa more windows than rows": partial(
        check, layer=partial(CBSA, 12, 2, representatives=(9, 4)), grid=IMAGE
    ),
    "cbsa many windows": partial(check, layer=partial(CBSA, 12, 2, representatives=(35, 1)), grid=IMAGE),
    "cbsa without prefix": partial(
        check, layer=partial(CBSA, 12, 2, **FEW, num_prefix_tokens=0), grid=IMAGE, prefix=0
    ),
    "cbsa three prefix tokens": partial(
        check, layer=partial(CBSA, 12, 2, **FEW, num_prefix_tokens=3), grid=IMAGE, prefix=3
    ),
    "cbsa sequence": partial(check, layer=partial(CBSA, 12, 2, representatives=4), grid=(7,)),
    "cbsa volume": partial(check, layer=partial(CBSA, 12, 2, representatives=(2, 2, 2)), grid=(7, 3, 2)),
    "cbsa masked": partial(check, layer=partial(CBSA, 12, 2, **FEW), grid=IMAGE, padding=True),
    "cbsa masked, many windows": partial(
        check, layer=partial(CBSA, 12, 2, representatives=(35, 1)), grid=IMAGE, padding=True
    ),
    "cbsa masked sequence": partial(
        check, layer=partial(CBSA, 12, 2, representatives=4), grid=(7,), padding=True
    ),
    "cbsa masked, an element all padding": partial(
        check,
        layer=partial(CBSA, 12, 2, **FEW, num_prefix_tokens=0),
        grid=IMAGE,
        prefix=0,
        padding="empty",
    ),
    "tssa": partial(check, layer=partial(TSSA, 12, 2), grid=IMAGE),
    "tssa masked": partial(check, layer=partial(TSSA, 12, 2), grid=IMAGE, padding=True),
    "linear": partial(check, layer=partial(LinearAttention, 12, 2), grid=IMAGE),
    "linear masked": partial(
        check, layer=partial(LinearAttention, 12, 2, kernel="relu"), grid=IMAGE, padding=True
    ),
    "linear cbsa": partial(check, layer=partial(LinearCBSA, 12, 2), grid=IMAGE),
    "linear cbsa masked": partial(check, layer=partial(LinearCBSA, 12, 2), grid=IMAGE, padding=True),
    "channel cbsa": partial(check, layer=partial(ChannelCBSA, 12, 2), grid=IMAGE),
    "exact mssa": partial(check, layer=partial(MSSA, 12, 2, contraction="exact"), grid=IMAGE),
    "exact mssa masked": partial(
        check, layer=partial(MSSA, 12, 2, contraction="exact"), grid=IMAGE, padding=True
    ),
    "cbsa float32": partial(check, layer=partial(CBSA, 12, 2, **FEW), grid=IMAGE, dtype=torch.float32),
    "cbsa autocast": partial(
        check, layer=partial(CBSA, 12, 2, **FEW), grid=IMAGE, dtype=torch.float32, call=under_autocast
    ),
    "tssa autocast": partial(
        check, layer=partial(TSSA, 12, 2), grid=IMAGE, dtype=torch.float32, call=under_autocast
    ),
    "linear autocast": partial(
        check, layer=partial(LinearAttention, 12, 2), grid=IMAGE, dtype=torch.float32, call=under_autocast
    ),
    "options beyond the paper": options_beyond_the_paper,
    "nothing of size N×m": nothing_of_size_n_m,
    "convolution": convolution,
    "every layer recomputed": every_layer_recomputed,
    "cbsa compiled": partial(
        check,
        layer=partial(CBSA, 12, 2, **FEW),
        grid=IMAGE,
        known=True,
        call=partial(compiled, backend="aot_eager"),
    ),
    "tssa compiled": partial(
        check, layer=partial(TSSA, 12, 2), grid=IMAGE, known=True, call=partial(compiled, backend="aot_eager")
    ),
    "bytes": bytes_do_not_depend_on_n,
    "large scores": large_scores,
    "bad shards": bad_shards,
}


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_over_processes(outcomes, processes, case):
    for rank, error in enumerate(outcomes(processes)[case]):
        assert error is None, f"process {rank}: {error}"


def group_of_one():
    return ContextGroup("alone", 0, 1)


@pytest.mark.parametrize("kind", [MSSA, MHSA])
def test_layers_that_compare_all_tokens_are_refused(kind):
    with pytest.raises(ValueError, match=f"blocks.1.attn is an {kind.__name__}, which compares every token"):
        shard_attention(kind(12, 2), group_of_one(), "blocks.1.attn")


def test_options_without_a_sharded_form_are_refused():
    with pytest.raises(ValueError, match="legacy_pool=True"):
        shard_attention(CBSA(12, 2, legacy_pool=True), group_of_one())
    with pytest.raises(TypeError, match="is a Other"):
        shard_attention(type("Other", (CBSA,), {})(12, 2), group_of_one())


def test_a_sharded_layer_shares_its_parameters():
    layer = CBSA(12, 2)
    sharded = shard_attention(layer, group_of_one())
    assert sharded.proj.weight is layer.proj.weight
    assert list(sharded.state_dict()) == list(layer.state_dict())

    assert type(layer) is CBSA
    with pytest.raises(ValueError, match="is a ShardedCBSA, whose tokens are spread already"):
        shard_attention(sharded, group_of_one())
