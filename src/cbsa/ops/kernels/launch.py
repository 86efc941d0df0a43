"""How the kernels are launched: block sizes, splits of the tokens, memory in between.

Two regimes, by shape. *Whole*: one program serves a head of an image, everything in one launch, nothing kept
for the backward but the inputs. *Split*: the tokens of a head are cut over several programs, so that few
heads fill the device too, and what is gathered from them is put together in a fixed order.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from cbsa.ops.kernels import backward, forward, whole
from cbsa.ops.kernels.ahead import launched_ahead
from cbsa.ops.kernels.gpu import processors_of, shared_memory_of
from cbsa.ops.kernels.splits import Launch, best_split
from cbsa.ops.kernels.sums import add_up

_BLOCK_REPS, _SMALL_BLOCK_REPS = 64, 32  # the latter where more would not fit, or spill
_FEW_TOKENS = 256  # so many tokens are one program's work, however few the heads
_FEW_SPLITS = 16  # so many are put together by the kernel that needs the result
_MERGED = 8192  # numbers, of all splits, that a program puts together in one step
_NARROW = 64  # dimensions of a head up to which everything is at its best
_HALF_TAKES, _SINGLE_TAKES = 160 << 10, 192 << 10  # shared memory, of tokens in 16 and 32 bits at most
_WIDE = torch.float32

Kept = tuple[Tensor, Tensor, Tensor, Tensor]
Parts = tuple[Tensor, Tensor | None, Tensor]


# Chosen by measurement on an H200, for 16-bit tokens and heads of up to 64 dimensions; where there are
# several, the one that cuts the tokens at hand best is taken.
TUNED: dict[str, tuple[Launch, ...]] = {
    "forward_whole": (Launch(64, 4, 4, 4, 128),),
    "backward_whole": (Launch(64, 4, 3, 2),),
    "gather_whole": (Launch(64, 4, 3, 3, 168),),
    "extract": (Launch(64, 4, 4, 4), Launch(64, 4, 4, 3), Launch(128, 4, 4, 2)),
    "broadcast": (Launch(64, 4, 4, 4),),
    "gather": (Launch(64, 4, 3, 2),),
    "spread": (Launch(64, 4, 3, 2),),
    # With values of their own tokens take more shared memory; these, and Agent attention's, are not measured.
    "forward_whole_kv": (Launch(64, 4, 3, 4, 128),),
    "gather_whole_kv": (Launch(64, 4, 2, 3, 168),),
    "extract_kv": (Launch(64, 4, 3, 4), Launch(64, 4, 4, 3), Launch(128, 4, 3, 2)),
    "agent_broadcast": (Launch(64, 4, 3, 4),),
    "agent_spread": (Launch(64, 4, 3, 2),),
}


def is_whole(w: Tensor, m: int) -> bool:
    """Whether one program serves a whole head."""
    batch, heads, n, _ = w.shape
    return not in_blocks(w, m) and (n <= _FEW_TOKENS or batch * heads >= processors_of(w.device))


def in_blocks(w: Tensor, m: int) -> bool:
    """Whether m representatives take several blocks."""
    return m > _block_reps(w)


def fits(w: Tensor) -> bool:
    """Whether the kernels find enough shared memory: not for wide heads in float32 on small GPUs."""
    return not (w.element_size() == 4 and w.shape[-1] > _NARROW and _is_small(w))


def _is_small(w: Tensor) -> bool:
    """Whether the GPU has too little shared memory for blocks of 64 representatives, if heads are wide."""
    return shared_memory_of(w.device) < (_SINGLE_TAKES if w.element_size() == 4 else _HALF_TAKES)


def _block_reps(w: Tensor) -> int:
    """Representatives of a block, at most."""
    single, wide = w.element_size() == 4, w.shape[-1] > _NARROW
    few = (single and wide) or ((single or wide) and _is_small(w))
    return _SMALL_BLOCK_REPS if few else _BLOCK_REPS


class Problem:
    """What all launches of one call share: tokens w, which are keys if they have values v of their own."""

    def __init__(
        self, w: Tensor, v: Tensor | None, reps: Tensor, mask: Tensor | None, scale: float, softmax: bool
    ) -> None:
        self.w, self.reps = unit_rows(w), unit_rows(reps)
        self.v = None if v is None else unit_rows(v)
        # Strides of what is read; kernels know nothing of an argument that is None.
        of_v = (None,) * 3 if self.v is None else self.v.stride()[:3]
        self.strides = (*self.w.stride()[:3], *of_v, *self.reps.stride()[:3])
        self.batch, self.heads, self.n, d = w.shape
        self.m = reps.shape[2]
        self.programs = self.batch * self.heads
        self.scale, self.scale2 = scale, scale * math.log2(math.e)
        self.mask = self.w if mask is None else mask.contiguous()  # not read without a mask
        self.rows = {
            "D": d,
            "BD": max(16, triton.next_power_of_2(d)),
            "BM": min(_block_reps(w), max(16, triton.next_power_of_2(self.m))),
        }
        self.blocks = triton.cdiv(self.m, self.rows["BM"])  # of representatives
        # float32 is multiplied on tensor cores in three TF32 products, nearly exact
        self.precision = {"PRECISION": "tf32x3" if w.element_size() == 4 else "tf32"}
        self.tokens = {"HAS_MASK": mask is not None, **self.precision}
        self.contraction = {"SOFTMAX": softmax, "REP_BLOCKS": self.blocks, **self.precision}
        self.ahead = launched_ahead(w.device)
        self.early = {"PDL": self.ahead["PDL"]}

    def launches(self, kernel: str) -> tuple[Launch, ...]:
        """The launches of a kernel to choose from; wide rows take smaller blocks and fewer stages."""
        tuned = TUNED[kernel] if self.v is None else TUNED.get(f"{kernel}_kv", TUNED[kernel])
        if self.w.element_size() == 4:
            warps = 8 if _is_small(self.w) else 4  # with fewer representatives in a block, without spills
            return tuple(x._replace(block=32, stages=1, warps=warps, registers=None) for x in tuned)
        if self.w.shape[-1] > _NARROW:
            return tuple(x._replace(block=64, stages=2, warps=8, registers=None) for x in tuned)
        return tuned

    def options(self, launch: Launch) -> dict[str, Any]:
        """Arguments of a kernel that reads tokens."""
        resources = {"num_warps": launch.warps, "num_stages": launch.stages}
        if launch.registers is not None:
            resources["maxnreg"] = launch.registers
        return {"BN": launch.block, **self.rows, **self.tokens, **resources}

    def split(self, kernel: str, programs: int) -> tuple[dict[str, Any], int, int]:
        """A kernel's options, the tokens of a split, and the number of splits."""
        launches = self.launches(kernel)
        launch, splits = best_split(launches, self.n, programs, processors_of(self.w.device))
        chunk = triton.cdiv(triton.cdiv(self.n, launch.block), splits) * launch.block
        return self.options(launch), chunk, triton.cdiv(self.n, chunk)

    def deal(self, kernel: str) -> tuple[dict[str, Any], int, tuple[int, int, int]]:
        """A kernel's options; programs among which the blocks of all heads are dealt out; and how.

        That is: blocks for each, how many get one more, and the most programs that have a share of a head.
        """
        launch = self.launches(kernel)[0]
        blocks = triton.cdiv(self.n, launch.block)
        programs = min(launch.programs * processors_of(self.w.device), self.programs * blocks)
        each, extra = divmod(self.programs * blocks, programs)
        return self.options(launch), programs, (each, extra, triton.cdiv(blocks - 1, each) + 1)

    def are_few(self, splits: int) -> bool:
        """Whether the kernel that needs the sums of the splits adds them up itself."""
        return self.blocks == 1 and splits <= _FEW_SPLITS

    def parts(self, splits: int, *last: int) -> Tensor:
        """Memory for what each split leaves for every representative, (splits, B, H, m, …) in float32."""
        return self.w.new_empty((splits, self.batch, self.heads, self.m, *last), dtype=_WIDE)


