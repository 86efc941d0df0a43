"""Settings that cannot be are refused where they are made, with the name of the field and its value."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbsa.train import (
    CheckpointConfig,
    ModelConfig,
    OptimizerConfig,
    RuntimeConfig,
    ScheduleConfig,
    TrainConfig,
)
from cbsa.train.adaptation.config import AdaptConfig
from cbsa.train.config import AugmentConfig, DataConfig, RunConfig
from cbsa.train.segmentation.config import SegmentConfig


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (OptimizerConfig, {"name": "adam"}, r"optimizer\.name='adam': .* did you mean 'adamw'\?"),
        (OptimizerConfig, {"lr": 0.0}, r"optimizer\.lr must be above 0, got 0\.0"),
        (OptimizerConfig, {"lr": -1.0}, r"optimizer\.lr must be above 0, got -1\.0"),
        (OptimizerConfig, {"lr": math.inf}, r"optimizer\.lr must be finite, got inf"),
        (OptimizerConfig, {"weight_decay": -0.1}, r"optimizer\.weight_decay must be at least 0, got -0\.1"),
        (OptimizerConfig, {"weight_decay": math.nan}, r"optimizer\.weight_decay must be finite, got nan"),
        (OptimizerConfig, {"clip_grad": -1.0}, r"optimizer\.clip_grad must be at least 0, got -1\.0"),
        (OptimizerConfig, {"betas": (0.9, 1.0)}, r"optimizer\.betas must be .* below 1, got \(0\.9, 1\.0\)"),
        (OptimizerConfig, {"betas": (-0.1, 0.9)}, r"optimizer\.betas must be .* at least 0"),
        (OptimizerConfig, {"betas": (0.9,)}, r"optimizer\.betas must be two numbers .*, got \(0\.9,\)"),
        (OptimizerConfig, {"betas": (0.9, math.nan)}, r"optimizer\.betas must be finite, got nan"),
        (OptimizerConfig, {"layer_decay": 0.0}, r"optimizer\.layer_decay must be above 0 .*, got 0\.0"),
        (OptimizerConfig, {"layer_decay": 1.5}, r"optimizer\.layer_decay must be .* at most 1, got 1\.5"),
        (ScheduleConfig, {"name": "linear"}, r"schedule\.name='linear': expected one of 'cosine'"),
        (ScheduleConfig, {"warmup_epochs": -1.0}, r"schedule\.warmup_epochs must be at least 0, got -1\.0"),
        (ScheduleConfig, {"min_lr": -1e-9}, r"schedule\.min_lr must be at least 0, got -1e-09"),
        (RuntimeConfig, {"precision": "fp8"}, r"runtime\.precision='fp8': .* did you mean 'fp"),
        (RuntimeConfig, {"cuda_graph": "yes"}, r"runtime\.cuda_graph='yes': expected one of 'auto', 'on'"),
        (RuntimeConfig, {"parallel": "dp"}, r"runtime\.parallel='dp': .* did you mean 'ddp'"),
        (CheckpointConfig, {"every_epochs": 0}, r"checkpoint\.every_epochs must be at least 1, got 0"),
        (CheckpointConfig, {"every_steps": -1}, r"checkpoint\.every_steps must be at least 0, got -1"),
        (CheckpointConfig, {"keep": 0}, r"checkpoint\.keep must be at least 1, got 0"),
        *(
            (TrainConfig, {name: 0}, rf"^{name} must be at least 1, got 0")
            for name in ("epochs", "batch_size", "accumulate", "eval_batch_size", "eval_every", "log_every")
        ),
        (TrainConfig, {"seed": -1}, r"^seed must be at least 0, got -1"),
        (TrainConfig, {"label_smoothing": 1.0}, r"^label_smoothing must be at least 0 and below 1, got 1\.0"),
        (TrainConfig, {"ema": 1.0}, r"^ema must be at least 0 and below 1, got 1\.0"),
        (TrainConfig, {"ema": -0.5}, r"^ema must be at least 0 and below 1, got -0\.5"),
        (
            TrainConfig,
            {"augment": AugmentConfig(mixup=0.2), "batch_size": 6, "accumulate": 2},
            r"augment\.mixup and augment\.cutmix pair the images of a batch: 3 is odd",
        ),
    ],
)
def test_values_that_cannot_be(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (OptimizerConfig, {"lr": "1e-3"}, r"optimizer\.lr must be a number, got '1e-3' of type str"),
        (OptimizerConfig, {"name": None}, r"optimizer\.name must be a string, got None"),
        (OptimizerConfig, {"betas": (0.9, "x")}, r"optimizer\.betas must be a number, got 'x'"),
        (ScheduleConfig, {"min_lr": True}, r"schedule\.min_lr must be a number, got True"),
        (CheckpointConfig, {"keep": 1.5}, r"checkpoint\.keep must be an integer, got 1\.5"),
        (TrainConfig, {"epochs": True}, r"epochs must be an integer, got True"),
        (TrainConfig, {"epochs": 2.0}, r"epochs must be an integer, got 2\.0 of type float"),
        (TrainConfig, {"ema": "0.9"}, r"ema must be a number, got '0\.9'"),
    ],
)
def test_values_of_another_type(kind, options, message):
    with pytest.raises(TypeError, match=message):
        kind(**options)


@given(st.floats())
def test_a_rate_is_finite_and_positive_or_refused(value):
    if math.isfinite(value) and value > 0:
        assert OptimizerConfig(lr=value).lr == value
    else:
        with pytest.raises(ValueError, match=r"optimizer\.lr must be"):
            OptimizerConfig(lr=value)


@given(st.sampled_from(["label_smoothing", "ema"]), st.floats())
def test_a_share_is_from_0_to_below_1_or_refused(name, value):
    if 0 <= value < 1:
        assert getattr(TrainConfig(**{name: value}), name) == value
    else:
        with pytest.raises(ValueError, match=f"{name} must be"):
            TrainConfig(**{name: value})


@given(st.integers(1, 64), st.integers(1, 8), st.floats(0, 1), st.floats(0, 1))
def test_mixing_needs_pairs(batch_size, accumulate, mixup, cutmix):
    options = {
        "batch_size": batch_size,
        "accumulate": accumulate,
        "augment": AugmentConfig(mixup=mixup, cutmix=cutmix),
    }
    if (mixup or cutmix) and (batch_size // accumulate) % 2 == 1:
        with pytest.raises(ValueError, match="take an even batch_size / accumulate"):
            TrainConfig(**options)
    else:
        TrainConfig(**options)


def test_integers_of_numpy_are_integers():
    assert TrainConfig(epochs=np.int64(3)).epochs == 3


@pytest.mark.parametrize(
    "kind",
    [
        *(TrainConfig, SegmentConfig, AdaptConfig, RunConfig, ModelConfig, OptimizerConfig, ScheduleConfig),
        *(RuntimeConfig, CheckpointConfig),
    ],
)
def test_settings_are_fixed_equal_by_value_and_described(kind):
    assert kind() == kind()
    field = dataclasses.fields(kind)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(kind(), field, "x")
    described = [line for base in kind.__mro__[:-1] for line in base.__doc__.splitlines()]
    for field in dataclasses.fields(kind):
        found = [line for line in described if line.startswith(f"        {field.name}: ")]
        assert len(found) == 1, f"{kind.__name__}.{field.name} is described {len(found)} times"


def test_defaults_are_the_papers_pretraining():
    config = TrainConfig()
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("lion", 2e-4, 0.05)
    assert (config.epochs, config.batch_size, config.label_smoothing) == (150, 256, 0.1)
    assert config.data == DataConfig()
