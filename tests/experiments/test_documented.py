"""Numbers in docs/analysis.md are those of the committed results."""

import csv
import json

import pytest

from tests.test_package import ROOT, table_in

RESULTS = ROOT / "benchmarks" / "results" / "digits"
TEXT = (ROOT / "docs" / "analysis.md").read_text()


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


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


@pytest.mark.parametrize(("row", "name"), [(0, "fig-reduced-cr"), (1, "step/fig-reduced-cr")])
def test_correlations(row, name):
    found = results(name)["correlations"]
    expected = []
    for label in ("CBT (digits)", "CBT (digits), untrained"):
        by_layer = found[label]["correlation_over_heads_by_layer"]
        expected += [found[label]["correlation"], sum(by_layer) / len(by_layer)]
    assert table_in(TEXT, "r of both reductions")[row][1:] == [f"{value:.2f}" for value in expected]


def test_zero_shot():
    data = results("table-zero-shot")
    for model, *cells in table_in(TEXT, "Jaccard, best maps"):
        name, _, rest = model.partition(", ")
        label = f"{name} (digits)" + (f", {rest}" if rest else "")
        values = data["all_pixels"] if model == "all pixels" else data["best"][label]
        assert cells == [f"{value:.2f}" for value in values.values()]


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
