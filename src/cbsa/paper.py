"""Numbers of the paper, always labelled as the paper's."""

# Table CBT_tab: (parameters in millions, FLOPs in G); ViT-S and CRATE are cited there from their papers.
PARAMETERS_AND_FLOPS: dict[str, tuple[float, float]] = {
    "cbt_tiny_patch16_224": (1.8, 1.1),
    "cbt_small_patch16_224": (6.7, 4.0),
    "cbt_base_patch16_224": (25.7, 15.1),
    "cbt_large_patch16_224": (83.1, 47.3),
    "crate_base_linear_patch16_224": (22.8, 12.6),
    "crate_large_linear_patch16_224": (77.6, 43.3),
    "vit_conv_small_patch16_224": (22.1, 9.8),
}

# Table CBT_tab: top-1 accuracy in %; CRATE and ViT-S are cited there from their papers.
CLASSIFICATION_DATASETS = ("ImageNet-1k", "CIFAR-10", "CIFAR-100", "Flowers-102", "Pets")
CLASSIFICATION: dict[str, tuple[float, float, float, float, float]] = {
    "CBT-T": (63.2, 94.8, 76.5, 88.4, 86.8),
    "CBT-S": (71.4, 96.3, 80.4, 91.7, 91.6),
    "CBT-B": (73.4, 96.7, 82.0, 93.6, 92.6),
    "CBT-L": (74.4, 97.3, 83.4, 93.9, 92.9),
    "CRATE-B": (70.8, 96.8, 82.7, 88.7, 85.3),
    "CRATE-L": (71.3, 97.2, 83.6, 88.3, 87.4),
    "ViT-S": (72.4, 97.2, 83.2, 88.5, 88.6),
}

# Section 4.2: CBT-S beside ViT-S, shares of its parameters and FLOPs.
CBT_S_SHARES = (0.30, 0.40)

# Table fair_comp: pairwise similarities in millions.
PAIRWISE_SIMILARITIES: dict[str, float] = {
    "cbt_tiny_patch16_224": 0.53,
    "cbt_small_patch16_224": 1.1,
    "tost_tiny_patch16_224": 0.45,
    "tost_small_patch16_224": 0.91,
    "crate_tiny_patch16_224": 1.4,
    "crate_small_patch16_224": 2.8,
    "agent_tiny_patch16_224": 0.52,
    "agent_small_patch16_224": 1.0,
}

# Table fair_comp: top-1 accuracy on ImageNet-1k at 224 px, and pairwise similarities in millions.
FAIR: dict[str, tuple[float, float]] = {
    "CBSA-T": (63.2, 0.53),
    "TSSA-T": (61.2, 0.45),
    "MSSA-T": (64.7, 1.4),
    "Agent-T": (63.8, 0.52),
    "CBSA-S": (71.4, 1.1),
    "TSSA-S": (68.5, 0.91),
    "MSSA-S": (72.1, 2.8),
    "Agent-S": (71.8, 1.0),
}

# Table wall-clock: images/s (training, inference) at 512×512 px on CIFAR-10. The paper names neither the GPU,
# nor the batch, nor the precision.
THROUGHPUT: dict[str, tuple[float, float]] = {
    "cbt_tiny_patch16_224": (336, 572),
    "vit_tiny_patch16_224": (174, 370),
    "crate_tiny_patch16_224": (203, 395),
    "tost_tiny_patch16_224": (323, 533),
    "cbt_small_patch16_224": (205, 405),
    "vit_small_patch16_224": (94, 211),
    "crate_small_patch16_224": (111, 220),
    "tost_small_patch16_224": (199, 429),
}

# Table qual-seg: Jaccard similarity of the best maps of [CLS] with foreground, background and boundary, of
# models pretrained on ImageNet-1k, on the PASCAL VOC12 validation set. The paper does not define ToST's map.
ZERO_SHOT: dict[str, tuple[float, float, float]] = {
    "CRATE+CBT-S": (0.68, 0.78, 0.18),
    "CRATE-S": (0.65, 0.76, 0.17),
    "CBT-S": (0.51, 0.72, 0.15),
    "ToST-S": (0.42, 0.75, 0.12),
}

# Table qual-seg-layers: the same by layer, 1 to 12; the paper does not say for which target.
ZERO_SHOT_LAYERS: dict[str, tuple[float, ...]] = {
    "CRATE+CBT-S": (0.37, 0.44, 0.55, 0.46, 0.56, 0.58, 0.60, 0.53, 0.59, 0.56, 0.55, 0.55),
    "CRATE-S": (0.34, 0.45, 0.51, 0.48, 0.53, 0.56, 0.53, 0.57, 0.55, 0.52, 0.50, 0.39),
    "CBT-S": (0.39, 0.41, 0.43, 0.42, 0.37, 0.40, 0.38, 0.33, 0.35, 0.34, 0.36, 0.33),
}

# Appendix A: rank of the extraction's attention in CBT with m = p = 64, by initial representatives.
EXTRACTION_RANK: dict[str, tuple[int, int]] = {
    "pool": (64, 64),
    "learned": (5, 64),
}  # found, largest possible

# The authors' CBT decoders on ADE20K (150 classes), by the size of the encoder: parameters in millions, FLOPs
# in G at 512×512 px (L: 640×640), mIoU. The paper draws mIoU; these numbers come with their code.
CBT_DECODERS: dict[str, tuple[float, float, float]] = {
    "T": (0.377, 1.5, 39.1),
    "S": (0.753, 2.3, 45.8),
    "B": (2.896, 7.8, 49.3),
    "L": (5.713, 22.3, 53.3),
}

# Section 4.2: the best CBT decoder (L) over Segmenter's: shares of FLOPs and of pairwise similarities.
CBT_DECODER_SHARES = (0.20, 0.0006)
CBT_DECODER_GAIN = 1.5  # points of mIoU over Segmenter's, on ADE20K

# Figure 3d: classes, and iterations after which each lies on a line.
SYNTHETIC = (10, 1024)
