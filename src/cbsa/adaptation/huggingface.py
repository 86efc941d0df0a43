"""CBSA*, CBSA∨ and linear attention for the vision models of transformers, by ``attn_implementation=``.

Importing this module registers ``"cbsa_star"``, ``"cbsa_agent"`` and ``"cbsa_linear"`` with its
``AttentionInterface``. That interface hands over queries, keys and values, and no grid: it is taken from the
model's config, as all options are.

- ``config.image_size`` and ``config.patch_size`` give the grid;
- for inputs of another size (interpolated position embeddings) ``config.cbsa_grid = (rows, columns)`` does;
- ``config.cbsa_representatives`` is the layout of the representatives, (8, 8) if the config has none;
- ``config.cbsa_kernel`` and ``config.cbsa_broadcast_scale`` are the other options of a style.
"""

import copy as copying
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from cbsa._checks import check_sizes
from cbsa.adaptation.style import Style

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(f"{error}: it comes with pip install 'cbsa[transformers]'") from error

IMPLEMENTATIONS = {"cbsa_star": "cbsa", "cbsa_agent": "agent", "cbsa_linear": "linear"}
ORIGINAL = "sdpa"  # what style="softmax" goes back to
_OPTIONS = ("representatives", "kernel", "broadcast_scale")  # of a style, in the config with "cbsa_" before
Model = TypeVar("Model", bound=nn.Module)

# Prefix tokens of the models whose patches lie row by row after them.
_PREFIX_TOKENS = {"vit": 1, "deit": 2, "dinov2": 1, "dinov2_with_registers": 1, "siglip_vision_model": 0}


def adapt_transformers(model: Model, style: Style, copy: bool) -> Model:
    """Give all layers of a vision model of transformers a style; see :func:`cbsa.adapt`."""
    assert isinstance(model, PreTrainedModel)
    prefix_tokens(model.config)
    model = copying.deepcopy(model) if copy else model
    by_style = {name: implementation for implementation, name in IMPLEMENTATIONS.items()}
    if style.name != "softmax":
        for option in _OPTIONS:
            setattr(model.config, f"cbsa_{option}", getattr(style, option))
    model.set_attn_implementation(by_style.get(style.name, ORIGINAL))
    return model


def style_of(config: Any, implementation: str) -> Style:
    """The style that an implementation stands for, with the options of the config."""
    given = {
        option: getattr(config, f"cbsa_{option}") for option in _OPTIONS if hasattr(config, f"cbsa_{option}")
    }
    return Style(IMPLEMENTATIONS[implementation], **given)


def attention_forward(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Mix tokens (B, H, N, d) as transformers asks an attention to; the result is (B, N, H, d)."""
    if attention_mask is not None:
        raise ValueError(
            f"attn_implementation={implementation!r} takes no attention_mask; use 'sdpa' for masked attention"
        )
    if dropout > 0:
        raise ValueError(
            f"attention dropout is {dropout}, but attn_implementation={implementation!r} never forms the "
            "weights it drops: set it to 0 in the config"
        )
    config: Any = module.config
    style = style_of(config, implementation)
    grid, prefix = token_layout(config, query.shape[2])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = style.attend(query, key, value, scale, grid, prefix)
    return mixed.transpose(1, 2).contiguous(), None


def token_layout(config: Any, num_tokens: int) -> tuple[tuple[int, ...], int]:
    """Grid of the patches of a model with this config, and the number of tokens before them."""
    prefix = prefix_tokens(config)
    explicit = getattr(config, "cbsa_grid", None)
    if explicit is not None:
        grid = check_sizes("config.cbsa_grid", explicit)
    else:
        sides = zip(_pair(config.image_size), _pair(config.patch_size), strict=True)
        grid = tuple(size // patch for size, patch in sides)
    if len(grid) != 2 or grid[0] * grid[1] != num_tokens - prefix:
        raise ValueError(
            f"a grid of {grid} patches and {prefix} prefix tokens do not make {num_tokens} tokens; for "
            "images of another size than the config's set config.cbsa_grid = (rows, columns)"
        )
    return grid, prefix


def prefix_tokens(config: Any) -> int:
    """How many tokens come before the patches in a model with this config; others are refused by name."""
    if config.model_type not in _PREFIX_TOKENS:
        raise ValueError(
            f"models of type {config.model_type!r} cannot be adapted; supported are "
            f"{', '.join(map(repr, _PREFIX_TOKENS))}. For one tower of a model of several give a "
            "dictionary, such as attn_implementation={'vision_config': 'cbsa_star'}"
        )
    return int(_PREFIX_TOKENS[config.model_type] + getattr(config, "num_register_tokens", 0))


def _pair(size: Any) -> tuple[int, ...]:
    """Height and width, for which configs have one number or two."""
    sizes = check_sizes("size", size)
    return sizes * 2 if len(sizes) == 1 else sizes


for _name in IMPLEMENTATIONS:
    AttentionInterface.register(_name, partial(attention_forward, _name))
    AttentionMaskInterface.register(_name, sdpa_mask)  # masks reach attention_forward, which refuses them
