"""The package as such: what importing it costs, what it ships, and that its README runs."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import cbsa

ROOT = Path(__file__).parents[1]


def test_import_is_light():
    """`import cbsa` needs torch alone of all the dependencies."""
    program = "import cbsa, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(loaded.stdout.split())
    assert "torch" in modules
    heavy = {"timm", "torchvision", "matplotlib", "sklearn", "pyarrow", "rich", "typer", "huggingface_hub"}
    assert not heavy & modules


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
    for module in (cbsa.ops, cbsa.layers, cbsa.objective):
        assert all(hasattr(module, name) for name in module.__all__)


def python_snippets():
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("src/**/*.md"))]:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            yield pytest.param(code, id=f"{path.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(python_snippets()))
def test_documentation_snippets_run_as_printed(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})


def test_the_measurements_in_the_operators_readme_are_those_committed():
    results = {}
    for machine, name in {"2 CPU cores": "cpu", "H200": "h200"}.items():
        data = json.loads((ROOT / f"benchmarks/results/contract_broadcast_{name}.json").read_text())
        for row in data["rows"]:
            key = (machine, row["dtype"].removeprefix("torch."), row["batch"], row["tokens"], row["what"])
            results[key] = f"{row['forward_ms']:.2f} / {row['both_ms']:.2f}"
    text = (ROOT / "src/cbsa/ops/README.md").read_text()
    rows = re.findall(r"\| (2 CPU cores|H200), (\w+) \| (\d+) × (\d+) \| (.*) \|\n", text)
    assert len(rows) == 13
    for machine, dtype, batch, tokens, cells in rows:
        for what, cell in zip(("reference", "sdpa", "full attention"), cells.split(" | "), strict=True):
            assert cell == results.get((machine, dtype, int(batch), int(tokens), what), "—")


def test_readme_has_snippets():
    assert sum(p.id.startswith("README.md") for p in python_snippets()) >= 2
