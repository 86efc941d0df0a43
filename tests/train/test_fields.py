"""Settings by name as text, and as JSON from anywhere."""

import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbsa.train import (
    RECIPES,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    from_dict,
    override,
    recipe,
    to_dict,
)
from cbsa.train.fields import differences, field_names

NAMES = field_names(TrainConfig)
# A text for each field whose value cannot be made up from its type, and what else must be set with it.
CHOSEN = {
    "data.dataset": ("cifar10", "cifar10", []),
    "data.in_chans": ("1", 1, ["data.mean=0.5", "data.std=0.5"]),
    "data.mean": ("0.25", (0.25,), ["data.in_chans=1", "data.std=0.5"]),
    "data.std": ("0.25", (0.25,), ["data.in_chans=1", "data.mean=0.5"]),
    "data.resize": ("squash", "squash", []),
    "data.interpolation": ("bilinear", "bilinear", []),
    "data.store": ("host", "host", []),
    "augment.crop": ("pad", "pad", []),
    "optimizer.name": ("adamw", "adamw", []),
    "schedule.name": ("constant", "constant", []),
    "schedule.min_lr": ("1e-5", 1e-5, []),
    "runtime.precision": ("fp16", "fp16", []),
    "runtime.cuda_graph": ("off", "off", []),
    "runtime.parallel": ("fsdp", "fsdp", []),
}


def get(config, name):
    for part in name.split("."):
        config = getattr(config, part)
    return config


def put(config, name, value):
    """The configuration with one field changed, step by step and without any of the code under test."""
    head, _, rest = name.partition(".")
    return dataclasses.replace(config, **{head: put(getattr(config, head), rest, value) if rest else value})


def annotation_of(name):
    kind = TrainConfig
    for part in name.split("."):
        kind = typing.get_type_hints(kind)[part]
    return kind


def something_else(name):
    """A text, the value it stands for, and further settings that go with it."""
    if name in CHOSEN:
        return CHOSEN[name]
    examples = {
        int: ("6", 6),
        float: ("0.125", 0.125),
        str: ("some text, with = in it", "some text, with = in it"),
        str | None: ("/some/where", "/some/where"),
        bool | None: ("false", False),
        dict[str, typing.Any]: ('{"depth": 3}', {"depth": 3}),
        tuple[float, float]: ("0.25,0.75", (0.25, 0.75)),
    }
    if annotation_of(name) is bool:
        value = not get(TrainConfig(), name)
        return str(value).lower(), value, []
    return *examples[annotation_of(name)], []


def test_every_field_has_one_name():
    assert len(NAMES) == len(set(NAMES)) > 50
    assert {"recipe", "epochs", "model.kwargs", "data.mean", "optimizer.lr", "checkpoint.keep"} <= set(NAMES)
    flat = {n for n, value in dataclasses.asdict(TrainConfig()).items() if not isinstance(value, dict)}
    assert {n for n in NAMES if "." not in n} == flat


@pytest.mark.parametrize("name", NAMES)
def test_every_field_can_be_set_by_text(name):
    text, value, also = something_else(name)
    changed = override(TrainConfig(), [f"{name}={text}", *also])
    assert get(changed, name) == value
    assert type(get(changed, name)) is type(value)
    assert get(TrainConfig(), name) != value, "the example must differ from the default"
    expected = {name, *(setting.partition("=")[0] for setting in also)}
    assert set(differences(TrainConfig(), changed)) == expected
    assert set(differences(changed, TrainConfig())) == expected


def test_settings_are_checked_together_whatever_their_order():
    for order in (
        ["data.in_chans=1", "data.mean=0.5", "data.std=0.5"],
        ["data.std=1", "data.mean=0", "data.in_chans=1"],
    ):
        assert override(TrainConfig(), order).data.in_chans == 1
    with pytest.raises(ValueError, match=r"data\.mean must have data\.in_chans = 1 values, got 3"):
        override(TrainConfig(), ["data.in_chans=1"])


def test_the_last_of_several_values_counts():
    assert override(TrainConfig(), ["epochs=3", "epochs=5"]).epochs == 5
    config = override(TrainConfig(), ["model.kwargs.depth=2", 'model.kwargs={"a": 1}', "model.kwargs.b=2"])
    assert config.model.kwargs == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["0.8,0.9", "(0.8, 0.9)", "[0.8,0.9]", " 0.8 , 0.9 "])
def test_tuples(text):
    assert override(TrainConfig(), [f"optimizer.betas={text}"]).optimizer.betas == (0.8, 0.9)


@pytest.mark.parametrize("text", ["none", "None", "null", ""])
def test_none(text):
    config = put(TrainConfig(), "data.root", "/data")
    assert override(config, [f"data.root={text}"]).data.root is None


