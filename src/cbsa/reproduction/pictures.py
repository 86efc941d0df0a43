"""The page of pictures, ``docs/reproduction_pictures.md``: what each shows, and the command that draws it."""

from dataclasses import dataclass
from pathlib import Path

from cbsa.reproduction.claims.speed import MODELS, OPS
from cbsa.reproduction.page import link

_HEAD = """# The paper's figures, drawn anew

<!-- Written by `cbsa reproduce report`. Do not edit: change src/cbsa/reproduction/pictures.py. -->

The pictures that are committed, with what they show and the command that draws them; [what they say about the
paper's claims](REPRODUCTION.md) is on a page of its own.
"""


@dataclass(frozen=True)
class Picture:
    """A committed picture.

    Attributes:
        path: the file, relative to the repository.
        title: what it is of.
        shows: what is to be seen in it.
        command: what draws it.
    """

    path: str
    title: str
    shows: str
    command: str


PICTURES = (
    Picture(
        "docs/images/fig-3d.png",
        "Figure 3d: noisy classes become lines",
        "Ten classes near lines in R³, compressed by iterating the linear attention variant, without any "
        "parameter: the noise vanishes first, and after 1024 iterations each class is a line. Below, the "
        "energy off the lines.",
        "cbsa reproduce fig-3d",
    ),
    Picture(
        "benchmarks/results/cpu/fig-complexity.png",
        "Figure complexity: FLOPs of one layer against the resolution",
        "MSSA and MHSA bend upwards; CBSA, TSSA and linear attention stay straight. CBSA and MSSA cross at "
        "128 tokens, between 128 and 224 px.",
        "cbsa reproduce fig-complexity",
    ),
    Picture(
        "benchmarks/results/h200/ops.png",
        "The operator on an H200",
        "Milliseconds against the number of tokens, at about the same number of tokens in all: CBSA is "
        "flat, softmax attention grows with the length.",
        OPS,
    ),
    Picture(
        "benchmarks/results/h200/models-large.png",
        "Table wall-clock, as a picture: models on an H200",
        "Images per second of CBT-S, ViT-S, CRATE-S and ToST-S against the resolution, in inference and "
        "training.",
        MODELS,
    ),
    Picture(
        "benchmarks/results/h200/models-batch1.png",
        "The same, one image at a time",
        "At 224 px all of them wait for launches of small kernels; the longer the sequence, the less.",
        MODELS,
    ),
    Picture(
        "docs/images/overview.png",
        "Figure CBT, for a trained model",
        "What one head of the first layer of CBT-T, trained on CIFAR-10, does with a photograph that it has "
        "never seen: representatives gather patches, contract, and are broadcast; on the right, what reaches "
        "a tree.",
        "cbsa reproduce fig-overview --patch 36,36",
    ),
    Picture(
        "docs/images/tiny-imagenet-coding-rate.png",
        "Figure coding-rate, on photographs",
        "Compression term by layer, the same for tokens of unit length, and what attention changes about "
        "it, of CBT-T and CRATE-T trained on Tiny-ImageNet and with random weights. Attention compresses, "
        "most of all in the last layer; the term does not fall from layer to layer as in the paper.",
        "cbsa reproduce fig-coding-rate -m CBT=runs/cbt -m CRATE=runs/crate --data DATA --untrained "
        "--images 256",
    ),
    Picture(
        "docs/images/fig-coding-rate.png",
        "Figure coding-rate, on digits",
        "The same for three small models of digits, the hybrid among them.",
        "cbsa reproduce fig-coding-rate -m digits:cbt -m digits:crate -m digits:crate_cbt --untrained",
    ),
    Picture(
        "docs/images/tiny-imagenet-reduced-cr.png",
        "Figure reduced_cr, on photographs",
        "Reduced coding rates of tokens and representatives, head by head and against each other: a line "
        "of points after training, a cloud before.",
        "cbsa reproduce fig-reduced-cr -m CBT=runs/cbt --data DATA --untrained --images 256",
    ),
    Picture(
        "docs/images/fig-reduced-cr.png",
        "Figure reduced_cr, on digits",
        "The same for the small CBT of digits, and for the hybrid, whose last two layers have CBSA.",
        "cbsa reproduce fig-reduced-cr -m digits:cbt -m digits:crate_cbt --untrained",
    ),
    Picture(
        "docs/images/fig-attn-map.png",
        "Figure attn_map, on digits",
        "Maps of the class token of four digits in the first, a middle and the last layer of CBT, CRATE "
        "and the hybrid. One cannot make out the digits in them.",
        "cbsa reproduce fig-attn-map -m digits:cbt -m digits:crate -m digits:crate_cbt",
    ),
    Picture(
        "benchmarks/results/cpu/fig-vit-adapt.png",
        "Figure vit-adapt, its FLOPs",
        "FLOPs of one attention of ViT-T, S, B and L before and after the swap, beside the MLP's: the "
        "three linear ones are hardly to be told apart. The paper draws accuracies, too.",
        "cbsa reproduce fig-vit-adapt --widths tiny,small,base,large",
    ),
    Picture(
        "benchmarks/runs/tiny_imagenet_cbt_tiny.png",
        "Training CBT-T on Tiny-ImageNet",
        "Loss, accuracy and learning rate over 20 epochs, of a run and of the same run killed and started "
        "again.",
        "cbsa plot benchmarks/runs/tiny_imagenet_cbt_tiny "
        "benchmarks/runs/tiny_imagenet_cbt_tiny_interrupted --out "
        "benchmarks/runs/tiny_imagenet_cbt_tiny.png",
    ),
    Picture(
        "benchmarks/results/cpu/camvid/fig-seg-noise.png",
        "Figure segmentation, middle and right, after some minutes on a CPU",
        "Mean IoU on CamVid against the noise on the decoder's attention, decoders trained for four epochs: "
        "at σ = 0.1 Segmenter's has fallen to a fifth of its score and CBT† to less than half, CBT keeps "
        "four fifths and DEPICT all of it. The models are far from trained (mIoU of 20 to 23 %): a sign, "
        "not a verdict.",
        "python benchmarks/camvid_study.py (docs/segmentation_training.md has the whole line)",
    ),
    Picture(
        "benchmarks/results/cpu/camvid/curves.png",
        "The decoders of that picture in training",
        "Four epochs: the losses are still falling, so that their order means nothing yet.",
        "python benchmarks/camvid_study.py (docs/segmentation_training.md has the whole line)",
    ),
)


def picture_page(root: Path, page: Path) -> str:
    """The page of those pictures that are there.

    Args:
        root: the repository.
        page: where the page will lie.
    """
    parts = [_HEAD]
    for picture in PICTURES:
        path = root / picture.path
        if path.is_file():
            title = f"## {picture.title}\n\n![{picture.title}]({link(path, page)})\n"
            parts.append(f"{title}\n{picture.shows}\n\n`{picture.command}`\n")
    return "\n".join(parts)
