"""CBSA* and CBSA∨ for the vision models of transformers, by ``attn_implementation=``.

Importing this module registers ``"cbsa_star"`` and ``"cbsa_agent"`` with its ``AttentionInterface``. That
interface hands over queries, keys and values, and no grid: it is taken from the model's config.

- ``config.image_size`` and ``config.patch_size`` give the grid;
- for inputs of another size (interpolated position embeddings) ``config.cbsa_grid = (rows, columns)`` does;
- ``config.cbsa_representatives`` is the layout of the representatives, (8, 8) if the config has none.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from cbsa._checks import check_sizes
from cbsa.adaptation.style import Style

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(f"{error}: it comes with pip install 'cbsa[transformers]'") from error

IMPLEMENTATIONS = {"cbsa_star": "cbsa", "cbsa_agent": "agent"}

# Prefix tokens of the models whose patches lie row by row after them.
_PREFIX_TOKENS = {"vit": 1, "deit": 2, "dinov2": 1, "dinov2_with_registers": 1, "siglip_vision_model": 0}


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
    style = Style(IMPLEMENTATIONS[implementation], getattr(config, "cbsa_representatives", (8, 8)))
    grid, prefix = token_layout(config, query.shape[2])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = style.attend(query, key, value, scale, grid, prefix)
    return mixed.transpose(1, 2).contiguous(), None


def token_layout(config: Any, num_tokens: int) -> tuple[tuple[int, ...], int]:
    """Grid of the patches of a model with this config, and the number of tokens before them."""
    if config.model_type not in _PREFIX_TOKENS:
        raise ValueError(
            f"models of type {config.model_type!r} cannot be adapted; supported are "
            f"{', '.join(map(repr, _PREFIX_TOKENS))}. For one tower of a model of several give a "
            "dictionary, such as attn_implementation={'vision_config': 'cbsa_star'}"
        )
    prefix = _PREFIX_TOKENS[config.model_type] + getattr(config, "num_register_tokens", 0)
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


def _pair(size: Any) -> tuple[int, ...]:
    """Height and width, for which configs have one number or two."""
    sizes = check_sizes("size", size)
    return sizes * 2 if len(sizes) == 1 else sizes


for _name in IMPLEMENTATIONS:
    AttentionInterface.register(_name, partial(attention_forward, _name))
    AttentionMaskInterface.register(_name, sdpa_mask)  # masks reach attention_forward, which refuses them
