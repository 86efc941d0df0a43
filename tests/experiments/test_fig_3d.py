"""The synthetic experiment against the recursion its singular values must follow."""

import json
import math

import pytest
import torch

from cbsa.experiments import fig_3d
from tests.compare import assert_close


@pytest.fixture(scope="module")
def result():
    return fig_3d.run(fig_3d.Config())


def test_classes_become_lines_and_stay_apart(result):
    raw, final = result.snapshots[0], result.snapshots[-1]
    assert raw.iteration == 0
    assert final.iteration == 1024
    assert min(raw.off_line) > 0.03  # no class is a line to begin with
    assert max(final.off_line) < 1e-4  # every class is one in the end
    assert raw.nearest_line_accuracy < 0.8
    assert final.nearest_line_accuracy > 0.999
    assert final.closest_lines > 20
    length = final.points.norm(dim=-1).amax(-1) / raw.points.norm(dim=-1).amax(-1)
    assert (length > 0.7).all()  # lines, not points: compressed, but not collapsed


def test_snapshots_are_the_papers(result):
    assert [s.iteration for s in result.snapshots] == [0, 1, 256, 512, 640, 768, 896, 1024]
    assert len(result.off_line_history) == 1025


def test_singular_values_follow_their_scalar_recursion(result):
    """σ ← σ − κ·σ/(ε² + σ²), directions unchanged: the iteration in closed form, one number at a time."""
    config = result.config
    left, sigma, right = torch.linalg.svd(fig_3d.synthetic_classes(config), full_matrices=False)
    values = sigma.flatten().tolist()
    for _ in range(config.iterations):
        values = [s - config.step_size * s / (config.eps**2 + s * s) for s in values]
    expected = left @ torch.diag_embed(torch.tensor(values).reshape(sigma.shape).double()) @ right
    assert_close(result.snapshots[-1].points, expected, 1e-6)


def test_synthetic_classes_are_noisy_lines():
    config = fig_3d.Config(points=20_000, noise=0.2)
    z = fig_3d.synthetic_classes(config)
    assert z.shape == (10, 20_000, 3)
    variance = torch.linalg.eigvalsh(z.mT @ z / config.points)  # ascending
    assert_close(variance[:, :2], torch.full((10, 2), 0.04), 0.05)
    assert_close(variance[:, 2], torch.full((10,), 1 / 3 + 0.04), 0.05)
    assert torch.equal(z, fig_3d.synthetic_classes(config))
    assert not torch.equal(z, fig_3d.synthetic_classes(fig_3d.Config(points=20_000, noise=0.2, seed=1)))


def test_measures_in_closed_form():
    line = torch.linspace(-1, 1, 11, dtype=torch.float64)[:, None]
    z = torch.stack([line * torch.tensor([1.0, 0, 0]), line * torch.tensor([1.0, 1.0, 0])]).double()
    snapshot = fig_3d.measure(7, z)
    assert snapshot.iteration == 7
    assert snapshot.worst_off_line < 1e-12
    assert snapshot.closest_lines == pytest.approx(45)
    cross = torch.tensor([[[1.0, 0, 0], [0, 0.5, 0], [0, 0, 0.5]]] * 2).double()
    assert fig_3d.off_line(cross).tolist() == pytest.approx([0.5 / 1.5] * 2)


def test_a_shorter_run_keeps_its_own_last_iteration():
    result = fig_3d.run(fig_3d.Config(iterations=300))
    assert [s.iteration for s in result.snapshots] == [0, 1, 256, 300]


def test_files(result, tmp_path):
    picture, vector, numbers = fig_3d.save(result, tmp_path / "new" / "folder")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 100_000
    assert "<svg" in vector.read_text()[:1000]
    data = json.loads(numbers.read_text())
    assert data["config"]["seed"] == 0
    assert data["environment"]["torch"] == torch.__version__
    assert math.isclose(
        max(data["snapshots"][-1]["off_line_per_class"]), max(result.snapshots[-1].off_line), rel_tol=1e-12
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"classes": 13}, "classes must be at most 12, got 13"),
        ({"points": 2}, "points must be at least 3, got 2"),
        ({"seed": -1}, "seed must be at least 0 and below"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"noise": -0.1}, "noise must be between 1e-6 and 1e6, got -0.1"),
        ({"eps": float("nan")}, "eps must be between 1e-6 and 1e6, got nan"),
    ],
)
def test_bad_settings_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        fig_3d.Config(**setting)


def test_divergence_is_reported():
    with pytest.raises(ValueError, match="diverge at iteration 1: take a smaller step_size"):
        fig_3d.run(fig_3d.Config(step_size=1e6, noise=1e-3))


def test_twelve_lines_still_fit():
    for seed in range(5):
        assert len(fig_3d.synthetic_classes(fig_3d.Config(classes=12, seed=seed))) == 12
