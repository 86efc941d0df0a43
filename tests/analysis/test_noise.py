"""Noise has the statistics asked for, and leaves no trace."""

import math
import statistics

import pytest
import torch
from torch import nn

import cbsa
from cbsa.analysis import noise as noise_module
from cbsa.analysis import perturb, sweep
from cbsa.layers import CBSA, MHSA, TSSA
from tests.analysis.models import pixels, small_model
from tests.compare import DEVICES


def snapshot(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_bits(left, right):
    """Equal bit for bit, NaN and −0 included."""
    assert left.keys() == right.keys()
    return all(
        torch.equal(
            left[n].contiguous().view(-1).view(torch.uint8), right[n].contiguous().view(-1).view(torch.uint8)
        )
        for n in left
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["cbsa", "mssa", "tssa", "mhsa"])
def test_restored_bit_for_bit(attention, dtype, device):
    model = small_model(attention).to(device, dtype)
    with torch.no_grad():
        weight = model.blocks[0].attn.proj.weight
        weight[0, :3] = torch.tensor([math.nan, -0.0, math.inf])
    before, pointers = snapshot(model), [p.data_ptr() for p in model.parameters()]
    with perturb(model, 0.3, seed=5):
        assert [p.data_ptr() for p in model.parameters()] == pointers  # CUDA graphs keep working
        assert not same_bits(before, snapshot(model))
    assert same_bits(before, snapshot(model))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_restored_after_errors_and_changes():
    model = small_model()
    before = snapshot(model)

    def fail():
        with perturb(model, 1.0):
            model.blocks[0].attn.proj.weight.data.zero_()
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert same_bits(before, snapshot(model))
    with perturb(model, 0.1), perturb(model, 0.1, seed=1):
        pass
    assert same_bits(before, snapshot(model))


def test_interrupted_while_adding_noise(monkeypatch):
    """An error between two parameters is no exception to restoration."""
    model, done = small_model(), []
    before, add = snapshot(model), noise_module._add_noise

    def fail_at_the_third(*args):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(add(*args))

    monkeypatch.setattr(noise_module, "_add_noise", fail_at_the_third)
    with pytest.raises(KeyboardInterrupt), perturb(model, 0.1):
        pass
    assert len(done) == 2
    assert same_bits(before, snapshot(model))


def test_noise_has_the_standard_deviation():
    model = nn.ModuleList([CBSA(256, 4), MHSA(256, 4)]).double()
    before = snapshot(model)
    with perturb(model, 0.05, seed=3) as names:
        after = snapshot(model)
    assert set(names) == set(before)  # each parameter of the attention layers
    noise = {name: (after[name] - before[name]).flatten() for name in names}
    everything = torch.cat(list(noise.values()))
    n = len(everything)
    assert abs(everything.mean()) < 5 * 0.05 / n**0.5
    assert abs(everything.std() - 0.05) < 5 * 0.05 / (2 * n) ** 0.5
    assert abs((everything / 0.05).pow(4).mean() - 3) < 5 * (96 / n) ** 0.5  # Gaussian, not only its variance
    a, b = noise["0.proj.weight"], noise["0.to_out.weight"]
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / len(a) ** 0.5  # independent


def test_noise_depends_on_the_seed_and_the_name_alone():
    def noisy(model, seed, **options):
        before = snapshot(model)
        with perturb(model, 0.1, seed, **options):
            return {name: value - before[name] for name, value in snapshot(model).items()}

    model = small_model()
    first, again, other = noisy(model, 0), noisy(model, 0), noisy(model, 1)
    name = "blocks.1.attn.to_out.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.allclose(first[name], other[name])
    assert torch.equal(first[name], noisy(model, 0, parts="output")[name])
    assert torch.allclose(first[name].float(), noisy(model.float(), 0)[name], atol=1e-6)
    state = torch.get_rng_state()
    noisy(model, 2)
    assert torch.equal(state, torch.get_rng_state())  # the global generator is left alone


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ("bases", {"proj.weight"}),
        (["output"], {"to_out.weight", "to_out.bias"}),
        (("own",), {"step_rep", "step_out", "initial_reps"}),
        (["bases", "own"], {"proj.weight", "step_rep", "step_out", "initial_reps"}),
    ],
)
def test_parts(parts, expected):
    layer = CBSA(8, 2, init="learned")
    before = snapshot(layer)
    with perturb(layer, 0.1, parts=parts) as names:
        changed = {name for name, value in snapshot(layer).items() if not torch.equal(value, before[name])}
    assert set(names) == changed == expected


