"""Configurations refuse what cannot work, and cost nothing to import."""

import subprocess
import sys

import pytest

from cbsa.data import AugmentConfig, DataConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "cifar"}, r"data\.dataset='cifar': .* did you mean 'cifar10' or 'cifar100'"),
        ({"resize": "stretch"}, r"data\.resize='stretch'"),
        ({"interpolation": "nearest"}, r"data\.interpolation='nearest'"),
        ({"store": "disk"}, r"data\.store='disk'"),
        ({"img_size": 0}, r"data\.img_size must be at least 1, got 0"),
        ({"workers": -1}, r"data\.workers must be at least 0, got -1"),
        ({"max_corrupt": -1}, r"data\.max_corrupt must be at least 0"),
        ({"in_chans": 2}, r"data\.in_chans must be 1 or 3, got 2"),
        ({"in_chans": 1}, r"data\.mean must have data\.in_chans = 1 values, got 3"),
        ({"std": (0.1, 0.0, 0.1)}, r"data\.std must be above 0"),
        ({"std": (0.1, float("nan"), 0.1)}, r"data\.std must be finite"),
        ({"holdout": 1.0}, r"data\.holdout must be at least 0 and below 1, got 1\.0"),
        ({"crop_pct": 0.0}, r"data\.crop_pct must be above 0 and at most 1"),
    ],
)
def test_data_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "centre"}, r"augment\.crop='centre'"),
        ({"padding": -1}, r"augment\.padding must be at least 0"),
        ({"scale": (0.5, 1.5)}, r"augment\.scale must rise from above 0 to at most 1\.0, got \(0\.5, 1\.5\)"),
        ({"ratio": (2.0, 1.0)}, r"augment\.ratio must rise from above 0, got \(2\.0, 1\.0\)"),
        ({"ratio": (1.0, float("inf"))}, r"augment\.ratio must be finite"),
        ({"flip": 1.5}, r"augment\.flip is a probability, got 1\.5"),
        ({"erase": -0.5}, r"augment\.erase is a probability"),
        ({"mixup": -1.0}, r"augment\.mixup must be at least 0"),
    ],
)
def test_augmentation_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        AugmentConfig(**options)


def test_importing_the_package_imports_no_reader():
    code = "import sys, cbsa.data; print({'torchvision', 'timm', 'pyarrow', 'sklearn'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
