"""Quantised arrays: what comes out of the text lies within the bounds that the module states."""

import base64
import zlib

import numpy as np
import pytest
import torch

from cbsa.explain.pack import Packer


def bytes_of(packer):
    return zlib.decompress(base64.b64decode(packer.text()))


def unpack(data, entry):
    """Values of an entry, by another road than the page's: NumPy."""
    kind = "u1" if entry["form"] == "weights" else "<i2"
    levels = np.frombuffer(data, kind, np.prod(entry["shape"]), entry["levels"]).reshape(entry["shape"])
    scale = np.frombuffer(data, "<f4", entry["scales"], entry["scale"]).astype(np.float64)
    if entry["form"] == "weights":
        return scale.reshape(*entry["shape"][:-1], 1) * (levels / 255) ** 4
    rows = levels.reshape(entry["scales"], -1) / 32767
    return (scale[:, None] * rows).reshape(entry["shape"])


def test_weights_within_their_bound():
    weights = (torch.randn(3, 5, 101) * 4).softmax(-1)
    packer = Packer()
    entry = packer.weights(weights)
    found = unpack(bytes_of(packer), entry)
    scale = weights.amax(-1, keepdim=True).double().numpy()
    root = (weights.double().numpy() / scale) ** 0.25
    bound = scale * ((root + 1 / 510) ** 4 - root**4)
    error = np.abs(found - weights.double().numpy())
    assert (error <= bound + 1e-7 * scale).all()
    assert (error < 0.01 * scale).all()
    assert error.max() > 0.2 * bound.max()  # the bound is not idle
    assert (found[weights.numpy() > 1e-10 * scale] > 0).all()  # small weights do not vanish


def test_numbers_within_their_bound():
    values = torch.randn(4, 7, 6) * torch.tensor([1e-3, 1.0, 50.0, 0.0]).view(4, 1, 1)
    packer = Packer()
    entry = packer.numbers(values, batch=1)
    found = unpack(bytes_of(packer), entry)
    bound = values.abs().amax((1, 2), keepdim=True).double().numpy() / 65534
    assert (np.abs(found - values.double().numpy()) <= bound * (1 + 1e-4)).all()
    assert (found[3] == 0).all()


def test_several_arrays_lie_aligned_beside_each_other():
    packer = Packer()
    first, second = torch.rand(1, 3), torch.rand(2, 5)
    entries = [packer.weights(first), packer.numbers(second, batch=0), packer.weights(second)]
    data = bytes_of(packer)
    assert all(entry[name] % 4 == 0 for entry in entries for name in ("levels", "scale"))
    for entry, values in zip(entries, (first, second, second), strict=True):
        np.testing.assert_allclose(unpack(data, entry), values.numpy(), atol=1e-2)


def test_what_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        Packer().numbers(torch.tensor([[1.0, float("nan")]]), batch=1)
