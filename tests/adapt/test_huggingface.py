"""transformers' vision models with `attn_implementation="cbsa_star"` and `"cbsa_agent"`, offline."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import cbsa
from cbsa.adaptation.style import Style
from tests.adapt import formulas
from tests.compare import assert_close, relative_error

transformers = pytest.importorskip("transformers", reason="needs cbsa[transformers]")
from cbsa.adaptation import huggingface  # noqa: E402

ROOT = Path(__file__).parents[2]
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 48,
    "patch_size": 8,
}
# Model and config classes, and how many tokens come before the patches.
MODELS = {
    "vit": ("ViTModel", "ViTConfig", {}, 1),
    "deit": ("DeiTModel", "DeiTConfig", {}, 2),
    "dinov2": ("Dinov2Model", "Dinov2Config", {}, 1),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {"num_register_tokens": 3}, 4),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", {}, 0),
}
STYLES = list(huggingface.IMPLEMENTATIONS)


def make(name="vit", **options):
    model, config, special, _ = MODELS[name]
    config = getattr(transformers, config)(**SMALL, **special, cbsa_representatives=[2, 3], **options)
    config._attn_implementation = "sdpa"
    built = getattr(transformers, model)(config).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(std=0.3)
    return built


def pixels(size=(48, 48)):
    return torch.randn(2, 3, *size, dtype=torch.float64)


def attentions(model):
    return [m for n, m in model.named_modules() if hasattr(m, "q_proj") and hasattr(m, "config")]


def expected_output(attention, x, prefix, grid, implementation):
    b, n, _ = x.shape
    q, k, v = (
        getattr(attention, p)(x).reshape(b, n, 2, 16).transpose(1, 2) for p in ("q_proj", "k_proj", "v_proj")
    )
    raster = q[:, :, prefix:].transpose(2, 3).reshape(-1, 16, *grid)
    reps = torch.nn.functional.adaptive_avg_pool2d(raster, (2, 3)).flatten(2).mT.reshape(b, 2, 6, 16)
    if implementation == "cbsa_linear":
        out = formulas.linear(q, k, v)
    elif implementation == "cbsa_agent":
        out = formulas.agent(q, k, v, reps)
    else:
        out = formulas.cbsa_star(k, v, reps, *torch.ones(2, 2).double())
    project = getattr(attention, "o_proj", None) or attention.out_proj
    return project(out.transpose(1, 2).reshape(b, n, -1))


@pytest.mark.parametrize("implementation", STYLES)
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_computes_the_style_and_goes_back(name, implementation):
    model, images = make(name), pixels()
    original = model(images).last_hidden_state
    model.set_attn_implementation(implementation)
    seen = []
    for attention in attentions(model):
        attention.register_forward_hook(
            lambda module, args, kwargs, out: seen.append((module, *args[:1], *kwargs.values(), out[0])),
            with_kwargs=True,
        )
    adapted = model(images).last_hidden_state
    assert len(seen) == 2
    for module, x, *_, y in seen:
        assert_close(y, expected_output(module, x, MODELS[name][-1], (6, 6), implementation), 1e-10)
    assert relative_error(adapted, original) > 1e-3
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(images).last_hidden_state, original)


@pytest.mark.parametrize("implementation", STYLES)
def test_saved_loaded_and_fed_by_the_image_processor(implementation, tmp_path):
    transformers.ViTForImageClassification(make().config).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(tmp_path)

    loaded = transformers.ViTForImageClassification.from_pretrained(
        tmp_path, attn_implementation=implementation
    )
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    photograph = np.random.default_rng(0).integers(0, 255, (90, 70, 3), dtype=np.uint8)
    inputs = processor(images=photograph, return_tensors="pt")
    outputs = loaded(**inputs, labels=torch.tensor([1]))
    outputs.loss.backward()
    assert outputs.logits.shape == (1, 2)
    assert outputs.logits.isfinite().all()
    assert list(loaded.config.cbsa_representatives) == [2, 3]
    query = attentions(loaded)[0].q_proj.weight
    assert query.grad.isfinite().all()
    assert query.grad.abs().sum() > 0

    loaded.save_pretrained(tmp_path / "again")
    again = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "again", attn_implementation=implementation
    )
    assert torch.equal(again(**inputs).logits, loaded(**inputs).logits)
    original = transformers.ViTForImageClassification.from_pretrained(tmp_path / "again")
    assert list(original.state_dict()) == list(loaded.state_dict())


@pytest.mark.parametrize("style", ["cbsa", "agent", "linear"])
def test_adapt_takes_models_of_transformers(style, tmp_path):
    """The same as by name, in place or as a copy; options are saved with the config."""
    by_name, model, images = make(), make(), pixels()
    model.load_state_dict(by_name.state_dict())
    original = model(images).last_hidden_state
    adapted = cbsa.adapt(model, style, representatives=(2, 3), copy=True)
    by_name.set_attn_implementation({v: k for k, v in huggingface.IMPLEMENTATIONS.items()}[style])
    assert torch.equal(adapted(images).last_hidden_state, by_name(images).last_hidden_state)
    assert torch.equal(model(images).last_hidden_state, original)
    assert cbsa.adapt(adapted, "softmax") is adapted
    assert torch.equal(adapted(images).last_hidden_state, original)
    for name, options in (("linear", {"kernel": "elu"}), ("cbsa", {"broadcast": "softmax"})):
        cbsa.adapt(model, name, **options).save_pretrained(tmp_path / name)
        again = transformers.ViTModel.from_pretrained(tmp_path / name).double().eval()
        by_style = {v: k for k, v in huggingface.IMPLEMENTATIONS.items()}
        assert huggingface.style_of(again.config, by_style[name]) == Style(name, (8, 8), **options)
        assert_close(again(images).last_hidden_state, model(images).last_hidden_state, 1e-10)


def test_what_adapt_does_not_do_with_models_of_transformers():
    with pytest.raises(
        ValueError, match=r"layers=\[1\]: the layers of a model of transformers change together"
    ):
        cbsa.adapt(make(), "cbsa", layers=[1])
    with pytest.raises(ValueError, match=r"impl='reference': .* takes no impl"):
        cbsa.adapt(make(), "cbsa", impl="reference")
    text = transformers.SiglipTextConfig(**{**SMALL, "vocab_size": 9, "projection_size": 32})
    with pytest.raises(ValueError, match="type 'siglip_text_model' cannot be adapted"):
        cbsa.adapt(transformers.SiglipTextModel(text))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "vit"])
def test_a_saved_model_knows_its_attention(name, tmp_path):
    """Also after it was loaded and saved once more, run or not; going back to softmax is saved too."""
    model, images = cbsa.adapt(make(name), "agent", representatives=(2, 2)), pixels()
    expected = model(images).last_hidden_state
    for generation in ("first", "second"):
        model.save_pretrained(tmp_path / generation)
        model = type(model).from_pretrained(tmp_path / generation).double().eval()
        assert model.config._attn_implementation == "cbsa_agent"
    assert_close(model(images).last_hidden_state, expected, 1e-6)
    cbsa.adapt(model, "softmax").save_pretrained(tmp_path / "softmax")
    back = type(model).from_pretrained(tmp_path / "softmax")
    assert back.config._attn_implementation == "sdpa"
    by_name = type(model).from_pretrained(tmp_path / "first", attn_implementation="sdpa")
    assert by_name.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["vit", "dinov2", "siglip"])
def test_adapt_sees_the_grid_of_every_input(name):
    """As many tokens in another layout: by name only ``config.cbsa_grid`` tells them apart."""
    model = cbsa.adapt(make(name), "cbsa", representatives=(2, 3))
    other = cbsa.adapt(model, "cbsa", representatives=(2, 3), copy=True)
    for size, grid in (((24, 96), (3, 12)), ((96, 24), (12, 3)), ((48, 48), (6, 6))):
        images, options = pixels(size), {} if name == "dinov2" else {"interpolate_pos_encoding": True}
        seen = []
        attention = attentions(model)[0]
        handle = attention.register_forward_hook(
            lambda module, args, kwargs, out, seen=seen: seen.append((*args[:1], *kwargs.values(), out[0])),
            with_kwargs=True,
        )
        out = model(images, **options).last_hidden_state
        handle.remove()
        ((x, *_, y),) = seen
        assert_close(y, expected_output(attention, x, MODELS[name][-1], grid, "cbsa_star"), 1e-10)
        assert torch.equal(other(images, **options).last_hidden_state, out)
    assert attentions(other)[0].cbsa_layout is not attentions(model)[0].cbsa_layout


@pytest.mark.parametrize("name", ["ViT", "DeiT"])
def test_a_decoder_of_masked_images_is_not_the_patch_embedding(name):
    """It is a convolution too."""
    config = getattr(transformers, f"{name}Config")(**SMALL, encoder_stride=8)
    model = getattr(transformers, f"{name}ForMaskedImageModeling")(config)
    cbsa.adapt(model, "agent", representatives=(2, 3))
    model(pixels((24, 96)).float(), interpolate_pos_encoding=True)
    assert attentions(model)[0].cbsa_layout.grid == (3, 12)


def test_weights_that_are_never_formed_cannot_be_shown():
    with pytest.raises(ValueError, match=r"output_attentions=True: .*'cbsa_star' never forms the weights"):
        cbsa.adapt(make(), "cbsa", representatives=(2, 3))(pixels(), output_attentions=True)


@pytest.mark.parametrize("function", ["checkpointing", "compiled"])
def test_checkpointing_and_compilation(function):
    model, images = cbsa.adapt(make(), "cbsa", representatives=(2, 3)), pixels()
    expected = model(images).last_hidden_state
    expected.square().sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    if function == "checkpointing":
        model.train().activation_checkpointing_enable()
        out = model(images).last_hidden_state
    else:
        out = torch.compile(model, fullgraph=True, backend="aot_eager")(images).last_hidden_state
    out.square().sum().backward()
    assert_close(out, expected, 1e-10)
    for name, parameter in model.named_parameters():
        if name in grads:
            assert_close(parameter.grad, grads[name], 1e-9, name)


def test_trained_by_transformers_itself(tmp_path):
    """``ViTImageProcessor`` and ``Trainer`` on images of one brightness a class, offline; the loss falls."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    config = transformers.ViTConfig(**SMALL, num_labels=2)
    model = cbsa.adapt(transformers.ViTForImageClassification(config), "cbsa", representatives=(2, 2))
    processor = transformers.ViTImageProcessor(size={"height": 48, "width": 48})
    draw = np.random.default_rng(0)
    pictures = [
        draw.integers(150 * (i % 2), 100 + 150 * (i % 2), (60, 50, 3), dtype=np.uint8) for i in range(16)
    ]
    values = processor(images=pictures, return_tensors="pt")["pixel_values"]
    data = [{"pixel_values": x, "labels": i % 2} for i, x in enumerate(values)]
    arguments = transformers.TrainingArguments(
        tmp_path / "run",
        per_device_train_batch_size=8,
        num_train_epochs=8,
        learning_rate=3e-3,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert found[-1] < 0.5 * found[0]
    trainer.save_model(tmp_path / "saved")
    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        assert loaded(pixel_values=values).logits.argmax(-1).tolist() == [0, 1] * 8


def test_another_grid_is_given_by_the_config():
    model = make("vit")
    model.set_attn_implementation("cbsa_star")
    images = pixels((32, 64))
    with pytest.raises(
        ValueError, match=r"\(6, 6\) patches and 1 prefix tokens do not make 33 tokens.*cbsa_grid"
    ):
        model(images, interpolate_pos_encoding=True)
    model.config.cbsa_grid = (4, 8)
    landscape = model(images, interpolate_pos_encoding=True).last_hidden_state
    model.config.cbsa_grid = (8, 4)
    assert relative_error(model(images, interpolate_pos_encoding=True).last_hidden_state, landscape) > 1e-3


def test_one_tower_of_two():
    config = transformers.SiglipConfig(
        vision_config=SMALL, text_config={**SMALL, "vocab_size": 9, "projection_size": 32}
    )
    model = transformers.SiglipModel(config).eval()
    inputs = {"input_ids": torch.zeros(2, 4, dtype=torch.long), "pixel_values": pixels().float()}
    original = model(**inputs)
    model.set_attn_implementation({"vision_config": "cbsa_star"})
    adapted = model(**inputs)
    assert torch.equal(adapted.text_embeds, original.text_embeds)
    assert not torch.equal(adapted.image_embeds, original.image_embeds)
    model.set_attn_implementation({"vision_config": "sdpa"})
    by_adapt = cbsa.adapt(model, "cbsa", copy=True)(**inputs)
    assert torch.equal(by_adapt.image_embeds, adapted.image_embeds)
    assert torch.equal(model(**inputs).image_embeds, original.image_embeds)


def test_the_documented_snippet_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs/adapt.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {})


