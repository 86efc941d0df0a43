"""What ``cbsa bench ops`` times. To add a candidate, add an entry to :data:`CANDIDATES`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cbsa.bench import problems
from cbsa.bench.geometry import Geometry
from cbsa.bench.listing import listing, pooled_listing
from cbsa.bench.problems import Function, Problem, pooled_contract_broadcast, sdpa
from cbsa.ops import contract_broadcast

OURS, SDPA, OTHER = "ours", "sdpa", "other"


@dataclass(frozen=True)
class Candidate:
    """One implementation of a problem.

    Attributes:
        name: what it is called on the command line and in results.
        label: what it is called in tables and pictures.
        kind: ``"ours"``, ``"sdpa"`` (what ours is compared with) or ``"other"``.
        problem: what it computes.
        build: makes the function for a size; compiled functions are compiled anew for each.
        devices: where it is timed unless it is asked for by name.
        compiled: whether ``torch.compile`` is part of it.
    """

    name: str
    label: str
    kind: str
    problem: Problem
    build: Callable[[Geometry], Function]
    devices: tuple[str, ...] = ("cpu", "cuda")
    compiled: bool = False


def _compiled(build: Callable[[Geometry], Function]) -> Callable[[Geometry], Function]:
    return lambda geometry: torch.compile(build(geometry), dynamic=False, fullgraph=True)


def _ours(impl: str, **options: Any) -> Callable[[Geometry], Function]:
    return lambda geometry: partial(contract_broadcast, impl=impl, **options)


def _pooled(impl: str) -> Callable[[Geometry], Function]:
    return lambda g: partial(pooled_contract_broadcast, grid=g.grid(), windows=g.windows(), impl=impl)


def _pooled_listing(g: Geometry) -> Function:
    return partial(pooled_listing, grid=g.grid(), windows=g.windows())


def _pinned(backend: SDPBackend | None, tied: bool) -> Callable[[Geometry], Function]:
    """SDPA by one backend; tied takes the same tokens as query, key and value."""

    def attend(*streams: Tensor) -> Tensor:
        q, k, v = streams * 3 if tied else streams
        if backend is None:
            return sdpa(q, k, v)
        with sdpa_kernel(backend):
            return sdpa(q, k, v)

    return lambda geometry: attend


def _flex(geometry: Geometry) -> Function:
    from torch.nn.attention.flex_attention import flex_attention

    attend: Function = torch.compile(flex_attention, dynamic=False)
    return attend


_GPU, _CPU = ("cuda",), ("cpu",)
_CUDNN, _FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION

_ALL = (
    Candidate("auto", "CBSA", OURS, problems.CBSA, _ours("auto")),
    Candidate("triton", "CBSA triton", OURS, problems.CBSA, _ours("triton"), _GPU),
    Candidate("fused-sdpa", "CBSA sdpa", OURS, problems.CBSA, _ours("sdpa")),
    Candidate("reference", "CBSA reference", OURS, problems.CBSA, _ours("reference")),
    Candidate("auto-pooled", "CBSA + pooling", OURS, problems.POOLED, _pooled("auto")),
    Candidate(
        *("auto-pooled-compiled", "CBSA + pooling, compiled", OURS, problems.POOLED),
        *(_compiled(_pooled("auto")), _GPU, True),
    ),
    Candidate("sdpa-cudnn", "SDPA cuDNN", SDPA, problems.SOFTMAX, _pinned(_CUDNN, False), _GPU),
    Candidate("sdpa-flash", "SDPA flash", SDPA, problems.SOFTMAX, _pinned(_FLASH, False), _GPU),
    Candidate("sdpa-default", "SDPA", SDPA, problems.SOFTMAX, _pinned(None, False), _CPU),
    Candidate(
        "sdpa-cudnn-tied", "SDPA cuDNN, q=k=v", SDPA, problems.TIED_SOFTMAX, _pinned(_CUDNN, True), _GPU
    ),
    Candidate(
        "sdpa-flash-tied", "SDPA flash, q=k=v", SDPA, problems.TIED_SOFTMAX, _pinned(_FLASH, True), _GPU
    ),
    Candidate("sdpa-default-tied", "SDPA, q=k=v", SDPA, problems.TIED_SOFTMAX, _pinned(None, True), _CPU),
    Candidate("flex", "flex, compiled", OTHER, problems.SOFTMAX, _flex, _GPU, True),
    Candidate(
        *("linear", "linear attention, compiled", OTHER, problems.LINEAR),
        *(_compiled(problems.linear_attention), _GPU, True),
    ),
    Candidate("linear-eager", "linear attention", OTHER, problems.LINEAR, problems.linear_attention, _CPU),
    Candidate(
        *("tssa", "TSSA, compiled", OTHER, problems.STATISTICS),
        *(_compiled(problems.token_statistics), _GPU, True),
    ),
    Candidate("tssa-eager", "TSSA", OTHER, problems.STATISTICS, problems.token_statistics, _CPU),
    Candidate("agent", "Agent (ours)", OTHER, problems.AGENT, _ours("auto", contraction="none")),
    Candidate("listing", "paper's listing, eager", OTHER, problems.CBSA, lambda g: listing),
    Candidate(
        *("listing-compiled", "paper's listing, compiled", OTHER, problems.CBSA),
        *(_compiled(lambda g: listing), _GPU, True),
    ),
    Candidate("listing-pooled", "paper's listing + pooling", OTHER, problems.POOLED, _pooled_listing, ()),
    Candidate(
        *("listing-pooled-compiled", "paper's listing + pooling, compiled", OTHER, problems.POOLED),
        *(_compiled(_pooled_listing), (), True),
    ),
)
CANDIDATES: dict[str, Candidate] = {candidate.name: candidate for candidate in _ALL}


def default_candidates(device: str) -> list[str]:
    """Candidates that are timed on a device if none are named."""
    return [name for name, candidate in CANDIDATES.items() if device in candidate.devices]
