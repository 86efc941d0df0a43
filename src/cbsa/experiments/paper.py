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
