"""Fine-tuning a ViT whose attention was swapped: distillation, progressive replacement, what is reported."""
