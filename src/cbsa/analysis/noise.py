"""Robustness: Gaussian noise on the parameters of attention layers."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from timm.models.vision_transformer import Attention as TimmAttention  # type: ignore[attr-defined]
from torch import Tensor, nn

from cbsa._checks import check_choice, check_int, check_number
from cbsa.data.seeding import generator
from cbsa.layers import Attention
from cbsa.ops.precision import accumulation_dtype

PARTS = ("bases", "output", "own")
# By the kind of layer, its modules that are not its own part.
_MODULES: dict[type[nn.Module], dict[str, str]] = {
    Attention: {"proj": "bases", "to_out": "output"},
    TimmAttention: {"qkv": "bases", "proj": "output"},
}
# transformers has a class for each model, in which projections are called alike.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_OF_TRANSFORMERS = dict.fromkeys(_PROJECTIONS, "bases") | dict.fromkeys(("o_proj", "out_proj"), "output")


@contextlib.contextmanager
def perturb(
    model: nn.Module, sigma: float, seed: int = 0, parts: str | Collection[str] = PARTS
) -> Iterator[tuple[str, ...]]:
    """Add noise N(0, σ²) to the parameters of attention layers inside the block, and restore them after it.

    As in the paper's fig. segmentation (middle, right): "Random Gaussian noises with zero mean and standard
    deviation σ are independently added to each parameter of the attention layers in the decoder". σ is
    absolute, not relative to a parameter's size. The norms before the layers belong to the blocks and stay.
    The paper perturbs the decoder of a segmenter: give that decoder as ``model`` to do so; of a whole
    segmenter, the attention layers of the encoder are perturbed too.

    The noise of a parameter depends on the seed and on its name in ``model`` alone: it is the same on every
    device, for every choice of ``parts`` and, up to rounding, in every dtype. Parameters are changed in
    place, so that compiled code and CUDA graphs see it, and are afterwards what they were bit for bit, after
    errors too. A parameter that is shared is perturbed once.

    Args:
        model: any module with attention layers of :mod:`cbsa.layers` in it, with timm's ``Attention``, or
            with attention that has ``q_proj``, ``k_proj`` and ``v_proj``, as models of transformers do,
            adapted by :func:`cbsa.adapt` or not; or such a layer. Other attention, such as the class
            attention in the original ToST and that by which SigLIP pools, is left alone. Of a model of two
            towers both are perturbed, unless one of them is given.
        sigma: standard deviation σ; 0 changes nothing.
        seed: seed of the noise.
        parts: which parameters, one or some of ``"bases"`` (the projections into the heads, U_[K] or query,
            key and value), ``"output"`` (the projection back, unless it is tied to the bases) and
            ``"own"`` (step sizes, temperatures, learned representatives, norms and gates within);
            all by default, as in the paper.

    Yields:
        Names of the parameters that are perturbed.
    """
    check_number("sigma", sigma, at_least=0)
    check_int("seed", seed, at_least=0)
    chosen = _attention_parameters(model, parts)
    saved = [parameter.detach().clone() for parameter in chosen.values()]
    try:
        with torch.no_grad():
            for name, parameter in chosen.items():
                _add_noise(parameter, sigma, name, seed)
        yield tuple(chosen)
    finally:
        with torch.no_grad():
            for parameter, before in zip(chosen.values(), saved, strict=True):
                parameter.copy_(before)


def _add_noise(parameter: nn.Parameter, sigma: float, name: str, seed: int) -> None:
    if sigma == 0:
        return
    dtype = accumulation_dtype(parameter.dtype)
    noise = torch.randn(parameter.shape, generator=generator("perturb", seed, name))  # on the CPU, float32
    parameter.copy_(parameter.to(dtype) + sigma * noise.to(parameter.device, dtype))


def _attention_parameters(model: nn.Module, parts: str | Collection[str]) -> dict[str, nn.Parameter]:
    """Parameters of attention layers that belong to ``parts``, each once, by their names in ``model``."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    wanted = {check_choice("parts", part, PARTS) for part in ([parts] if isinstance(parts, str) else parts)}
    if not wanted:
        raise ValueError(f"parts is empty: expected one or some of {', '.join(PARTS)}")
    layers = [
        (name, module, modules)
        for name, module in model.named_modules()
        if (modules := _modules_of(module)) is not None
    ]
    if not layers:
        raise TypeError(
            f"{type(model).__name__} has no attention layer of cbsa.layers to perturb, nor timm's Attention "
            f"or one with {', '.join(_PROJECTIONS)}: give a model that does"
        )
    chosen: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, layer, modules in layers:
        for name, parameter in layer.named_parameters(prefix):
            inside = name[len(prefix) :].lstrip(".").split(".")[0]
            part = modules.get(inside, "own")
            if part in wanted and id(parameter) not in seen:
                seen.add(id(parameter))
                chosen[name] = parameter
    if not chosen:
        raise ValueError(f"the attention layers have no parameters of parts={sorted(wanted)}: choose others")
    return chosen


def _modules_of(module: nn.Module) -> dict[str, str] | None:
    """Which parts the modules of an attention layer are; None for what is none."""
    for kind, modules in _MODULES.items():
        if isinstance(module, kind):
            return modules
    return _OF_TRANSFORMERS if all(hasattr(module, name) for name in _PROJECTIONS) else None


@dataclass(frozen=True)
class NoiseSweep:
    """Scores under noise, by its standard deviation and seed."""

    sigmas: tuple[float, ...]
    seeds: tuple[int, ...]
    scores: Tensor  # (sigmas, seeds) float64

    @property
    def mean(self) -> Tensor:
        """Mean over the seeds, (sigmas,)."""
        return self.scores.mean(1)

    @property
    def std(self) -> Tensor:
        """Standard deviation over the seeds (n − 1 in the denominator), (sigmas,); NaN for one seed."""
        if len(self.seeds) == 1:
            return torch.full_like(self.mean, torch.nan)
        return self.scores.std(1)

    def table(self) -> list[dict[str, float]]:
        """One row per standard deviation, ready for a CSV file."""
        return [
            {
                "sigma": sigma,
                "mean": self.mean[i].item(),
                "std": self.std[i].item(),
                "lowest": self.scores[i].min().item(),
                "highest": self.scores[i].max().item(),
                "seeds": len(self.seeds),
            }
            for i, sigma in enumerate(self.sigmas)
        ]


def sweep(
    evaluate: Callable[[float, int], float], sigmas: Sequence[float], seeds: Sequence[int] = (0, 1, 2)
) -> NoiseSweep:
    """Score a model under noise of every σ with every seed::

        def accuracy(sigma, seed):
            with perturb(model, sigma, seed):
                return evaluate(model)

        sweep(accuracy, sigmas=[0, 0.01, 0.1]).table()

    Args:
        evaluate: called with σ and the seed; returns a number, such as accuracy or mIoU.
        sigmas: standard deviations, at least one.
        seeds: seeds, at least one.
    """
    for name, values in (("sigmas", sigmas), ("seeds", seeds)):
        if len(values) == 0:
            raise ValueError(f"{name} is empty: give at least one")
        if len(set(values)) != len(values):
            raise ValueError(f"{name} must differ from each other, got {list(values)}")
    for sigma in sigmas:
        check_number("sigmas", sigma, at_least=0)
    numbers = [check_int("seeds", seed, at_least=0) for seed in seeds]
    scores = [[float(evaluate(sigma, seed)) for seed in numbers] for sigma in sigmas]
    return NoiseSweep(tuple(map(float, sigmas)), tuple(numbers), torch.tensor(scores, dtype=torch.float64))
