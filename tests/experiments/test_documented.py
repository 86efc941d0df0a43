"""Numbers in docs/analysis.md are those of the committed results."""

import csv
import json

import pytest

from tests.test_package import ROOT, table_in

RESULTS = ROOT / "benchmarks" / "results" / "digits"
PHOTOS = RESULTS.with_name("tiny-imagenet")
TEXT = (ROOT / "docs" / "analysis.md").read_text()


def results(name, folder=RESULTS):
    return json.loads((folder / f"{name}.json").read_text())


def signed(value):
    return f"{value:+.1f}".replace("-", "−").replace("+", "")


def test_coding_rates():
    by_layer = results("fig-coding-rate")["by_layer"]

    def change(label):
        rates = by_layer[label]
        return signed(sum(rates["after_attention"]) - sum(rates["compression"]))

    for model, *cells in table_in(TEXT, "| R_c, layer 1"):
        label = f"{model} (digits)"
        term, unit = by_layer[label]["compression"], by_layer[label]["normalized_compression"]
        assert cells == [
            *(f"{value:.1f}" for value in (term[0], term[-1])),
            change(label),
            change(f"{label}, untrained"),
            *(f"{value:.1f}" for value in (unit[0], unit[-1])),
        ]
        after = by_layer[label]["after_attention"]
        assert all(a < b for a, b in zip(after, term, strict=True)), (
            "the text says that every layer compresses"
        )
        assert term == sorted(term), "the text says that R_c rises with depth"
        assert unit[-1] < unit[0]


@pytest.mark.parametrize(
    ("row", "model", "name"),
    [
        (0, "CBT", "fig-reduced-cr"),
        (1, "CBT", "step/fig-reduced-cr"),
        (2, "CRATE+CBT", "fig-reduced-cr"),
        (3, "CRATE+CBT", "step/fig-reduced-cr"),
    ],
)
def test_correlations(row, model, name):
    found = results(name)["correlations"]
    expected = []
    for label in (f"{model} (digits)", f"{model} (digits), untrained"):
        by_layer = found[label]["correlation_over_heads_by_layer"]
        expected += [found[label]["correlation"], sum(by_layer) / len(by_layer)]
    shown, *cells = table_in(TEXT, "r of both reductions")[row]
    assert shown.startswith(f"{model}, ")
    assert cells == [f"{value:.2f}".replace("-", "−") for value in expected]


def test_zero_shot():
    data = results("table-zero-shot")
    for model, *cells in table_in(TEXT, "Jaccard, best maps"):
        name, _, rest = model.partition(", ")
        label = f"{name} (digits)" + (f", {rest}" if rest else "")
        values = data["all_pixels"] if model == "all pixels" else data["best"][label]
        assert cells == [f"{value:.2f}" for value in values.values()]