def test_only_attention_is_perturbed():
    model = small_model()
    before = snapshot(model)
    with perturb(model, 0.1) as names:
        changed = {name for name, value in snapshot(model).items() if not torch.equal(value, before[name])}
        assert not torch.equal(model(pixels(20, 12)), small_model()(pixels(20, 12)))
    assert changed == set(names) == {name for name in before if ".attn." in name}


def test_zero_noise_and_shared_layers():
    layer = CBSA(8, 2, tied=True)
    model = nn.Sequential(layer, layer)
    before = snapshot(model)
    with perturb(model, 0):
        assert same_bits(before, snapshot(model))
    with perturb(model, 0.1) as names:
        assert list(names) == ["0.step_rep", "0.step_out", "0.proj.weight"]
    assert same_bits(before, snapshot(model))


def test_original_tost_is_served():
    model = cbsa.create_model("tost_cab_tiny_12_patch16_224", depth=1)
    with perturb(model, 0.1, parts="own") as names:
        layers = [m for m in model.modules() if isinstance(m, TSSA)]
        assert len(names) == len(layers) == 1


@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        (nn.Linear(2, 2), {}, TypeError, "Linear has no attention layer of cbsa.layers to perturb"),
        (3, {}, TypeError, "model must be a torch.nn.Module, got int"),
        (CBSA(8, 2), {"sigma": -1.0}, ValueError, r"sigma must be at least 0, got -1.0"),
        (CBSA(8, 2), {"sigma": math.nan}, ValueError, "sigma must be finite"),
        (CBSA(8, 2), {"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        (CBSA(8, 2), {"parts": "base"}, ValueError, "parts='base': expected one of .*did you mean 'bases'"),
        (CBSA(8, 2), {"parts": []}, ValueError, "parts is empty: expected one or some of bases, output, own"),
        (CBSA(8, 2, tied=True), {"parts": "output"}, ValueError, r"no parameters of parts=\['output'\]"),
    ],
)
def test_bad_arguments_are_named(model, arguments, error, message):
    with pytest.raises(error, match=message), perturb(model, **{"sigma": 0.1, **arguments}):
        pass


def test_sweep_scores_every_pair():
    calls = []

    def score(sigma, seed):
        calls.append((sigma, seed))
        return 10 * sigma + seed**2

    result = sweep(score, [0, 0.5], [1, 2, 4])
    assert calls == [(s, n) for s in (0, 0.5) for n in (1, 2, 4)]
    assert result.scores.tolist() == [[1, 4, 16], [6, 9, 21]]
    for row, values in zip(result.table(), [[1, 4, 16], [6, 9, 21]], strict=True):
        assert row["mean"] == pytest.approx(statistics.mean(values))
        assert row["std"] == pytest.approx(statistics.stdev(values))
        assert (row["lowest"], row["highest"], row["seeds"]) == (values[0], values[-1], 3)
    assert [row["sigma"] for row in result.table()] == [0, 0.5]
    assert sweep(score, [0.5], [1]).std.isnan().all()


def test_sweep_with_a_model():
    model, images = small_model(), pixels(20, 12)
    clean = model(images)

    @torch.no_grad()
    def change(sigma, seed):
        with perturb(model, sigma, seed):
            return (model(images) - clean).norm().item()

    before = snapshot(model)
    result = sweep(change, [0.0, 1e-4, 1e-2])
    assert result.mean[0] == 0
    assert result.mean[1] < result.mean[2]
    assert result.std[2] > 0
    assert same_bits(before, snapshot(model))


@pytest.mark.parametrize(
    ("sigmas", "seeds", "message"),
    [
        ([], [0], "sigmas is empty"),
        ([0.1], [], "seeds is empty"),
        ([0.1, 0.1], [0], "sigmas must differ from each other"),
        ([-0.1], [0], "sigmas must be at least 0, got -0.1"),
        ([0.1], [-1], "seeds must be at least 0, got -1"),
    ],
)
def test_sweep_names_bad_arguments(sigmas, seeds, message):
    with pytest.raises(ValueError, match=message):
        sweep(lambda sigma, seed: 0.0, sigmas, seeds)