def run_forward(
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    scale: float,
    softmax: bool,
    out: Tensor,
    kept: Kept | None,
    v: Tensor | None = None,
) -> None:
    """Write O; in the split regime D and the log₂-sum-exp of A; with several blocks C and its softmax's.

    With values v of their own, w is the keys.
    """
    call = Problem(w, v, reps, mask, scale, softmax)
    w, reps, mask = call.w, call.reps, call.mask
    step_rep, step_out = step_rep.contiguous(), step_out.contiguous()
    if kept is None:
        options = call.options(call.launches("forward_whole")[0])
        whole.forward_whole[(call.programs,)](
            w, call.v, reps, mask, step_rep, step_out, out, call.heads, call.n, call.m, call.scale2,
            *call.strides, *out.stride()[:3], **options, SOFTMAX=softmax,
        )  # fmt: skip
        return
    delta, lse, c, lse_c = kept
    part_max, part_sum, part_acc = parts = extract(call)
    splits = part_max.shape[0]
    few = call.are_few(splits)
    if not few:
        merge(call, parts, delta, lse)
    kappa_c = reps.new_empty(reps.shape)
    forward.contract[(call.programs, call.blocks)](
        reps, delta, lse, part_max, part_sum, part_acc, step_rep, step_out, c, lse_c, kappa_c,
        call.heads, call.m, splits, call.scale2, *reps.stride()[:3],
        **call.rows, **call.contraction, BS=_FEW_SPLITS if few else 0, **call.ahead,
    )  # fmt: skip
    broadcast(call, lse, kappa_c, out)


