"""CBSA*, CBSA∨ and linear attention for the vision models of transformers, by ``attn_implementation=``.

Importing this module registers ``"cbsa_star"``, ``"cbsa_agent"`` and ``"cbsa_linear"`` with its
``AttentionInterface``. That interface hands over queries, keys and values, and no grid. :func:`cbsa.adapt`
looks at the patch embedding of the model it is given; in a model that gets its attention by name, the grid
is taken from the config, as all options are:

- ``config.image_size`` and ``config.patch_size`` give the grid;
- for inputs of another size (interpolated position embeddings) ``config.cbsa_grid = (rows, columns)`` does;
- ``config.cbsa_representatives`` is the layout of the representatives, (8, 8) if the config has none;
- ``config.cbsa_kernel``, ``config.cbsa_broadcast_scale`` and ``config.cbsa_broadcast`` are the other options
  of a style.
"""

import copy as copying
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from cbsa._checks import check_sizes
from cbsa.adaptation.layout import MapLayout
from cbsa.adaptation.style import Style

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(f"{error}: it comes with pip install 'cbsa[transformers]'") from error

IMPLEMENTATIONS = {"cbsa_star": "cbsa", "cbsa_agent": "agent", "cbsa_linear": "linear"}
ORIGINAL = "sdpa"  # what style="softmax" goes back to in a model that came with an attention of ours
# Of a style, in the config with "cbsa_" before.
_OPTIONS = ("representatives", "kernel", "broadcast_scale", "broadcast")
Model = TypeVar("Model", bound=nn.Module)

# Prefix tokens of the models whose patches lie row by row after them.
_PREFIX_TOKENS = {"vit": 1, "deit": 2, "dinov2": 1, "dinov2_with_registers": 1, "siglip_vision_model": 0}
KNOWN = tuple(_PREFIX_TOKENS)

# Models of two towers whose vision tower can be adapted: the name of its config.
_TOWERS = {"siglip": "vision_config"}
_LAYOUT = "cbsa_layout"  # where an attention finds the layout that follows its model
_SAVED = "attn_implementation"  # what transformers reads in config.json, and does not write
_MARK = "cbsa_attention"  # what it writes, and leaves alone


def adapt_transformers(model: Model, style: Style, copy: bool) -> Model:
    """Give all layers of a vision model of transformers a style; see :func:`cbsa.adapt`."""
    assert isinstance(model, PreTrainedModel)
    tower = _TOWERS.get(model.config.model_type)
    prefix_tokens(getattr(model.config, tower) if tower else model.config)
    model = copying.deepcopy(model) if copy else model
    config = getattr(model.config, tower) if tower else model.config
    by_style = {name: implementation for implementation, name in IMPLEMENTATIONS.items()}
    attentions = attentions_of(model, config)
    layouts = {id(a.cbsa_layout): a.cbsa_layout for a in attentions if hasattr(a, _LAYOUT)}.values()
    original = config._attn_implementation or ORIGINAL
    if original in IMPLEMENTATIONS:
        original = next((old.original for old in layouts if old.original), ORIGINAL)
    implementation = by_style.get(style.name, original)
    model.set_attn_implementation({tower: implementation} if tower else implementation)
    for old in layouts:
        old.leave()
    if implementation == original:
        for attention in attentions:
            vars(attention).pop(_LAYOUT, None)
        for name in (_SAVED, _MARK):
            vars(config).pop(name, None)
        return model
    for option in _OPTIONS:
        setattr(config, f"cbsa_{option}", getattr(style, option))
    setattr(config, _MARK, implementation)
    layout = MapLayout(prefix_tokens(config), original)
    layout.follow(patch_embedding(model))
    for attention in attentions:
        setattr(attention, _LAYOUT, layout)
    return model


def attentions_of(model: nn.Module, config: Any) -> list[Any]:
    """The attentions of the vision tower: what has projections of its own, and its config."""
    return [m for m in model.modules() if hasattr(m, "q_proj") and getattr(m, "config", None) is config]


def patch_embedding(model: nn.Module) -> nn.Module:
    """The convolution that makes patches of an image: the first, as decoders of masked images have more."""
    return next(module for module in model.modules() if isinstance(module, nn.Conv2d))


def vision_tower(model: nn.Module) -> Any:
    """The part of a model that sees images: itself, or one of its two towers."""
    return model.vision_model if getattr(model.config, "model_type", "") in _TOWERS else model


def _remember(config: Any, implementation: str) -> None:
    """Let ``save_pretrained`` write the attention that :func:`cbsa.adapt` gave a model."""
    vars(config)[_MARK] = vars(config)[_SAVED] = implementation


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
    output_attentions: bool = False,
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
    if output_attentions:
        raise ValueError(
            f"output_attentions=True: attn_implementation={implementation!r} never forms the weights; use "
            "'eager' to see those of softmax attention"
        )
    config: Any = module.config
    style = style_of(config, implementation)
    layout: MapLayout | None = getattr(module, _LAYOUT, None)
    if layout is not None and layout.grid is not None:
        grid, prefix = tuple(layout.grid), layout.num_prefix_tokens
    else:
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


# transformers takes the attention from config.json and forgets it; our mark it sets as an attribute, which
# brings it back: a model that was loaded is saved with its attention.
setattr(PreTrainedConfig, _MARK, property(lambda config: vars(config).get(_MARK), _remember))
for _name in IMPLEMENTATIONS:
    AttentionInterface.register(_name, partial(attention_forward, _name))
    AttentionMaskInterface.register(_name, sdpa_mask)  # masks reach attention_forward, which refuses them
