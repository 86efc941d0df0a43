"""The page in a real browser: its numbers, what clicks, keys and taps do, and that nothing leaves it."""

import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from cbsa.explain import open_image, write_explorer
from cbsa.explain.images import see
from tests.analysis.models import states
from tests.explain.browser import BROWSER, REASON, Page
from tests.explain.pages import HOSTILE, picture, subject

pytestmark = pytest.mark.skipif(BROWSER is None, reason=REASON)
STAGE = "#look .column:nth-child(1) canvas"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture(autouse=True)
def _no_problem(request):
    """After every test: no error on the console, and no request but for the file itself."""
    yield
    if "browser" in request.fixturenames:
        browser = request.getfixturevalue("browser")
        browser.settle()
        assert browser.problems == []
        assert {url.split(":")[0] for url in browser.requests} <= {"file", "data"}


def write(folder, models, images=("a.png",), **kwargs):
    paths = [
        picture(folder / name, size)
        for name, size in zip(images, [(40, 30), (30, 40), (24, 24)], strict=False)
    ]
    return write_explorer(paths, models, folder / "page.html", **kwargs)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return write(tmp_path_factory.mktemp("one"), [subject(classes=["cat", "dog", "owl", "elk"])])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """CBSA on 6×6 patches beside softmax attention, deeper, on 12×12."""
    models = [
        subject(name="Few"),
        subject("mssa", name="All", depth=5, num_heads=4, patch_size=2, trained=False),
    ]
    return write(tmp_path_factory.mktemp("two"), models, ("a.png", "b.png"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """As in the paper's figures: CBT, CRATE and the hybrid of both."""
    kinds = {"CBT": "cbsa", "CRATE": "mssa", "CRATE+CBT": ["mssa", "cbsa", "cbsa"]}
    models = [subject(attention, name=name) for name, attention in kinds.items()]
    return write(tmp_path_factory.mktemp("three"), models)


def shot(browser, selector, tmp_path):
    """Pixels of one element."""
    left, top = browser.place(selector, 0, 0)
    right, bottom = browser.place(selector, 1, 1)
    path = browser.screenshot(tmp_path / "shot.png", full=False)
    return np.asarray(Image.open(path).convert("RGB").crop((left, top, right, bottom))).astype(int)


# --- numbers ----------------------------------------------------------------------------------------------


def projected(looked, path):
    """Tokens within each head of every layer (streams, H, N, p), in float64, blocks run by hand."""
    _, pixels = see(open_image(path), looked.data, "")
    model = looked.model.double()
    for block, (x, _, _) in zip(model.blocks, states(model, pixels.double())[0], strict=True):
        attention = block.attn
        heads = attention.proj(block.norm1(x))[0].unflatten(-1, (attention.streams, attention.num_heads, -1))
        yield attention, heads.permute(1, 2, 0, 3).detach()


def dense_extraction(w, grid, representatives):
    """A (H, m, N) and the dense products A Aᵀ (H, N, N), in float64."""
    patches = w[:, 1:].mT.unflatten(-1, grid)  # (H, p, h, w)
    initial = F.adaptive_avg_pool2d(patches, representatives).flatten(2).mT
    a = (w.shape[-1] ** -0.5 * initial @ w.mT).softmax(-1)
    return a, a.mT @ a


def test_rows_of_cbsa_against_the_dense_product(browser, tmp_path):
    """Within the bound that the quantisation of A has, for every layer, head and token asked for."""
    looked = subject(["cbsa", "agent", "cbsa"])
    browser.open(write(tmp_path, [looked]))
    for layer, (_, streams) in enumerate(projected(looked, tmp_path / "a.png")):
        a, dense = dense_extraction(streams[0], (6, 6), (2, 3))
        largest = a.amax(-1, keepdim=True)
        root = (a / largest) ** 0.25
        error = largest * ((root + 1 / 510) ** 4 - root**4)
        bound = error.mT @ a + a.mT @ error + error.mT @ error
        for head in range(3):
            for token in (0, 1, 20, 36):
                row = torch.tensor(
                    browser.evaluate(f"cbsaExplorer.row(0, {layer}, {head}, {token})")
                ).double()
                truth = dense[head, token]
                assert (row - truth).abs().le(bound[head, token] + 2e-5 * truth.max()).all()
                assert (row - truth).abs().max() < 0.06 * truth.max()


def test_rows_of_cbsa_with_another_broadcast(browser, tmp_path):
    looked = subject(depth=1, attention_kwargs={"broadcast": "softmax"})
    browser.open(write(tmp_path, [looked]))
    ((_, (w,)),) = projected(looked, tmp_path / "a.png")
    a, _ = dense_extraction(w, (6, 6), (2, 3))
    initial = F.adaptive_avg_pool2d(w[:, 1:].mT.unflatten(-1, (6, 6)), (2, 3)).flatten(2).mT
    dense = (w.shape[-1] ** -0.5 * w @ initial.mT).softmax(-1) @ a  # (H, N, N)
    for head, token in ((0, 0), (1, 20), (2, 36)):
        row = torch.tensor(browser.evaluate(f"cbsaExplorer.row(0, 0, {head}, {token})")).double()
        truth = dense[head, token]
        assert (row - truth).abs().max() < 0.03 * truth.max()
        assert (a[head, :, token] @ a[head] - truth).abs().max() > 0.1 * truth.max()  # what A Aᵀ would be


def test_rows_of_softmax_attention_against_the_dense_softmax(browser, tmp_path):
    looked = subject(["mssa", "mhsa", "mssa"])
    browser.open(write(tmp_path, [looked]))
    for layer, (attention, streams) in enumerate(projected(looked, tmp_path / "a.png")):
        q, k = streams[0], streams[min(1, len(streams) - 1)]  # (H, N, p)
        scale = attention.head_dim**-0.5
        dense = (scale * q @ k.mT).softmax(-1)
        steps = [s.abs().amax((1, 2)).view(-1, 1, 1) / 65534 for s in (q, k)]
        drift = scale * (
            q.abs().sum(-1, keepdim=True) * steps[1]
            + k.abs().sum(-1).unsqueeze(-2) * steps[0]
            + q.shape[-1] * steps[0] * steps[1]
        )  # how far a score may lie from the truth
        bound = dense * torch.expm1(2 * drift.amax(-1, keepdim=True) + 1e-4)
        for head in range(3):
            for token in (0, 7, 36):
                row = torch.tensor(
                    browser.evaluate(f"cbsaExplorer.row(0, {layer}, {head}, {token})")
                ).double()
                assert row.sum().item() == pytest.approx(1)
                assert (row - dense[head, token]).abs().le(bound[head, token]).all()
                assert bound[head, token].max() < 0.05


def test_rows_of_linear_attention_and_shares_of_tssa(browser, tmp_path):
    looked = subject(["linear", "tssa", "linear_cbsa"])
    browser.open(write(tmp_path, [looked]))
    (_, (q, k, _)), (tssa, (w,)), _ = projected(looked, tmp_path / "a.png")
    kernel = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    kernel = kernel / kernel.sum(-1, keepdim=True)
    share = ((w / w.norm(dim=1, keepdim=True)).square().sum(-1) * tssa.temp).softmax(0)  # (H, N)
    for head in range(3):
        row = browser.evaluate(f"cbsaExplorer.row(0, 0, {head}, 5)")
        assert row == pytest.approx(kernel[head, 5].tolist(), rel=1e-3, abs=1e-5)
        for token in (0, 5):  # the same for all tokens
            row = browser.evaluate(f"cbsaExplorer.row(0, 1, {head}, {token})")
            assert row == pytest.approx(share[head].tolist(), abs=5e-5)
    assert browser.evaluate("cbsaExplorer.row(0, 2, 0, 0)") == []
    browser.evaluate("document.querySelector('#layer').value = 2")
    browser.evaluate("document.querySelector('#layer').dispatchEvent(new Event('input'))")
    browser.settle()
    assert "add up to 1. Choose a head" in browser.text("#look .caption")
    browser.click("#heads .matrix button[aria-label='Layer 2, TSSA, head 2']")
    assert "not attention over tokens" in browser.text("#look .caption")


def test_representatives_lie_where_pca_puts_them(browser, tmp_path):
    """Extracted and contracted ones, against an SVD in float64; directions have no sign."""
    looked = subject()
    browser.open(write(tmp_path, [looked]))
    for layer, (attention, (w,)) in enumerate(projected(looked, tmp_path / "a.png")):
        a, _ = dense_extraction(w, (6, 6), (2, 3))
        initial = F.adaptive_avg_pool2d(w[:, 1:].mT.unflatten(-1, (6, 6)), (2, 3)).flatten(2).mT
        extracted = initial + attention.step_rep.detach().view(-1, 1, 1) * (a @ w)
        contracted = (w.shape[-1] ** -0.5 * extracted @ extracted.mT).softmax(-1) @ extracted
        both = torch.cat([extracted, contracted], dim=1)  # (H, 2 m, p)
        u, s, _ = torch.linalg.svd(both - both.mean(1, keepdim=True), full_matrices=False)
        truth = (u * s.unsqueeze(-2))[..., :2].abs()
        points = browser.evaluate(f"Array.from(cbsaExplorer.views[0].layers[{layer}].points)")
        found = torch.tensor(points).view(truth.shape).double().abs()
        assert (found - truth).abs().max() < 1e-4 * truth.max()
        shares = browser.evaluate(f"cbsaExplorer.views[0].layers[{layer}].representatives.variance")
        assert shares == pytest.approx((s[:, :2].square().sum(-1) / s.square().sum(-1)).tolist(), rel=1e-4)


# --- choosing ---------------------------------------------------------------------------------------------


def test_it_opens_with_cls_the_first_layer_and_the_predictions(browser, one):
    browser.open(one)
    assert browser.state() | {"token": None, "layer": 0, "head": -1} == browser.state()
    assert browser.text("#token-text") == "Token: CLS"
    assert browser.text("#layer-text") == "Layer 1 of 3"
    labels = browser.evaluate("[...document.querySelectorAll('.predictions .label')].map(e => e.textContent)")
    assert sorted(labels) == ["cat", "dog", "elk", "owl"]
    assert "a.png, seen by Small" in browser.text("#lead")


def test_a_click_keeps_a_token_and_draws_its_maps(browser, one, tmp_path):
    browser.open(one)
    before = shot(browser, STAGE, tmp_path), shot(browser, "#heads .matrix", tmp_path)
    browser.click(STAGE, 2.5 / 6, 4.5 / 6)
    assert browser.text("#token-text") == "Token: row 5, column 3"
    assert browser.evaluate("document.querySelector('#cls').getAttribute('aria-pressed')") == "false"
    browser.hover("h1")
    assert browser.text("#token-text") == "Token: row 5, column 3"  # kept when the pointer has gone
    after = shot(browser, STAGE, tmp_path), shot(browser, "#heads .matrix", tmp_path)
    for old, new in zip(before, after, strict=True):
        assert (np.abs(old - new).max(-1) > 30).mean() > 0.02
    browser.click("#cls")
    assert browser.text("#token-text") == "Token: CLS"
    assert (shot(browser, STAGE, tmp_path) == before[0]).all()


def test_hovering_shows_a_token_only_while_the_pointer_is_there(browser, one):
    browser.open(one)
    browser.hover(STAGE, 0.5 / 6, 0.5 / 6)
    assert browser.text("#token-text") == "Token: row 1, column 1"
    browser.hover("h1")
    assert browser.text("#token-text") == "Token: CLS"


def test_the_slider_moves_the_layer_everywhere(browser, one):
    browser.open(one)
    place = "document.querySelector('.chart .mark').getAttribute('x')"
    caption = browser.text("#representatives figcaption")
    first = float(browser.evaluate(place))
    browser.evaluate("document.querySelector('#layer').focus()")
    browser.press("ArrowRight")
    assert browser.state()["layer"] == 1
    assert browser.text("#layer-text") == "Layer 2 of 3"
    assert float(browser.evaluate(place)) > first
    assert browser.text("#rates .caption").startswith("Layer 2, mean of heads: ")
    assert browser.text("#representatives figcaption") != caption
    assert "After layer 2" in browser.text("#tokens figcaption")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.state()["layer"] == 2  # the last one


def test_the_numbers_shown_are_those_of_the_probes(browser, one):
    browser.open(one)
    rates = browser.evaluate("cbsaExplorer.views[0].rates.input[0]")
    assert f": {sum(rates) / 3:.1f} → " in browser.text("#rates .caption")
    browser.evaluate("document.querySelector('#head').value = 1")
    browser.evaluate("document.querySelector('#head').dispatchEvent(new Event('change'))")
    browser.settle()
    assert f"head 2: {rates[1]:.1f} → " in browser.text("#rates .caption")
    assert "head 2" in browser.text("#look .caption")
    before = browser.text("#rates .caption")
    browser.click("#rates input[type=checkbox]")
    unit = browser.evaluate("cbsaExplorer.views[0].rates.normalized_input[0][1]")
    assert browser.text("#rates .caption") != before
    assert f"head 2: {unit:.1f} → " in browser.text("#rates .caption")


def test_the_bars_tell_by_how_much_attention_changes_the_rates(browser, one):
    browser.open(one)
    rates = browser.evaluate("cbsaExplorer.views[0].rates")
    truth = np.mean(rates["attention"], 1) - np.mean(rates["input"], 1)  # mean of heads, by layer
    bars = browser.evaluate("""[...document.querySelectorAll(".chart .bar")].map(e =>
        [Number(e.getAttribute("height")), e.classList.contains("down")])""")
    heights = np.array([height for height, _ in bars])
    assert heights / heights.max() == pytest.approx(np.abs(truth) / np.abs(truth).max())
    assert [down for _, down in bars] == (truth < 0).tolist()
    said = f"Attention {'lowers' if truth[0] < 0 else 'raises'} it by "
    assert said in browser.text("#rates .caption")
    number = float(browser.text("#rates .caption").split(said)[1].split()[0].rstrip("."))
    assert number == pytest.approx(abs(truth[0]), rel=0.05)


def test_the_bar_of_colours_names_the_ends_of_the_map(browser, one):
    browser.open(one)
    ends = "[...document.querySelectorAll('#look .scale span')].map(e => parseFloat(e.textContent))"
    row = np.array(browser.evaluate("cbsaExplorer.row(0, 0, 0, 0)"))[1:]
    browser.click("#heads .matrix button[aria-label='Layer 1, CBSA, head 1']")
    share = 100 * row / row.sum()
    assert browser.evaluate(ends) == pytest.approx([0, share.max()], rel=0.05)
    browser.click("#stretch")
    least, most = browser.evaluate(ends)
    assert most == pytest.approx(share.max(), rel=0.05)
    assert least == float(f"{share.min():.1g}") > 0  # below 0.1 %, one digit
    browser.click("#look input[type=checkbox]")  # the image alone has no map
    assert not browser.evaluate("!!document.querySelector('#look .scale').offsetParent")


def test_everything_by_keyboard(browser, one):
    browser.open(one)
    browser.evaluate(f"document.querySelector('{STAGE}').focus()")
    browser.press("ArrowRight")  # from CLS to the middle
    assert browser.text("#token-text") == "Token: row 4, column 4"
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowDown", *["ArrowLeft"] * 5):
        browser.press(key)
    assert browser.text("#token-text") == "Token: row 4, column 1"  # stopped at the border
    browser.press("+", "Equal", "+")
    assert browser.state()["layer"] == 1
    browser.press("c", "KeyC", "c")
    assert browser.text("#token-text") == "Token: CLS"
    browser.evaluate("document.querySelector('#heads button[tabindex=\"0\"]').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert {k: browser.state()[k] for k in ("layer", "head")} == {"layer": 2, "head": 0}
    focused = browser.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "Layer 3, CBSA, head 1"


def test_tab_reaches_every_control_and_shows_where_it_is(browser, one):
    browser.open(one)
    browser.evaluate("document.querySelector('h1').tabIndex = -1; document.querySelector('h1').focus()")
    seen = []
    for _ in range(11):
        browser.press("Tab")
        seen.append(browser.evaluate("document.activeElement.id || document.activeElement.className"))
        style = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid" or seen[-1] == "", seen
    controls = ("theme", "play", "layer", "head", "cls", "stretch")
    assert tuple(name for name in seen if name in controls) == controls
    assert "stage" in seen
    assert "cell" in seen


def test_playing_walks_through_the_layers(browser, one):
    browser.open(one, calm=False)
    browser.click("#play")
    assert browser.evaluate("document.querySelector('#play').getAttribute('aria-label')") == "Pause"
    deadline = time.monotonic() + 20
    while browser.state()["layer"] < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert browser.state()["layer"] >= 1
    browser.click("#play")
    stopped = browser.state()["layer"]
    time.sleep(1.4)
    assert browser.state()["layer"] == stopped


def test_representatives_follow_the_token_and_can_be_chosen(browser, one):
    browser.open(one)
    browser.click(STAGE, 0.5 / 6, 0.5 / 6)
    gathered = browser.evaluate("""(() => {
        const { weights } = cbsaExplorer.views[0].layers[0], [, m, n] = weights.shape;
        const weight = (r) => weights.scale[r] * (weights.levels[r * n + 1] / 255) ** 4;
        return Array.from({ length: m }, (_, r) => weight(r)); })()""")
    text = "document.querySelector('#representatives .slider span').textContent"
    assert browser.evaluate(text) == f"Representative {np.argmax(gathered) + 1} of 6"
    browser.evaluate("document.querySelector('#representatives input').focus()")
    browser.evaluate("document.querySelector('#representatives input').value = 2")
    browser.evaluate("document.querySelector('#representatives input').dispatchEvent(new Event('input'))")
    browser.settle()
    assert browser.evaluate(text) == "Representative 2 of 6"
    browser.click("#representatives .moves canvas", 0.1, 0.9)
    assert browser.state()["representative"] is not None
    browser.click("#representatives .regions canvas", 0.95, 0.95)
    assert browser.state()["representative"] in range(6)


def test_tokens_are_chosen_in_the_plane_too(browser, one):
    browser.open(one)
    browser.click("#tokens figure:nth-child(2) canvas", 3.5 / 6, 1.5 / 6)
    assert browser.text("#token-text") == "Token: row 2, column 4"
    browser.click("#tokens .plane", 0.5, 0.5)
    assert browser.text("#token-text") != "Token: row 2, column 4"


def test_stretched_colours_are_others(browser, one, tmp_path):
    browser.open(one)
    before = shot(browser, "#heads .matrix", tmp_path)
    browser.click("#stretch")
    assert (shot(browser, "#heads .matrix", tmp_path) != before).any()


# --- several models and images ----------------------------------------------------------------------------


def test_two_models_show_the_same_place(browser, two):
    """The grids differ: a patch of one is four of the other."""
    browser.open(two)
    assert browser.evaluate("[...document.querySelectorAll('#look h3')].map(e => e.textContent)") == [
        "Few",
        "All",
    ]
    browser.click("#look .column:nth-child(2) canvas", 11.5 / 12, 0.5 / 12)
    assert browser.text("#token-text") == "Token: row 1, column 6"
    tokens = browser.evaluate("cbsaExplorer.views.map(view => view.maps.query)")
    assert tokens == [6, 12]
    warnings = browser.evaluate(
        "[...document.querySelectorAll('.column')].map(e => !!e.querySelector('.warning'))"
    )
    assert warnings[:2] == [False, True]


def test_models_of_other_depth_and_heads_stay_at_their_last(browser, two):
    browser.open(two)
    assert browser.text("#layer-text") == "Layer 1 of 5"
    browser.click("#heads .column:nth-child(2) .matrix button[aria-label='Layer 5, MSSA, head 4']")
    captions = browser.evaluate("[...document.querySelectorAll('#look .caption')].map(e => e.textContent)")
    assert captions[0].startswith("Layer 3 (CBSA), head 3: ")
    assert captions[1].startswith("Layer 5 (MSSA), head 4: ")
    assert "MSSA, which has no representatives" in browser.text(
        "#representatives .column:nth-child(2) .placeholder"
    )


def test_the_picker_changes_the_image(browser, two):
    browser.open(two)
    browser.click(STAGE, 3.5 / 6, 3.5 / 6)
    first = browser.evaluate("cbsaExplorer.row(0, 0, 0, 3)")
    browser.click("#picker button:nth-child(2)")
    deadline = time.monotonic() + 20
    while "b.png" not in browser.text("#lead") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert browser.text("#lead").startswith("b.png, seen by Few · All")
    assert browser.evaluate("cbsaExplorer.row(0, 0, 0, 3)") != first
    assert browser.evaluate("document.querySelectorAll('#look .stage').length") == 2
    assert browser.text("#token-text") == "Token: row 4, column 4"  # the place stays


def test_a_single_model_with_several_images(browser, tmp_path):
    browser.open(write(tmp_path, [subject(depth=1)], ("a.png", "b.png", "c.png")))
    for _ in range(2):
        browser.evaluate("document.querySelector('#picker [aria-checked=true]').focus()")
        name = browser.text("#lead")
        browser.press("ArrowRight")
        deadline = time.monotonic() + 20
        while browser.text("#lead") == name and time.monotonic() < deadline:
            time.sleep(0.02)
    assert browser.text("#lead").startswith("c.png")
    assert browser.evaluate("document.querySelectorAll('#guide').length") == 1


def test_a_browser_that_cannot_read_the_data_says_so(browser, one):
    browser.call("Page.enable")
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    browser.open(one)
    browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert "please open it in a current one" in browser.text("#lead")
    browser.click("#play")  # does nothing yet, without an error
    browser.click("#play")


# --- screens ----------------------------------------------------------------------------------------------


def test_three_models_with_a_hybrid(browser, three):
    """Side by side on a desktop; each layer of the hybrid shows what it has."""
    browser.open(three)
    shown = "[...document.querySelectorAll('#look h3')].filter(e => e.offsetParent).map(e => e.textContent)"
    assert browser.evaluate(shown) == ["CBT", "CRATE", "CRATE+CBT"]
    tops = browser.evaluate(
        "[...document.querySelectorAll('#look .stage')].map(e => e.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1  # in one row
    browser.click("#look .column:nth-child(3) canvas", 1.5 / 6, 2.5 / 6)
    assert browser.evaluate("cbsaExplorer.views.map(view => view.maps.query)") == [14, 14, 14]
    hybrid = "#representatives .column:nth-child(3)"
    assert "Layer 1 is MSSA, which has no representatives" in browser.text(f"{hybrid} .placeholder")
    browser.click("#heads .column:nth-child(3) .matrix button[aria-label='Layer 2, CBSA, head 1']")
    assert browser.text(f"{hybrid} .regions .caption").startswith("Layer 2, head 1: ")
    assert "Layer 2 is MSSA" in browser.text("#representatives .column:nth-child(2) .placeholder")
    sums = browser.evaluate(
        "cbsaExplorer.views.map((_, i) => cbsaExplorer.row(i, 1, 0, 14).reduce((a, b) => a + b))"
    )
    assert sums[1] == pytest.approx(1)  # a row of a softmax
    browser.resize(375, 700, mobile=True)
    browser.settle()
    for number, name in enumerate(("CBT", "CRATE", "CRATE+CBT"), start=1):
        browser.tap(f"#models button:nth-child({number})")
        assert browser.evaluate(shown) == [name]


@pytest.mark.parametrize("width", [375, 768, 1280])
@pytest.mark.parametrize("page", ["two", "three"])
def test_nothing_is_wider_than_the_window(browser, request, page, width):
    browser.open(request.getfixturevalue(page), width=width, touch=width < 500)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    wide = browser.evaluate(f"""[...document.querySelectorAll("main *, header *, .bar *")]
        .filter(e => e.getBoundingClientRect().right > {width} + 1 && !e.closest(".matrix-box, #picker"))
        .map(e => e.outerHTML.slice(0, 80))""")
    assert wide == []


def test_a_tap_on_a_phone(browser, one):
    browser.open(one, width=375, height=700, touch=True)
    browser.tap(STAGE, 1.5 / 6, 2.5 / 6)
    assert browser.text("#token-text") == "Token: row 3, column 2"
    small = browser.evaluate("""[...document.querySelectorAll("button, select, input[type=range], .check")]
        .filter(e => e.offsetParent).map(e => [e.id || e.className, e.getBoundingClientRect()])
        .filter(([, b]) => Math.min(b.width, b.height) < 40).map(([name]) => name)""")
    assert small == []  # large enough for a finger
    inside = browser.evaluate("""(() => {
        const box = (e) => document.querySelector(e).getBoundingClientRect();
        return [box("#play").top - box(".bar").top, box(".bar").bottom - box("#cls").bottom]; })()""")
    assert min(inside) >= 4  # no control at the edge of the bar


def test_a_phone_shows_one_of_several_models_at_a_time(browser, two):
    browser.open(two, width=375, height=700, touch=True)
    shown = "[...document.querySelectorAll('#look h3')].filter(e => e.offsetParent).map(e => e.textContent)"
    assert browser.evaluate(shown) == ["Few"]
    browser.tap("#models button:nth-child(2)")
    assert browser.evaluate(shown) == ["All"]
    size = browser.evaluate("document.querySelector('#look .column.current canvas').width")
    assert size > 300  # drawn as large as it is shown
    browser.tap("#look .column.current canvas", 0.5 / 12, 2.5 / 12)
    assert browser.evaluate("cbsaExplorer.views.map(view => view.maps.query)") == [7, 25]
    browser.resize(1280, 900)
    assert browser.evaluate(shown) == ["Few", "All"]


def test_dark_light_and_the_button_between_them(browser, one):
    def ground():
        colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour[4:-1].split(",")))

    browser.open(one, dark=True)
    browser.evaluate("localStorage.removeItem('cbsa-theme')")
    browser.open(one, dark=True)
    assert ground() < 150
    browser.click("#theme")
    assert browser.evaluate("document.querySelector('#theme').getAttribute('aria-label')") == "Colours: light"
    assert ground() > 600
    browser.open(one, dark=True)
    assert ground() > 600  # remembered
    browser.click("#theme")
    browser.click("#theme")
    assert ground() < 150


def test_a_dark_page_is_printed_dark_on_light(browser, one):
    browser.open(one, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    ink = browser.evaluate("getComputedStyle(document.body).color")
    buttons = "[...document.querySelectorAll('#play, #theme')]"
    shown = browser.evaluate(f"{buttons}.filter(e => e.offsetParent).length")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert sum(map(int, ink[4:-1].split(","))) < 200
    assert shown == 0  # what only a pointer can use


def test_canvases_and_pictures_are_described(browser, two):
    browser.open(two)
    bare = browser.evaluate("""[...document.querySelectorAll("canvas, svg, img, input, select, button")]
        .filter(e => !e.closest("[aria-hidden=true], button canvas"))
        .filter(e => !(e.getAttribute("aria-label") || e.closest("label") || e.textContent.trim()))
        .filter(e => e.alt !== "")  // thumbnails stand beside their names
        .map(e => e.outerHTML.slice(0, 80))""")
    assert bare == []


# --- hostile input ----------------------------------------------------------------------------------------


def test_hostile_names_and_labels_are_only_text(browser, tmp_path):
    name = HOSTILE.replace("/", "_")
    models = [subject(name=HOSTILE, classes=[HOSTILE, "b", "c", "d"]), subject("mssa")]
    browser.open(write(tmp_path, models, (name, "b.png")))
    assert browser.text("#lead") == f"{name}, seen by {HOSTILE} · Small"
    labels = browser.evaluate("[...document.querySelectorAll('.predictions .label')].map(e => e.textContent)")
    assert HOSTILE in labels
    assert browser.evaluate("document.querySelectorAll('main img').length") == 0
    assert browser.evaluate("document.querySelectorAll('script').length") == 6


def test_the_policy_stops_what_would_leave_the_file(browser, one):
    browser.open(one)
    stopped = browser.evaluate("""new Promise((done) => {
        const kinds = [];
        document.addEventListener("securitypolicyviolation", (event) => {
            if (kinds.push(event.effectiveDirective) === 3) done(kinds.sort());
        });
        new Image().src = "http://127.0.0.1:9/x.png";
        fetch("http://127.0.0.1:9/").catch(() => {});
        const script = document.createElement("script");
        script.textContent = "1";
        document.body.append(script);
    })""")
    assert stopped == ["connect-src", "img-src", "script-src-elem"]
    assert not [url for url in browser.requests if url.startswith("http:") and "127" not in url]
    browser.problems.clear()  # the violations, as they should be
    browser.requests.clear()