def broadcast(call: Problem, lse: Tensor, kappa_c: Tensor, out: Tensor) -> None:
    """Write O = κ·AᵀC from κC in the dtype of the tokens."""
    options, chunk, splits = call.split("broadcast", call.programs)
    forward.broadcast[(call.programs, splits)](
        call.w, call.reps, call.mask, lse, kappa_c, out, call.heads, call.n, call.m, chunk, call.scale2,
        *call.w.stride()[:3], *call.reps.stride()[:3], *out.stride()[:3],
        **options, REP_BLOCKS=call.blocks, **call.ahead,
    )  # fmt: skip


def extract(call: Problem, alone: tuple[Tensor, Tensor] | None = None) -> Parts:
    """Row maxima, sums and accumulators of the extraction, of each split of the tokens.

    A single split writes D and the log₂-sum-exp of A to ``alone``, if that is given; the sums are None then.
    """
    options, chunk, splits = call.split("extract", call.programs * call.blocks)
    parts: Parts
    if alone is not None and splits == 1:
        delta, lse = alone
        parts = lse, None, delta
    else:
        parts = call.parts(splits), call.parts(splits), call.parts(splits, call.rows["D"])
    forward.extract[(call.programs, call.blocks, splits)](
        call.w, call.v, call.reps, call.mask, *parts,
        call.heads, call.n, call.m, chunk, call.scale2, *call.strides, **options, **call.early,
    )  # fmt: skip
    return parts


def extract_all(call: Problem, delta: Tensor, lse: Tensor) -> None:
    """Write D, in the dtype of its memory, and the log₂-sum-exp of A."""
    parts = extract(call, (delta, lse))
    if parts[1] is not None:
        merge(call, parts, delta, lse)


