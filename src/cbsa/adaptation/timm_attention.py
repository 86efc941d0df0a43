"""timm's attention with another mixer: the same projections under the same names, in linear time."""

from typing import Any, Self, TypeVar

from timm.models.vision_transformer import Attention  # type: ignore[attr-defined]
from torch import Tensor, nn

from cbsa.adaptation.layout import TokenLayout
from cbsa.adaptation.style import Style

_Module = TypeVar("_Module", bound=nn.Module)


class AdaptedAttention(Attention):
    """timm's ``Attention`` whose tokens are mixed in a :class:`Style`; parameters and their names are timm's.

    :func:`cbsa.adapt` puts it in the place of a model's attentions and tells it how the tokens lie. Its
    subclasses can be given to timm as well: ``timm.create_model(name, attn_layer=CBSAStarAttention)``. timm
    does not tell an attention how tokens lie; until :func:`cbsa.adapt` has seen the model, the patches are
    then taken for a square after :attr:`num_prefix_tokens` tokens. Other options are those of a subclass::

        class Fewer(CBSAStarAttention):
            style = Style("cbsa", representatives=(4, 4))
            num_prefix_tokens = 2
    """

    style: Style
    num_prefix_tokens: int = 1
    layout: TokenLayout | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_attention(self)

    @classmethod
    def take_over(cls, attention: Attention, style: Style, layout: TokenLayout) -> Self:
        """An adapted attention with the very modules and parameters of another."""
        check_attention(attention)
        adapted = _with_modules_of(cls, attention)
        adapted.style, adapted.layout = style, layout
        return adapted

    def give_back(self) -> Attention:
        """timm's own attention, with the very modules and parameters of this one."""
        original = _with_modules_of(Attention, self)
        for name in ("style", "layout"):
            vars(original).pop(name, None)
        return original

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Mix tokens x (B, N, dim): prefix tokens, then patches row by row."""
        if attn_mask is not None or is_causal:
            raise ValueError(
                f"style={self.style.name!r} takes no attn_mask and no is_causal, as its weights are never "
                "formed; use style='softmax' for masked attention"
            )
        batch, tokens, _ = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.num_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, N, d) each
        q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        grid, prefix = self._layout()
        mixed = self.style.attend(q, k, v, self.scale, grid, prefix)
        mixed = self.norm(mixed.transpose(1, 2).flatten(2))  # (B, N, H d)
        gate = getattr(self, "gate", None)  # not all releases of timm have one
        mixed = mixed if gate is None else mixed * gate(x).sigmoid()
        out: Tensor = self.proj_drop(self.proj(mixed))
        return out

    def _layout(self) -> tuple[Any, int]:
        if self.layout is None:
            return None, self.num_prefix_tokens
        return self.layout.grid, self.layout.num_prefix_tokens

    def extra_repr(self) -> str:
        """Describe the style in ``print(model)``."""
        return str(self.style)


class CBSAStarAttention(AdaptedAttention):
    """CBSA* for timm's ``attn_layer=``: 8×8 representatives."""

    style = Style("cbsa")


class AgentAttention(AdaptedAttention):
    """CBSA∨ (Agent attention) for timm's ``attn_layer=``: 8×8 representatives."""

    style = Style("agent")


class LinearKernelAttention(AdaptedAttention):
    """Linear attention with the ReLU kernel for timm's ``attn_layer=``."""

    style = Style("linear")


def check_attention(attention: nn.Module) -> None:
    """Refuse what is not timm's plain attention, by name, and dropout of weights that are never formed."""
    if type(attention) is not Attention and not isinstance(attention, AdaptedAttention):
        raise TypeError(
            f"cannot adapt attention of type {type(attention).__name__}; supported is timm's Attention with "
            "one qkv projection and no position embedding of its own"
        )
    if attention.attn_drop.p > 0:
        raise ValueError(
            f"attn_drop={attention.attn_drop.p}: linear-time styles never form the weights it drops; create "
            "the model with attn_drop_rate=0"
        )


def _with_modules_of(cls: type[_Module], module: nn.Module) -> _Module:
    """A module of class ``cls`` that shares parameters, submodules and settings with another."""
    new = cls.__new__(cls)
    nn.Module.__init__(new)
    for name, value in vars(module).items():
        vars(new)[name] = value.copy() if isinstance(value, dict) else value  # _parameters, _modules, hooks
    return new