@pytest.mark.parametrize(
    ("text", "value"),
    [(t, True) for t in ("true", "True", "1", "yes", "on")]
    + [(t, False) for t in ("false", "FALSE", "0", "no", "off")],
)
def test_booleans(text, value):
    config = put(TrainConfig(), "runtime.compile", not value)
    assert override(config, [f"runtime.compile={text}"]).runtime.compile is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("64", 64), ("0.5", 0.5), ("true", True), ("False", False), ("none", None), ("null", None)),
        *(("avg", "avg"), ("[4, 2]", [4, 2]), ('{"a": 1}', {"a": 1}), ('"64"', "64"), ("a=b", "a=b")),
    ],
)
def test_entries_of_a_dict(text, value):
    before = put(TrainConfig(), "model.kwargs", {"depth": 4})
    after = override(before, [f"model.kwargs.extra={text}"])
    assert after.model.kwargs == {"depth": 4, "extra": value}
    assert type(after.model.kwargs["extra"]) is type(value)
    assert before.model.kwargs == {"depth": 4}


def test_entries_of_a_dict_in_a_dict():
    before = put(TrainConfig(), "model.kwargs", {"attention_kwargs": {"init": "pool"}, "depth": 1})
    after = override(before, ["model.kwargs.attention_kwargs.bias=true"])
    assert after.model.kwargs == {"attention_kwargs": {"init": "pool", "bias": True}, "depth": 1}
    assert before.model.kwargs["attention_kwargs"] == {"init": "pool"}


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("optimizer.lrr", ["optimizer.lr"]),
        ("lr", ["optimizer.lr"]),
        ("optimiser.lr", ["optimizer.lr"]),
        ("data.lr", ["optimizer.lr"]),
        ("modle.name", ["model.name"]),
        ("name", ["model.name", "optimizer.name", "schedule.name"]),
        ("epoch", ["epochs"]),
        ("batchsize", ["batch_size"]),
        ("Weight_Decay", ["optimizer.weight_decay"]),
        ("data.img-size", ["data.img_size"]),
    ],
)
def test_the_nearest_name_is_suggested_and_no_other(unknown, meant):
    with pytest.raises(ValueError, match="unknown setting") as error:
        override(TrainConfig(), [f"{unknown}=1"])
    assert str(error.value) == f"unknown setting {unknown}; did you mean {' or '.join(meant)}?"


def test_without_a_near_name_those_of_the_group_are_listed():
    with pytest.raises(
        ValueError, match=r"unknown setting schedule\.zzz; there are schedule\.name, schedule\.warm"
    ) as error:
        override(TrainConfig(), ["schedule.zzz=1"])
    assert "optimizer" not in str(error.value)
    with pytest.raises(ValueError, match=r"unknown setting zzz; there are recipe, model\.name"):
        override(TrainConfig(), ["zzz=1"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", r"'epochs': settings are given as name=value"),
        ("=3", r"'=3': settings are given as name=value"),
        ("epochs=many", r"epochs must be an integer, got 'many'"),
        ("epochs=1.5", r"epochs must be an integer, got '1\.5'"),
        ("optimizer.lr=fast", r"optimizer\.lr must be a number, got 'fast'"),
        ("optimizer.lr=nan", r"optimizer\.lr must be finite, got nan"),
        ("optimizer.lr=1e999", r"optimizer\.lr must be finite, got inf"),
        ("runtime.compile=maybe", r"runtime\.compile must be true or false, got 'maybe'"),
        ("optimizer.betas=0.9", r"optimizer\.betas must have 2 values, got 1"),
        ("optimizer.betas=0.9,0.9,0.9", r"optimizer\.betas must have 2 values, got 3"),
        ("optimizer.betas=a,b", r"optimizer\.betas must be a number, got 'a'"),
        ("data.mean=", r"data\.mean must be a number, got ''"),
        ("optimizer=lion", r"optimizer is a group of settings; set one of optimizer\.name, optimizer\.lr"),
        ("optimizer.lr.top=1", r"optimizer\.lr\.top: optimizer\.lr has no fields"),
        ("model.kwargs.=1", r"model\.kwargs\.: a name is empty"),
        ("optimizer.name=adagrad", r"optimizer\.name='adagrad': expected one of 'lion', 'adamw'"),
    ],
)
def test_settings_that_cannot_be(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(TrainConfig(), [assignment])


def test_a_dict_must_be_one():
    with pytest.raises(TypeError, match=r"model\.kwargs must be a dict, e\.g\. .*, got 'depth'"):
        override(TrainConfig(), ["model.kwargs=depth"])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name):
    config = recipe(name)
    text = json.dumps(to_dict(config))
    assert from_dict(TrainConfig, json.loads(text)) == config
    assert differences(from_dict(TrainConfig, json.loads(text)), config) == []


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "optimizer.lr": st.floats(1e-9, 10),
            "optimizer.betas": st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
            "schedule.warmup_epochs": st.floats(0, 1),
            "seed": st.integers(0, 2**63),
            "model.weights": st.none() | st.text(max_size=8),
            "model.kwargs": st.dictionaries(
                st.text(max_size=5),
                st.recursive(
                    st.none()
                    | st.booleans()
                    | st.integers(-(2**40), 2**40)
                    | st.floats(-1, 1)
                    | st.text(max_size=5),
                    lambda inner: (
                        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
                    ),
                    max_leaves=4,
                ),
                max_size=3,
            ),
            "augment.flip": st.floats(0, 1),
            "runtime.compile": st.booleans(),
        },
    )
)
def test_any_configuration_survives_json_and_text(changes):
    """Floats to the last bit, texts of any characters."""
    config = TrainConfig()
    for name, value in changes.items():
        config = put(config, name, value)
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(config)))) == config

    def text(value):
        if isinstance(value, tuple):
            return ",".join(map(repr, value))
        return json.dumps(value) if isinstance(value, dict) else str(value)

    # As text, these spellings of None are taken.
    unlike_none = {
        k: v for k, v in changes.items() if not (isinstance(v, str) and v.lower() in ("", "none", "null"))
    }
    config = TrainConfig()
    for name, value in unlike_none.items():
        config = put(config, name, value)
    assert override(TrainConfig(), [f"{k}={text(v)}" for k, v in unlike_none.items()]) == config


