"""ViTs of timm in the explorer, adapted or not, and models with other tokens before the patches than CLS."""

import json

import pytest
import timm
import torch

import cbsa
from cbsa.data import DataConfig
from cbsa.explain import Subject, open_image, open_subject, write_explorer
from cbsa.explain import models as opening
from cbsa.explain.gather import gather, tokens_of
from cbsa.explain.images import see
from cbsa.models import create_model
from cbsa.models.checkpoints import save_timm_model
from cbsa.train.initial import arguments_of
from tests.adapt.vits import make
from tests.analysis.test_other_models import dense, mixed, vit_states
from tests.explain.browser import BROWSER, REASON, Page
from tests.explain.pages import picture, subject

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 64}
VIT = "vit_tiny_patch16_224"


def shown(kind, *styles, name="ViT"):
    """A small ViT as a page takes it; the first layers adapted, the rest as they were."""
    model = make(kind)
    for layer, style in enumerate(styles):
        cbsa.adapt(model, style, layers=[layer], representatives=(2, 2), broadcast_scale=0.7)
    size = model.patch_embed.img_size[0]
    return Subject(model.float(), name, "vit", "test", DataConfig(img_size=size, crop_pct=1.0), True)


def saved(folder, name=VIT, style="cbsa", **options):
    """A model of timm as a run leaves it."""
    model = timm.create_model(name, num_classes=3, **SMALL | options)
    if style is not None:
        cbsa.adapt(model, style, layers=[1], representatives=(2, 2))
    arguments = SMALL | options | arguments_of(model)
    transform = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0, "input_size": (3, 64, 64)}
    save_timm_model(model, folder, architecture=name, arguments=arguments, transform=transform)
    return folder


def test_layers_and_tokens_of_what_is_shown():
    """Layers of each style; CLS and four registers, or no token before the patches at all."""
    looked = shown("dinov2 registers", "cbsa", "agent")
    view = gather(looked, torch.randn(1, 3, 56, 56))
    layers = [(layer["attention"], layer["kind"], "representatives" in layer) for layer in view["layers"]]
    assert layers == [
        ("CBSA*", "extraction", True),
        ("Agent", "extraction", True),
        ("MHSA", "softmax", False),
    ]
    assert (view["grid"], view["prefix"], view["cls"], view["heads"]) == ([4, 4], 5, True, 2)
    assert view["states"]["points"]["shape"] == [4, 21, 3]
    assert tokens_of(looked) == 21
    bare = gather(shown("siglip", "linear"), torch.randn(1, 3, 64, 64))
    assert (bare["prefix"], bare["cls"], bare["layers"][0]["attention"]) == (0, False, "LinearAttention")
    with torch.no_grad():
        truth = looked.model(torch.zeros(1, 3, 56, 56))[0].softmax(-1)
    found = gather(looked, torch.zeros(1, 3, 56, 56))["predictions"]
    assert found[0]["probability"] == pytest.approx(truth.max().item(), rel=1e-5)


def test_registers_of_our_own_models():
    view = gather(subject(depth=1, reg_tokens=2), torch.randn(1, 3, 24, 24))
    assert (view["prefix"], view["cls"]) == (3, True)


def test_a_folder_of_weights_and_a_run_of_adapt(tmp_path):
    looked = open_subject(str(saved(tmp_path / "model")))
    assert looked.name == f"{VIT}, MHSA + CBSA*"
    assert (looked.trained, looked.architecture, looked.model.num_classes) == (True, VIT, 3)
    assert looked.data.mean == (0.5,) * 3
    plain = open_subject(str(saved(tmp_path / "plain", style=None)))
    assert plain.name == VIT
    named = open_subject(VIT, str(tmp_path / "plain" / "model.safetensors"), ["a", "b", "c"])
    assert named.trained
    assert named.own_size == (64, 64)
    config = {"model": {"name": VIT, "kwargs": SMALL}, "data": {"img_size": 64}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "summary.json").write_text(json.dumps({"classes": ["ant", "bee", "cat"]}))
    run = open_subject(str(tmp_path))
    assert (run.name, run.run, run.classes) == (looked.name, True, ("ant", "bee", "cat"))


