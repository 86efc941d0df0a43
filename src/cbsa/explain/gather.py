"""What the page holds of one image in one model, taken by the probes of :mod:`cbsa.analysis`."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cbsa.analysis import (
    Anatomy,
    CodingRates,
    LayerFactors,
    Representatives,
    attention_factors,
    coding_rates,
    reduced_coding_rates,
    representatives,
    token_states,
)
from cbsa.analysis.probing import probing
from cbsa.analysis.projection import principal, token_planes
from cbsa.explain.models import Subject
from cbsa.explain.pack import NOT_FINITE, Packer

MOST_BYTES = 192 << 20  # of the factors of one image in one model, before they are deflated
_SMALL = 100_000  # entries of all tokens up to which threads wait for each other rather than help
_TOP = 5
_RATES = ("input", "attention", "feed_forward")


def gather(subject: Subject, pixels: Tensor) -> dict[str, Any]:
    """Run a model on one image (1, C, S, S), and return what the page needs, ready for JSON.

    Attention is kept as factors (A_k of m×N, or queries and keys of N×p a head), never as N×N maps.
    """
    check_stored_size(subject)
    with _threads_for(tokens_of(subject) * subject.model.embed_dim):
        return _gather(subject, pixels)


def _gather(subject: Subject, pixels: Tensor) -> dict[str, Any]:
    packer = Packer()
    seen = Anatomy(subject.model).layers
    factors = attention_factors(subject.model, pixels)
    layers = [
        {"attention": layer.title, **_store_factors(packer, found)}
        for layer, found in zip(seen, factors.factors, strict=True)
    ]
    states = token_states(subject.model, pixels)[:, 0]
    prefix = states.shape[1] - math.prod(factors.grid)
    if any(layer["kind"] == "extraction" for layer in layers):
        _add_representatives(layers, packer, subject, pixels)
    return {
        "grid": list(factors.grid),
        "prefix": prefix,  # tokens before the patches
        "cls": subject.model.cls_token is not None,  # whether the first of them is CLS
        "heads": seen[0].num_heads,
        "layers": layers,
        "states": _states(packer, states, prefix),
        "rates": _rates(coding_rates(subject.model, pixels)),
        "predictions": _predictions(subject, pixels),
        "bytes": packer.text(),
    }


def check_stored_size(subject: Subject) -> None:
    """Raise if the factors at this resolution would make a page that no browser opens."""
    tokens, total = tokens_of(subject), 0
    for layer in Anatomy(subject.model).layers:
        if layer.kind == "extraction":
            count = tokens if layer.num_representatives is None else layer.num_representatives
            width = count * (1 if layer.transposes else 2)
        else:
            width = 4 * layer.head_dim
        total += layer.num_heads * width * tokens
    if total > MOST_BYTES:
        raise ValueError(
            f"{subject.name} at {subject.data.img_size} px has {tokens:,} tokens, whose factors would take "
            f"{total >> 20} MiB of the page, more than {MOST_BYTES >> 20}: give a smaller --size"
        )


def tokens_of(subject: Subject) -> int:
    """Number of tokens of an image, those before the patches among them."""
    patches = math.prod(math.ceil(subject.data.img_size / side) for side in subject.patch_size)
    return int(subject.model.num_prefix_tokens + patches)


@contextlib.contextmanager
def _threads_for(entries: int) -> Iterator[None]:
    """Work on small tensors in one thread: on a busy machine, several would mostly wait."""
    before = torch.get_num_threads()
    if entries <= _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _store_factors(packer: Packer, layer: LayerFactors) -> dict[str, Any]:
    """Where the factors of a layer are, by name."""
    kept = [tensor[0] for tensor in layer.factors]  # of the one image, (H, …)
    stored: dict[str, Any] = {"kind": layer.kind}
    if layer.kind == "extraction":
        stored["weights"] = packer.weights(kept[0])
        stored["broadcast"] = packer.weights(kept[1]) if len(kept) > 1 else stored["weights"]
    elif layer.kind == "membership":
        stored["share"] = packer.numbers(kept[0], batch=1)
    elif layer.kind in ("softmax", "kernel"):
        stored["queries"] = packer.numbers(kept[0], batch=1)
        stored["keys"] = packer.numbers(kept[1], batch=1) if len(kept) > 1 else stored["queries"]
        stored["temperature"] = layer.scale
    return stored


def _add_representatives(
    layers: list[dict[str, Any]], packer: Packer, subject: Subject, pixels: Tensor
) -> None:
    """Add to the layers that have them where their representatives lie before and after contraction."""
    points: Representatives = representatives(subject.model, pixels)
    rates = reduced_coding_rates(subject.model, pixels)
    for place, index in enumerate(points.layers):
        before, after = points.extracted[place][0], points.contracted[place][0]  # (H, m, p)
        planes, shares = [], []
        for head in range(len(before)):
            both = torch.cat([before[head], after[head]])
            plane, share = principal(both, 2)
            planes.append(plane)
            shares.append(_rounded(sum(share)))
        layers[index]["representatives"] = {
            "points": packer.numbers(torch.stack(planes), batch=1),  # (H, 2 m, 2): extracted, then contracted
            "variance": shares,
            "before": [_rounded(r) for r in rates.representatives_before[place, 0].tolist()],
            "after": [_rounded(r) for r in rates.representatives_after[place, 0].tolist()],
        }


def _states(packer: Packer, states: Tensor, prefix: int = 1) -> dict[str, Any]:
    """Tokens (1 + depth, N, dim) along three principal directions of each state's patches."""
    if not bool(states.isfinite().all()):
        raise ValueError(NOT_FINITE)
    planes, variance, spread = token_planes(states, prefix)
    return {
        "points": packer.numbers(planes, batch=0),
        "variance": [[_rounded(share) for share in shares] for shares in variance],
        "spread": [_rounded(value) for value in spread],
    }


def _rates(rates: CodingRates) -> dict[str, Any]:
    """Coding rates as lists by layer and head, and zeros of ISTA by layer."""
    names = [*_RATES, *(f"normalized_{name}" for name in _RATES)]
    tables = {name: [[_rounded(v) for v in row] for row in getattr(rates, name).tolist()] for name in names}
    sparsity = [None if math.isnan(v) else _rounded(v) for v in rates.sparsity.tolist()]
    return tables | {"sparsity": sparsity}


def _predictions(subject: Subject, pixels: Tensor) -> list[dict[str, Any]]:
    """The most probable classes; none for a model without a classifier of the whole image."""
    if subject.model.num_classes == 0 or not subject.model.global_pool:
        return []
    with probing(subject.model):
        probabilities = subject.model(pixels)[0].double().softmax(-1)
    best = probabilities.topk(min(_TOP, len(probabilities)))
    return [
        {"label": subject.label(index), "probability": _rounded(value)}
        for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _rounded(value: float) -> float:
    """Six significant digits: more than a reader sees, fewer bytes."""
    return float(f"{value:.6g}")
