"""Where an adapted attention learns how the patch tokens lie: from the patch embedding, at every forward."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class TokenLayout:
    """Grid of the patches of the model's last input, and the number of tokens before them.

    One object is shared by the adapted attentions of one model; a forward hook on the model's patch embedding
    keeps it up to date, so that it follows ``set_input_size`` and dynamic image sizes. Copies of the model
    have a layout of their own.

    Args:
        num_prefix_tokens: tokens before the patches (CLS, distillation, registers).
    """

    def __init__(self, num_prefix_tokens: int) -> None:
        self.num_prefix_tokens = num_prefix_tokens
        self.grid: Sequence[int] | None = None
        self._handle: RemovableHandle | None = None

    def follow(self, patch_embed: nn.Module) -> None:
        """Follow the patch embedding of a model."""
        self._handle = patch_embed.register_forward_hook(self._see)

    def leave(self) -> None:
        """No longer follow it."""
        if self._handle is not None:
            self._handle.remove()

    def _see(self, patch_embed: nn.Module, images: tuple[Tensor, ...], patches: Tensor) -> None:
        """Patches are (B, h, w, C) for dynamic image sizes, else (B, N, C) in the embedding's own grid."""
        dynamic = patches.dim() == 4
        self.grid = tuple(patches.shape[1:3]) if dynamic else patch_embed.grid_size  # type: ignore[assignment]


class MapLayout(TokenLayout):
    """The same for a patch embedding that is a convolution: its maps (B, C, h, w) show the grid.

    Args:
        num_prefix_tokens: tokens before the patches.
        original: name of the attention that an adapted model had, to go back to.
    """

    def __init__(self, num_prefix_tokens: int, original: str = "") -> None:
        super().__init__(num_prefix_tokens)
        self.original = original

    def _see(self, patch_embed: nn.Module, images: tuple[Tensor, ...], patches: Tensor) -> None:
        self.grid = tuple(patches.shape[-2:])