def test_another_size_resamples_positions(tmp_path):
    looked = open_subject(str(saved(tmp_path / "model")))
    page = write_explorer([picture(tmp_path / "a.png")], [looked], tmp_path / "a.html", size=96)
    index = json.loads(page.read_text().split('id="index">')[1].split("</script>")[0])
    assert index["images"][0]["views"][0]["grid"] == [6, 6]
    assert index["models"][0] | {"size": 96, "own_size": [64, 64], "patch": [16, 16]} == index["models"][0]
    assert looked.model.patch_embed.img_size == (64, 64)  # as it was
    with pytest.raises(ValueError, match=r"size=90: .* takes whole patches alone, of 16 px: give e.g. 80"):
        looked.at(90)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eva02_tiny_patch14_224", "is a Eva, for which the page has no place"),
        ("vit_tiny_r_s16_p8_224", "takes its patches from a HybridEmbed, which the page cannot place"),
    ],
)
def test_what_has_no_place(tmp_path, name, message):
    size = 56 if "eva" in name else 96
    folder = saved(tmp_path / "model", name, style=None, img_size=size)
    with pytest.raises(TypeError, match=message):
        open_subject(str(folder))


def test_weights_that_cannot_be_downloaded(monkeypatch):
    def fail(found):
        assert found.config.model.kwargs == {"pretrained": True}
        raise OSError("no network")

    monkeypatch.setattr(opening, "build_trained", fail)
    with pytest.raises(
        ValueError, match=rf"{VIT}: timm could not have its weights \(no network\); give them"
    ):
        open_subject(VIT)
    with pytest.raises(ValueError, match="expected one of"):  # ours are never looked for elsewhere
        open_subject("cbt_tiny_patch4_32.none")


def test_names_of_classes_of_imagenet():
    names = opening._classes_of_imagenet(create_model("cbt_tiny_patch4_32", depth=1, num_classes=1000))
    assert len(names) == 1000
    assert names[1].startswith("goldfish")
    assert opening._classes_of_imagenet(create_model("cbt_tiny_patch4_32", depth=1, num_classes=7)) == ()


@pytest.mark.skipif(BROWSER is None, reason=REASON)
def test_maps_in_the_browser(tmp_path):
    """Rows against the dense maps; a patch is the same place in both models; without CLS, the middle one."""
    models = [
        shown("dinov2 registers", "cbsa", "agent", name="vit_small_patch14_reg4_dinov2, CBSA* + Agent"),
        shown("siglip", "linear", name="Bare"),
    ]
    page = write_explorer([picture(tmp_path / "a.png")], models, tmp_path / "page.html")
    browser = Page(tmp_path / "profile")
    try:
        browser.open(page)
        for number, (looked, styles) in enumerate(
            zip(models, (("cbsa", "agent", "softmax"), ("linear", "softmax", "softmax")), strict=True)
        ):
            _, pixels = see(open_image(tmp_path / "a.png"), looked.data, "")
            model = looked.model.double()
            for layer, (x, _, _) in enumerate(vit_states(model, pixels.double())):
                q, k, _, reps = mixed(model, layer, x)
                truth = dense(styles[layer], q, k, reps)[0, 1, 7]
                row = torch.tensor(browser.evaluate(f"cbsaExplorer.row({number}, {layer}, 1, 7)"))
                assert (row - truth).abs().max() < 0.06 * truth.max(), (number, layer)
        assert browser.text("#token-text") == "Token: CLS"
        assert browser.evaluate("cbsaExplorer.views.map(view => view.maps.query)") == [0, 10]
        notes = browser.text("#look .columns")
        assert "Its 4 further tokens without a patch" in notes
        assert "This model has no CLS" in notes
        browser.click("#look .column:nth-child(2) canvas", 0.1, 0.1)
        assert browser.text("#token-text") == "Token: row 1, column 1"
        assert browser.evaluate("cbsaExplorer.views.map(view => view.maps.query)") == [5, 0]
        sizes = browser.evaluate("cbsaExplorer.views.map(view => view.maps.layers[0].heads[0].length)")
        assert sizes == [16, 16]
        browser.click("#tokens .column:nth-child(2) .plane", 0.5, 0.5)
        browser.click("#representatives .regions canvas", 0.9, 0.9)
        browser.click("#cls")
        assert browser.evaluate("cbsaExplorer.views.map(view => view.maps.query)") == [0, 10]
        browser.open(page, width=375, height=700, touch=True)  # long names break
        assert browser.evaluate("document.documentElement.scrollWidth") == 375
        assert browser.problems == []
    finally:
        browser.close()
