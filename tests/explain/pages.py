"""Small models and images for pages."""

import torch
from PIL import Image

from cbsa.data import DataConfig
from cbsa.explain import Subject
from cbsa.models import Transformer

HOSTILE = "</script><img src=x onerror=alert(1)>&lt;é{{script}}\u2028'\".png"


def subject(attention="cbsa", *, name="Small", classes=(), trained=True, size=24, **kwargs):
    arguments = {
        "img_size": 24,
        "patch_size": 4,
        "num_classes": 4,
        "embed_dim": 24,
        "depth": 3,
        "num_heads": 3,
    }
    torch.manual_seed(3)
    model = Transformer(**arguments | {"attention": attention, "representatives": (2, 3)} | kwargs).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight.mul_(6)  # maps with some contrast
    data = DataConfig(img_size=size, crop_pct=1.0)
    return Subject(model, name, "small", "test", data, trained, tuple(classes))


def picture(path, size=(40, 30)):
    torch.manual_seed(5)
    pixels = torch.randint(0, 256, (*reversed(size), 3), dtype=torch.uint8).numpy()
    Image.fromarray(pixels).save(path)
    return path