def merge(call: Problem, parts: Parts, delta: Tensor, lse: Tensor) -> None:
    """Write D and the log₂-sum-exp of A from the splits of :func:`extract`."""
    splits = parts[0].shape[0]
    at_once, num_rows = _splits_at_once(splits), call.programs * call.m
    merged = max(1, _MERGED // at_once // call.rows["BD"])
    forward.merge[(triton.cdiv(num_rows, merged),)](
        delta, lse, *parts, num_rows, splits,
        D=call.rows["D"], BD=call.rows["BD"], BR=merged, BS=at_once, **call.ahead,
    )  # fmt: skip


def run_backward(
    grad: Tensor,
    w: Tensor,
    reps: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    mask: Tensor | None,
    kept: Kept | None,
    scale: float,
    softmax: bool,
    gradients: tuple[Tensor, Tensor | None, Tensor, Tensor],
    v: Tensor | None = None,
    grad_v: Tensor | None = None,
) -> None:
    """Write the gradients with respect to w, reps (if wanted), step_rep, step_out, and v if there is one.

    ``grad_v`` must lie in memory as the gradient of w does.
    """
    grad_w, grad_reps, grad_step_rep, grad_step_out = gradients
    call = Problem(w, v, reps, mask, scale, softmax)
    grad, step_rep, step_out = unit_rows(grad), step_rep.contiguous(), step_out.contiguous()
    # partial sums of the steps' gradients
    steps = call.w.new_empty((2, call.programs, call.blocks), dtype=_WIDE).unbind()
    if kept is None:
        _whole_backward(call, grad, step_rep, step_out, (grad_w, grad_v), grad_reps, steps)
    else:
        _split_backward(call, grad, step_rep, step_out, kept, (grad_w, grad_v), grad_reps, steps)
    backward.add_steps[(call.heads,)](
        *steps, grad_step_rep, grad_step_out, call.batch, call.heads, call.blocks, BLOCK=256, **call.ahead
    )


def _whole_backward(
    call: Problem,
    grad: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    of_tokens: tuple[Tensor, Tensor | None],
    grad_reps: Tensor | None,
    steps: tuple[Tensor, ...],
) -> None:
    w, reps = call.w, call.reps
    strides = (*call.strides, *grad.stride()[:3])
    softmax = call.contraction["SOFTMAX"]
    if call.n <= _FEW_TOKENS:
        options = call.options(call.launches("backward_whole")[0])
        whole.backward_whole[(call.programs,)](
            w, call.v, reps, grad, call.mask, step_rep, step_out,
            *of_tokens, w if grad_reps is None else grad_reps, *steps,
            call.heads, call.n, call.m, call.scale, call.scale2, *strides, *of_tokens[0].stride()[:3],
            **options, SOFTMAX=softmax, WITH_Q=grad_reps is not None, **call.early,
        )  # fmt: skip
        return
    # The two passes as two kernels: the first takes fewer registers, the second can be split.
    lse, row_dot = call.parts(2).unbind()
    grad_r = call.parts(1, w.shape[-1])[0]
    grad_delta, kappa_c = (reps.new_empty(reps.shape) for _ in range(2))
    options = call.options(call.launches("gather_whole")[0])
    whole.gather_whole[(call.programs,)](
        w, call.v, reps, grad, call.mask, step_rep, step_out,
        lse, grad_r, grad_delta, kappa_c, row_dot, *steps,
        call.heads, call.n, call.m, call.scale, call.scale2, *strides,
        **options, SOFTMAX=softmax, PDL=False,
    )  # fmt: skip
    spread(call, grad, (lse, kappa_c, grad_delta, row_dot), grad_r, of_tokens, grad_reps, {"PDL": False})


def _split_backward(
    call: Problem,
    grad: Tensor,
    step_rep: Tensor,
    step_out: Tensor,
    kept: Kept,
    of_tokens: tuple[Tensor, Tensor | None],
    grad_reps: Tensor | None,
    steps: tuple[Tensor, ...],
) -> None:
    reps, (delta, lse, c, lse_c) = call.reps, kept
    u = gather(call, grad, lse)
    splits = u.shape[0]
    if not call.are_few(splits):
        u, splits = add_splits(u, None, torch.empty_like(delta)), 1
    grad_r, row_dot = torch.empty_like(delta), torch.empty_like(lse)
    grad_delta, kappa_c = (reps.new_empty(reps.shape) for _ in range(2))
    # Of several blocks, loads ahead of their use would take more shared memory than there is.
    resources = {} if call.blocks == 1 else {"num_warps": 8, "num_stages": 1}
    backward.contract_backward[(call.programs, call.blocks)](
        reps, delta, c, lse_c, u, step_rep, step_out, grad_r, grad_delta, kappa_c, row_dot, *steps,
        call.heads, call.m, splits, call.scale, call.scale2, *reps.stride()[:3],
        **call.rows, **call.contraction, **call.ahead, **resources,
    )  # fmt: skip
    spread(call, grad, (lse, kappa_c, grad_delta, row_dot), grad_r, of_tokens, grad_reps, call.ahead)


def gather(call: Problem, grad: Tensor, lse: Tensor) -> Tensor:
    """U = A G in float32, one sum for each split of the tokens, (splits, B, H, m, d)."""
    options, chunk, splits = call.split("gather", call.programs * call.blocks)
    u = call.parts(splits, call.rows["D"])
    backward.gather[(call.programs, call.blocks, splits)](
        call.w, call.reps, grad, call.mask, lse, u, call.heads, call.n, call.m, chunk, call.scale2,
        *call.w.stride()[:3], *call.reps.stride()[:3], *grad.stride()[:3], **options, **call.early,
    )  # fmt: skip
    return u


def spread(
    call: Problem,
    grad: Tensor | None,
    of_reps: tuple[Tensor, Tensor, Tensor, Tensor],
    grad_r: Tensor | None,
    of_tokens: tuple[Tensor, Tensor | None],
    grad_reps: Tensor | None,
    ahead: dict[str, bool],
) -> None:
    """The second pass of the backward: dw, dv if there is a v, and dQ if wanted; launched ``ahead`` or not.

    ``of_reps`` is the log₂-sum-exp of A, κC, dD and δ. Without ``grad``, A broadcasts nothing: no κC is used.
    ``grad_r`` is what else there is to dQ.
    """
    w, v, reps, mask, d = call.w, call.v, call.reps, call.mask, call.rows["D"]
    sizes = (call.heads, call.n, call.m)
    inputs = (*call.strides, *((None,) * 3 if grad is None else grad.stride()[:3]))
    outputs = of_tokens[0].stride()[:3]
    if call.blocks == 1:
        options, programs, dealt = call.deal("spread")
        parts = call.parts(dealt[-1] if grad_reps is not None else 0, d)
        backward.spread[(programs,)](
            w, v, reps, grad, mask, *of_reps, *of_tokens, parts,
            *sizes, call.programs, *dealt, call.scale, call.scale2, *inputs, *outputs,
            **options, WITH_Q=grad_reps is not None, **ahead,
        )  # fmt: skip
    else:
        options, chunk, splits = call.split("spread", call.programs)
        backward.spread_from_blocks[(call.programs, splits)](
            w, v, reps, grad, mask, *of_reps, *of_tokens,
            *sizes, chunk, call.scale, call.scale2, *inputs, *outputs, **options, **ahead,
        )  # fmt: skip
        if grad_reps is not None:
            options, chunk, splits = call.split("spread", call.programs * call.blocks)
            parts = call.parts(splits, d)
            backward.spread_to_queries[(call.programs, call.blocks, splits)](
                w, v, reps, grad, mask, *of_reps, parts,
                *sizes, chunk, call.scale, call.scale2, *inputs, **options, **call.early,
            )  # fmt: skip
    if grad_reps is not None:
        add_splits(parts, grad_r, grad_reps)


def add_splits(parts: Tensor, more: Tensor | None, total: Tensor) -> Tensor:
    """Put the sum of parts (splits, …), and of ``more``, into ``total`` and return it."""
    at_once = _splits_at_once(parts.shape[0])
    return add_up(parts, total, more, at_once=at_once, block=_MERGED // at_once)


def _splits_at_once(splits: int) -> int:
    """Splits that are added up in one step."""
    return min(64, triton.next_power_of_2(splits))


def unit_rows(x: Tensor) -> Tensor:
    """x (B, H, N, d) with adjacent coordinates; other strides may be any."""
    return x if x.stride(-1) == 1 else x.contiguous()