def test_zero_shot_by_layer():
    with open(RESULTS / "table-zero-shot-layers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = []
    for name in ("CBT", "CRATE", "CRATE+CBT"):
        values = [float(row["foreground"]) for row in rows if row["model"] == f"{name} (digits)"]
        shown.append(f"{name} {', '.join(f'{value:.2f}' for value in values)}")
    assert "; ".join(shown) in TEXT.replace("\n", " ")


def test_noise():
    for parts, model, *cells in table_in(TEXT, "top-1 in % under noise on"):
        rows = results("fig-perturb" if parts == "all parameters" else "bases/fig-perturb")["by_sigma"][
            f"{model} (digits)"
        ]
        means = {row["sigma"]: row["mean"] for row in rows}
        assert cells == [f"{means[sigma]:.1f}" for sigma in (0, 0.02, 0.05, 0.1, 0.2)]


def test_effective_ranks():
    with open(RESULTS / "fig-rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    means = []
    for label in ("CBT (digits)", "CBT, learned (digits)"):
        own = [row for row in rows if row["model"] == label]
        assert {float(row["lowest_rank"]) for row in own} == {16.0}
        means.append(f"{sum(float(row['effective_rank']) for row in own) / len(own):.1f}")
    assert f"effective ranks are {means[0]}\nand {means[1]}." in TEXT


def test_coding_rates_of_photographs():
    by_layer = results("fig-coding-rate", PHOTOS)["by_layer"]
    changes = {
        label: [a - b for a, b in zip(rates["after_attention"], rates["compression"], strict=True)]
        for label, rates in by_layer.items()
    }
    for model, *cells in table_in(TEXT, "photographs | R_c"):
        term, unit = (by_layer[model][name] for name in ("compression", "normalized_compression"))
        assert cells == [
            *(f"{value:.1f}" for value in (term[0], term[-1])),
            *(signed(sum(changes[label])) for label in (model, f"{model}, untrained")),
            *(f"{value:.1f}" for value in (unit[0], unit[-1])),
        ]
        untrained = by_layer[f"{model}, untrained"]["compression"]
        assert all(a < b for a, b in zip(term, untrained, strict=True)), "the text says: in every layer"
        assert 30 <= sum(changes[model]) / sum(changes[f"{model}, untrained"]) <= 50
    counts = [sum(change < 0 for change in changes[model]) for model in ("CBT", "CRATE")]
    assert "in 7 of 12 of CBT, 10 of 12 of" in TEXT
    assert counts == [7, 10]


def test_correlations_of_photographs():
    found = results("fig-reduced-cr", PHOTOS)["correlations"]
    trained, untrained = (f"{found[label]['correlation']:.2f}" for label in ("CBT", "CBT, untrained"))
    assert f"r = {trained} over the 36 heads of CBT, and {untrained} with random weights" in TEXT


def test_zero_shot_on_photographs():
    data = results("table-zero-shot", PHOTOS)
    for model, *cells in table_in(TEXT, "photographs: Jaccard"):
        values = data["all_pixels"] if model == "all pixels" else data["best"][model]
        assert cells == [f"{value:.2f}" for value in values.values()]
    with open(PHOTOS / "table-zero-shot-layers.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "CBT"]
    by_layer = {int(row["layer"]) + 1: f"{float(row['foreground']):.2f}" for row in rows}
    assert f"({by_layer[12]} in layer 12, {by_layer[1]} in layer 1)" in TEXT


def test_ranks_on_photographs():
    with open(PHOTOS / "fig-rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    ours, untrained = ([row for row in rows if row["model"] == m] for m in ("CBT", "CBT, untrained"))

    def of(rows, name):
        return [float(row[name]) for row in rows]

    full = sum(rank == 64 for rank in of(ours, "lowest_rank"))
    lowest = min(ours, key=lambda row: float(row["lowest_rank"]))
    assert (len(ours), full, sum(rank < 64 for rank in of(ours, "rank"))) == (36, 32, 4)
    assert "here 32 of the 36 heads\nof the trained CBT have it on every image, and 4 average below" in TEXT
    where = f"layer {int(lowest['layer']) + 1}, head {int(lowest['head']) + 1}"
    said = f"down to {float(lowest['lowest_rank']):.0f} on one image ({where}, {float(lowest['rank']):.1f} on"
    assert said in TEXT
    assert set(of(untrained, "lowest_rank")) == {64.0}
    means = [f"{sum(of(r, 'effective_rank')) / len(r):.1f}" for r in (ours, untrained)]
    low, high = min(of(ours, "effective_rank")), max(of(ours, "effective_rank"))
    assert f"{means[0]} on average after it ({low:.1f} to {high:.1f} by head), {means[1]} before" in TEXT


def test_maps_of_photographs():
    spread = results("fig-attn-map", PHOTOS)["spread"]
    names = {"patches that hold 60 %": "patches_with_60_percent", "effective patches": "effective_patches"}
    for what, *cells in table_in(TEXT, "photographs: map of CLS"):
        model, _, name = what.partition(": ")
        own = {row["layer"]: row[names[name]] for row in spread if row["model"] == model}
        assert cells == [f"{own[layer]:.1f}" for layer in (0, 5, 11)]


def test_runs_behind_the_photographs():
    tops = [results("summary", PHOTOS / "runs" / name)["top1"] for name in ("cbt", "crate")]
    assert f"{tops[0]:.1f} and\n{tops[1]:.1f} % top-1" in TEXT


def test_noise_on_photographs():
    by_sigma = results("fig-perturb", PHOTOS)["by_sigma"]
    kept = {}
    for model, *cells in table_in(TEXT, "photographs: top-1 in % under noise"):
        means = {row["sigma"]: row["mean"] for row in by_sigma[model]}
        assert cells == [f"{means[sigma]:.1f}" for sigma in (0, 0.01, 0.02, 0.05, 0.1, 0.2)]
        kept[model] = {sigma: mean / means[0] for sigma, mean in means.items()}
    assert all(shares[0.02] > 0.9 for shares in kept.values()), "the text says: nine tenths"
    shares = [f"{kept[model][sigma]:.0%}" for model, sigma in (("CBT", 0.05), ("CRATE", 0.05), ("CBT", 0.1))]
    assert shares == ["74%", "42%", "14%"]
    assert "CBT keeps 74 % of its accuracy and CRATE 42 %, at 0.1 CBT keeps 14 %" in TEXT