def test_softmax_goes_back_to_the_attention_there_was():
    """So that a model whose weights were shown shows them again."""
    model, images = make(), pixels()
    model.set_attn_implementation("eager")
    weights = model(images, output_attentions=True).attentions
    for style in ("softmax", "agent", "cbsa", "softmax"):
        cbsa.adapt(model, style, representatives=(2, 3))
    again = model(images, output_attentions=True).attentions
    assert model.config._attn_implementation == "eager"
    assert all(torch.equal(a, b) for a, b in zip(again, weights, strict=True))


def test_refusals():
    model = make("vit", attention_probs_dropout_prob=0.1)
    model.set_attn_implementation("cbsa_agent")
    with pytest.raises(ValueError, match=r"attention dropout is 0\.1.*set it to 0 in the config"):
        model.train()(pixels())
    mask = torch.ones(2, 37, dtype=torch.long)
    mask[0, -1] = 0
    with pytest.raises(ValueError, match="'cbsa_agent' takes no attention_mask"):
        model.eval()(pixels(), attention_mask=mask)
    config = transformers.SiglipTextConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=9, projection_size=8
    )
    text = transformers.SiglipTextModel(config)
    text.set_attn_implementation("cbsa_star")
    with pytest.raises(ValueError, match=r"type 'siglip_text_model' cannot be adapted.*vision_config"):
        text(torch.zeros(1, 4, dtype=torch.long))
