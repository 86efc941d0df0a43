"""The package as such: what importing it costs, what it ships, and that its README runs."""

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


@pytest.mark.parametrize("code", python_snippets())
def test_documentation_snippets_run_as_printed(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})


def test_readme_has_snippets():
    assert sum(p.id.startswith("README.md") for p in python_snippets()) >= 2
