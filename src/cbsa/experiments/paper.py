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
