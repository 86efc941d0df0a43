"""timm's attention with another mixer: the same projections under the same names, in linear time."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

from timm.models.vision_transformer import Attention  # type: ignore[attr-defined]
from torch import Tensor, nn

from cbsa.adaptation.layout import TokenLayout
from cbsa.adaptation.style import Style

_Module = TypeVar("_Module", bound=nn.Module)


class AdaptedAttention(nn.Module):
    """An attention of timm whose tokens are mixed in a :class:`Style`; parameters and names are timm's.

    What all of them share. Each is a subclass of the attention it stands for, :attr:`original`, too, and
    makes queries, keys and values as that one does. :func:`cbsa.adapt` puts them in the place of a model's
    attentions and tells them how the tokens lie.
    """

    original: ClassVar[type[nn.Module]]
    style: Style
    num_prefix_tokens: int = 1
    layout: TokenLayout | None = None

    @classmethod
    def serves(cls, attention: nn.Module) -> bool:
        """Whether this class can take the place of an attention: the original's, or one of its own."""
        return type(attention) is cls.original or isinstance(attention, cls)

    @classmethod
    def take_over(cls, attention: nn.Module, style: Style, layout: TokenLayout) -> Self:
        """An adapted attention with the very modules and parameters of another."""
        adapted = _with_modules_of(cls, attention)
        adapted.style, adapted.layout = style, layout
        return adapted

    def give_back(self) -> nn.Module:
        """timm's own attention, with the very modules and parameters of this one."""
        original = _with_modules_of(self.original, self)
        for name in ("style", "layout"):
            vars(original).pop(name, None)
        return original

    def mix(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix tokens x (B, N, dim), given their q, k, v (B, H, N, d), normalised and rotated."""
        grid, prefix = self._layout(x.shape[1])
        timm: Any = self
        mixed = self.style.attend(q, k, v, timm.scale, grid, prefix)
        mixed = timm.norm(mixed.transpose(1, 2).flatten(2))  # (B, N, H d)
        gate = getattr(self, "gate", None)  # not all releases of timm have one
        mixed = mixed if gate is None else mixed * gate(x).sigmoid()
        out: Tensor = timm.proj_drop(timm.proj(mixed))
        return out

    def _layout(self, tokens: int) -> tuple[Sequence[int] | None, int]:
        """Grid of the patches and number of tokens before them; without a layout, they must form a square."""
        if self.layout is not None:
            return self.layout.grid, self.layout.num_prefix_tokens
        prefix = self.num_prefix_tokens
        patches = tokens - prefix
        if self.style.pools and (patches < 1 or math.isqrt(patches) ** 2 != patches):
            raise ValueError(
                f"{tokens} tokens less num_prefix_tokens={prefix}: {patches} patch tokens do not form a "
                "square, and timm does not tell an attention how its tokens lie. Call cbsa.adapt(model, "
                f"layers=[]) once, or set num_prefix_tokens in a subclass of {type(self).__name__}"
            )
        return None, prefix

    def refuse_masks(self, attn_mask: Tensor | None, is_causal: bool) -> None:
        """Refuse what needs weights between all tokens."""
        if attn_mask is not None or is_causal:
            raise ValueError(
                f"style={self.style.name!r} takes no attn_mask and no is_causal, as its weights are never "
                "formed; use style='softmax' for masked attention"
            )

    def extra_repr(self) -> str:
        """Describe the style in ``print(model)``."""
        return str(self.style)


class AdaptedViTAttention(AdaptedAttention, Attention):
    """The adapted ``Attention`` of timm's ``VisionTransformer``.

    Its subclasses can be given to timm as well: ``timm.create_model(name, attn_layer=CBSAStarAttention)``.
    timm does not tell an attention how tokens lie; until :func:`cbsa.adapt` has seen the model, the patches
    are then taken for a square after :attr:`num_prefix_tokens` tokens. Other options are a subclass's::

        class Fewer(CBSAStarAttention):
            style = Style("cbsa", representatives=(4, 4))
            num_prefix_tokens = 2
    """

    original = Attention

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_dropout(self)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Mix tokens x (B, N, dim): prefix tokens, then patches row by row."""
        self.refuse_masks(attn_mask, is_causal)
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, N, d) each
        return self.mix(x, self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype), v)


class CBSAStarAttention(AdaptedViTAttention):
    """CBSA* for timm's ``attn_layer=``: 8×8 representatives."""

    style = Style("cbsa")


class AgentAttention(AdaptedViTAttention):
    """CBSA∨ (Agent attention) for timm's ``attn_layer=``: 8×8 representatives."""

    style = Style("agent")


class LinearKernelAttention(AdaptedViTAttention):
    """Linear attention with the ReLU kernel for timm's ``attn_layer=``."""

    style = Style("linear")


def check_dropout(attention: Any) -> None:
    """Refuse dropout of weights that are never formed."""
    if attention.attn_drop.p > 0:
        raise ValueError(
            f"attn_drop={attention.attn_drop.p}: linear-time styles never form the weights it drops; create "
            "the model with attn_drop_rate=0"
        )


def _with_modules_of(cls: type[_Module], module: nn.Module) -> _Module:
    """A module of class ``cls`` that shares parameters, submodules and settings with another.

    What ``module.compile()`` made of that one stays behind: it is that one's forward.
    """
    new = cls.__new__(cls)
    nn.Module.__init__(new)
    for name, value in vars(module).items():
        if name != "_compiled_call_impl":
            vars(new)[name] = value.copy() if isinstance(value, dict) else value  # _parameters, hooks, …
    return new
