"""The stem in tiles: the map of the whole image, in less memory."""

import pytest
import torch

from cbsa.layers import ConvStem
from cbsa.layers.tiles import embed_in_tiles, tile_rows
from cbsa.models import Transformer
from tests.compare import assert_close


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("height", "rows"), [(64, 1), (64, 3), (61, 2), (64, 4), (49, 3)])
def test_tiles_make_the_map_of_the_whole(height, rows, fused):
    stem = ConvStem(16, patch_size=16).double()
    images = torch.randn(2, 3, height, 40, dtype=torch.float64)
    stem(images)  # statistics that are not trivial
    stem.eval()
    if fused:
        stem.fuse()
    assert_close(embed_in_tiles(stem, images, rows), stem(images), 1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_an_empty_batch_has_an_empty_result(training):
    model = Transformer(64, 8, embed_dim=16, depth=1, num_heads=2, num_classes=5, stem="conv").train(training)
    if training:
        model.patch_embed.eval()  # BatchNorm has no statistics of nothing
    assert model(torch.randn(0, 3, 64, 48)).shape == (0, 5)


def test_a_model_takes_tiles_in_inference_alone():
    model = Transformer(64, 8, embed_dim=16, depth=1, num_heads=2, representatives=(2, 2)).double()
    images = torch.randn(1, 3, 64, 48, dtype=torch.float64)
    calls = []
    model.patch_embed.register_forward_pre_hook(lambda module, given: calls.append(given[0].shape[2]))
    model.eval()
    with torch.no_grad():
        whole = model(images)
        model.stem_bytes = 3 * 2 * 4 * 4 * 24 * 8  # three rows of patches
        assert tile_rows(model.patch_embed, images, model.stem_bytes) == 3
        assert_close(model(images), whole, 1e-12)
    assert calls == [64, 24, 32, 24]
    model(images)
    with torch.no_grad():
        model.train()(images)
    assert calls[4:] == [64, 64]
