"""What the decoders share: class tokens, and masks by cosine similarity."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cbsa._checks import check_choice, check_floating, check_int
from cbsa.layers import Attention, LayerNorm
from cbsa.models.transformer import INITIALISATIONS
from cbsa.ops.precision import accumulation_dtype, no_autocast


class Decoder(nn.Module, ABC):
    """Refine patch tokens and one token per class together, then compare every patch with every class.

    ``forward(patches, grid)``: patches (B, h·w, dim) on a grid (h, w) -> masks (B, num_classes, h, w). A mask
    is the cosine of the angle between a patch and the class, normalised over the classes (a LayerNorm with a
    weight and a bias for each). Between the layers, tokens have the dtype of the parameters, under autocast
    too; cosines are taken in float32 (or float64), since what tells classes apart is small beside them.

    Args:
        dim: width of the tokens, the encoder's.
        num_classes: number of classes, at least 2: over one class, the norm leaves nothing.
        weight_init: ``"reference"`` draws step sizes from a standard normal distribution as the authors'
            code does, ``"unit_steps"`` sets them to 1.
    """

    def __init__(self, dim: int, num_classes: int, *, weight_init: str = "reference") -> None:
        super().__init__()
        self.dim = check_int("dim", dim)
        self.num_classes = check_int("num_classes", num_classes)
        if num_classes < 2:
            raise ValueError(
                f"num_classes must be at least 2, got {num_classes}; background counts as a class"
            )
        self.weight_init = check_choice("weight_init", weight_init, INITIALISATIONS)
        self.class_tokens = nn.Parameter(torch.empty(1, num_classes, dim))
        self.mask_norm = LayerNorm(num_classes)

    @abstractmethod
    def refine(self, classes: Tensor, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Class tokens (B, num_classes, dim) and patch tokens (B, h·w, dim) -> both, ready to be compared."""

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Masks (B, num_classes, h, w) from patch tokens (B, h·w, dim) on a grid (h, w)."""
        check_floating("patches", patches)
        height, width = grid
        if patches.dim() != 3 or patches.shape[1:] != (height * width, self.dim):
            raise ValueError(
                f"patches must have shape (B, {height}·{width}, {self.dim}) for grid={tuple(grid)}, "
                f"got {tuple(patches.shape)}"
            )
        dtype = self.class_tokens.dtype
        classes = self.class_tokens.expand(patches.shape[0], -1, -1)
        classes, patches = self.refine(classes, patches.to(dtype), (height, width))
        wide = accumulation_dtype(dtype)
        with no_autocast(patches.device):
            cosines = F.normalize(patches.to(wide), dim=-1) @ F.normalize(classes.to(wide), dim=-1).mT
        masks: Tensor = self.mask_norm(cosines)  # (B, h·w, num_classes)
        return masks.to(dtype).mT.reshape(-1, self.num_classes, height, width)

    def no_weight_decay(self) -> set[str]:
        """Parameters that recipes with selective decay leave alone."""
        steps = {n for n, _ in self.named_parameters() if n.endswith((".step_rep", ".step_out"))}
        return {"class_tokens"} | steps

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw all parameters anew; subclasses call it when they are complete.

        Linear maps and class tokens are normal with standard deviation 0.02 (truncated), as in Segmenter.
        Bases that also project back are normal with dim^-½, as in DEPICT: nearly of unit length.
        """
        nn.init.trunc_normal_(self.class_tokens, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        for module in self.modules():
            if isinstance(module, Attention) and module.tied:
                nn.init.normal_(module.proj.weight, std=self.dim**-0.5)
        if self.weight_init == "unit_steps":
            for name, parameter in self.named_parameters():
                if name.endswith((".step_rep", ".step_out")):
                    nn.init.ones_(parameter)