def test_missing_settings_have_their_defaults():
    assert from_dict(TrainConfig, {}) == TrainConfig()
    assert from_dict(TrainConfig, {"optimizer": {"lr": 1}}).optimizer == OptimizerConfig(lr=1.0)


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([], TypeError, r"the configuration must be a dict of settings, got \[\]"),
        (None, TypeError, r"the configuration must be a dict of settings, got None"),
        ({"optimizer": "lion"}, TypeError, r"optimizer must be a dict of settings, got 'lion'"),
        ({"optimizer": ["lr"]}, TypeError, r"optimizer must be a dict of settings"),
        ({"optimizer": None}, TypeError, r"optimizer must be a dict of settings, got None"),
        ({"epochs": "3"}, TypeError, r"epochs must be of type int, got '3' of type str"),
        ({"epochs": 3.0}, TypeError, r"epochs must be of type int, got 3\.0"),
        ({"epochs": True}, TypeError, r"epochs must be of type int, got True"),
        ({"epochs": None}, TypeError, r"epochs must be of type int, got None"),
        ({"epochs": {"a": 1}}, TypeError, r"epochs must be of type int"),
        ({"epochs": -1}, ValueError, r"epochs must be at least 1, got -1"),
        ({"recipe": 3}, TypeError, r"recipe must be of type str, got 3"),
        ({"optimizer": {"lr": "1e-3"}}, TypeError, r"optimizer\.lr must be of type float, got '1e-3'"),
        ({"optimizer": {"lr": True}}, TypeError, r"optimizer\.lr must be of type float, got True"),
        ({"optimizer": {"lr": float("nan")}}, ValueError, r"optimizer\.lr must be finite"),
        ({"optimizer": {"lr": 10**400}}, ValueError, r"optimizer\.lr must be finite"),
        ({"optimizer": {"betas": 0.9}}, TypeError, r"optimizer\.betas must be a list, got 0\.9"),
        ({"optimizer": {"betas": "0.9,0.99"}}, TypeError, r"optimizer\.betas must be a list"),
        ({"optimizer": {"betas": [0.9]}}, ValueError, r"optimizer\.betas must have 2 values, got 1"),
        ({"optimizer": {"betas": [0.9, "x"]}}, TypeError, r"optimizer\.betas must be of type float, got 'x'"),
        ({"data": {"mean": [[0.5], 0.5, 0.5]}}, TypeError, r"data\.mean must be of type float"),
        ({"data": {"root": 3}}, TypeError, r"data\.root must be of type str, got 3"),
        ({"model": {"kwargs": [1]}}, TypeError, r"model\.kwargs must be a dict"),
        ({"model": {"kwargs": None}}, TypeError, r"model\.kwargs must be a dict"),
        ({"runtime": {"compile": 1}}, TypeError, r"runtime\.compile must be of type bool, got 1"),
        (
            {"optimizer": {"lrr": 1}},
            ValueError,
            r"unknown setting optimizer\.lrr; did you mean optimizer\.lr\?",
        ),
        ({"__class__": "x"}, ValueError, r"unknown setting __class__"),
        ({"optimizer.lr": 1}, ValueError, r"unknown setting optimizer\.lr"),
    ],
)
def test_hostile_json_is_refused(values, kind, message):
    with pytest.raises(kind, match=message):
        from_dict(TrainConfig, values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(NAMES), json_values)
def test_any_json_gives_a_configuration_or_an_error_that_names_the_field(name, value):
    *groups, last = name.split(".")
    values = {last: value}
    for group in reversed(groups):
        values = {group: values}
    error = None
    try:
        config = from_dict(TrainConfig, values)
    except (TypeError, ValueError) as caught:
        error = str(caught)
    if error is None:
        assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(config)))) == config
        assert get(config, name) == (tuple(value) if isinstance(value, list) else value)
    else:
        assert name in error


def test_differences_are_named_in_full():
    a = TrainConfig(model=ModelConfig("x", {"depth": 1}), optimizer=OptimizerConfig(lr=1.0), epochs=3)
    b = TrainConfig(model=ModelConfig("x", {"depth": 2}), optimizer=OptimizerConfig(lr=2.0), epochs=4)
    assert differences(a, b) == ["model.kwargs", "optimizer.lr", "epochs"]
    assert differences(a, a) == []


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="JSON"):
        to_dict(TrainConfig(model=ModelConfig("x", {"attention": object()})))
