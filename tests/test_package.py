"""The package as such: what importing it costs, what it ships, and that its README runs."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import cbsa
from cbsa.paper import FAIR

ROOT = Path(__file__).parents[1]


def test_import_is_light_and_leads_to_everything():
    """`import cbsa` needs torch alone of all the dependencies, and of torch not its compiler.

    What needs more is there without an import of its own. `cbsa --help` comes without timm.
    """
    names = "; ".join(f"cbsa.{name}" for name in cbsa.__all__)
    show = "print(*sys.modules)"
    program = f"import cbsa, sys; {show}; import cbsa.cli; {show}; {names}"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    library, command_line = (set(line.split()) for line in loaded.stdout.splitlines())
    heavy = {"timm", "torchvision", "matplotlib", "sklearn", "pyarrow", "huggingface_hub", "torch._dynamo"}
    assert "torch" in library
    assert not (heavy | {"rich", "typer"}) & library
    assert not heavy & command_line


def test_ships_its_types_and_mathematics():
    package = resources.files(cbsa)
    assert (package / "py.typed").is_file()
    assert "backward" in (package / "ops" / "README.md").read_text().lower()


def test_public_names():
    assert set(cbsa.ops.__all__) >= {"contract_broadcast", "pool_tokens"}
    assert set(cbsa.layers.__all__) >= {
        *("CBSA", "MSSA", "TSSA", "LinearCBSA", "ChannelCBSA", "MHSA", "LinearAttention"),
        *("ISTA", "ConvStem", "build_attention"),
    }
    assert set(cbsa.objective.__all__) >= {"coding_rate", "compression", "rate_reduction"}
    for module in (cbsa, cbsa.ops, cbsa.layers, cbsa.objective):
        assert all(hasattr(module, name) for name in module.__all__)
        assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="module 'cbsa' has no attribute 'adpat'"):
        cbsa.adpat  # noqa: B018


def python_snippets():
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("src/**/*.md"))]:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            yield pytest.param(code, id=f"{path.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(python_snippets()))
def test_documentation_snippets_run_as_printed(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})


def measured(machine, kind, *fields):
    """Rows of committed results that hold a number, by the values of some fields."""
    data = json.loads((ROOT / f"benchmarks/results/{machine}/{kind}.json").read_text())
    return {tuple(row[f] for f in fields): row for row in data["rows"] if row["status"] == "done"}


def table_in(text, header):
    """Rows of the Markdown table whose first line starts with ``header``, as lists of cells."""
    lines = text[text.index(f"\n| {header}") + 1 :].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[: next(i for i, x in enumerate(lines) if not x)]]
    assert len(rows) > 2
    return rows[2:]


def pair(values, digits):
    """Two numbers as the tables write them."""
    return " / ".join(f"{value:.{digits}f}" for value in values)


def verdict(values, targets):
    """What the tables say of two numbers that should reach two others."""
    return " / ".join("met" if v >= t else "missed" for v, t in zip(values, targets, strict=True))


OPERATOR_MODES = ("forward", "forward+backward")
MODEL_MODES = ("inference", "training")


def test_cpu_times_in_the_operators_readme_are_those_committed():
    rows = measured("cpu", "ops", "dtype", "tokens", "batch", "candidate", "mode")
    table = table_in((ROOT / "src/cbsa/ops/README.md").read_text(), "dtype | N × batch")
    assert len(table) == len({key[:3] for key in rows}) == 20
    for dtype, size, _, *cells in table:
        tokens, batch = map(int, size.split(" (")[0].split(" × "))
        for what, cell in zip(("reference", "fused-sdpa", "sdpa-default-tied"), cells, strict=True):
            found = [rows.get((dtype, tokens, batch, what, mode)) for mode in OPERATOR_MODES]
            assert cell == (pair([row["median_ms"] for row in found], 2) if all(found) else "—")


def test_gpu_times_in_the_operators_readme_are_those_committed():
    rows = measured("h200", "ops", "tokens", "batch", "candidate", "mode")
    text = (ROOT / "src/cbsa/ops/README.md").read_text()
    times, ratios = table_in(text, "N × batch | CBSA |"), table_in(text, "N × batch | SDPA / CBSA")
    assert len(times) == len(ratios) == len({key[:2] for key in rows}) == 5
    for (size, *cells), (same_size, *shares) in zip(times, ratios, strict=True):
        assert size == same_size
        tokens, batch = map(int, size.split(" × "))
        at = {key[2:]: row for key, row in rows.items() if key[:2] == (tokens, batch)}

        def ms(candidate, at=at):
            return [at[candidate, mode]["median_ms"] for mode in OPERATOR_MODES]

        sdpa = [
            min(row["median_ms"] for (_, m), row in at.items() if row["kind"] == "sdpa" and m == mode)
            for mode in OPERATOR_MODES
        ]
        shown = [ms("auto"), ms("auto-pooled"), sdpa, ms("reference")]
        assert cells == [pair(values, 3) for values in shown]

        ours, target, said, pooled, memory = shares
        over = [
            [theirs / mine for theirs, mine in zip(sdpa, ms(c), strict=True)] for c in ("auto", "auto-pooled")
        ]
        assert ours == pair(over[0], 2)
        assert said == verdict(over[0], map(float, target.split(" / ")))
        assert pooled == pair(over[1], 2)
        assert memory == pair([at["auto", mode]["memory_ratio"] for mode in OPERATOR_MODES], 2)


def test_models_in_the_benchmarks_page_are_those_committed():
    rows = measured("h200", "models", "img_size", "batch", "mode", "model")
    text = (ROOT / "docs/benchmarks.md").read_text()
    tables = {False: table_in(text, "px × batch"), True: table_in(text, "px × one image")}
    for alone, table in tables.items():
        sizes = sorted({key[:2] for key in rows if (key[1] == 1) == alone})
        assert [line[:2] for line in table] == [
            [f"{size} × {batch}", mode] for size, batch in sizes for mode in MODEL_MODES
        ]
        for size, mode, *cells in table:
            key = (*map(int, size.split(" × ")), mode)
            for family, cell in zip(("cbt", "vit", "crate", "tost"), cells, strict=False):
                row = rows.get((*key, f"{family}_small_patch16_224"))
                times = f" ({row['cbt_over_this']:.2f}×)" if row and row["cbt_over_this"] else ""
                assert cell == (f"{row['images_s']:,.0f}{times}" if row else "—")
            if not alone:
                over = rows[*key, "vit_small_patch16_224"]["cbt_over_this"]
                assert cells[5] == verdict([over], [float(cells[4])])


def test_speeds_in_the_readme_are_those_committed():
    text = " ".join((ROOT / "README.md").read_text().split())
    rows = measured("h200", "models", "img_size", "mode", "batch", "model")
    large = {key[:2]: key[2] for key in sorted(rows)}  # the last of each: the largest
    sizes = sorted({key[0] for key in rows})
    said = {}
    for mode in MODEL_MODES:
        ratios = [
            rows[size, mode, large[size, mode], "vit_small_patch16_224"]["cbt_over_this"] for size in sizes
        ]
        first, *middle, last = (f"{ratio:.2g}" for ratio in ratios)
        said[mode] = f"{', '.join([first, *middle])} and {last} times"
        # what the lists at the top say
        for start in (text, " ".join((ROOT / "docs/index.md").read_text().split())):
            assert f"{first} times the images per second of ViT-S at 224 px" in start or mode == "training"
        assert last == "14"
    assert f"{said['inference']} the images/s of ViT-S in inference at 224, 512, 1024 and 2048 px" in text
    assert f"{said['training']} in training" in text

    rows = measured("h200", "ops", "mode", "tokens", "kind", "candidate")
    spans = []
    for mode in OPERATOR_MODES:
        ours = {key[1]: row["median_ms"] for key, row in rows.items() if key[::3] == (mode, "auto")}
        ratios = [
            min(row["median_ms"] for key, row in rows.items() if key[:3] == (mode, tokens, "sdpa")) / ms
            for tokens, ms in ours.items()
        ]
        spans.append(f"{min(ratios):.1f} to {max(ratios):.0f}")
        assert f"{min(ours.values()):.2f} to {max(ours.values()):.2f} ms" in text
    assert f"{' and '.join(spans)} times less than the fastest backend" in text


def test_accuracies_in_the_readme_are_the_papers():
    text = " ".join((ROOT / "README.md").read_text().split())
    tiny, small = ({name: FAIR[f"{name}-{size}"][0] for name in ("CBSA", "MSSA")} for size in "TS")
    assert f"CBSA reaches {tiny['CBSA']} % (tiny) and {small['CBSA']} % (small) top-1" in text
    assert f"(MSSA) {tiny['MSSA']} % and {small['MSSA']} % (the paper's numbers, not ours)" in text
    site = " ".join((ROOT / "docs/index.md").read_text().split())
    assert f"{tiny['CBSA']} % (tiny) and {small['CBSA']} % (small) top-1" in site
    assert f"against {tiny['MSSA']} % and {small['MSSA']} % of the same models" in site


def test_pages_of_the_explorer_are_those_committed():
    data = json.loads((ROOT / "benchmarks/results/cpu/explorer_page.json").read_text())
    rows = {(row["model"], row["size"]): row for row in data["rows"]}
    text = (ROOT / "docs/explorer.md").read_text()
    table = table_in(text, "`cbsa explain IMAGE -m …`")
    assert len(table) * 2 == len(rows)
    for model, *cells in table:
        found = [rows[model.strip("`"), size] for size in (224, 960)]
        assert cells == [
            s for row in found for s in (f"{row['bytes'] / 1e6:.1f} MB", f"{row['cpu_s']:.1f} s")
        ]
    assert ("shared with other work" in text) == data["cores_shared"]


def test_readme_has_snippets():
    assert sum(p.id.startswith("README.md") for p in python_snippets()) >= 2
