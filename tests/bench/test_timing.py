"""How a time is taken: percentiles, the number of samples, failures that cost one row alone."""

import time

import pytest
import torch

from cbsa.bench import timing as timing_module
from cbsa.bench.ceilings import Ceilings, measure_ceilings
from cbsa.bench.resident import resident_bytes
from cbsa.bench.timing import attempt, describe, measure, percentile, summarise

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_percentiles_against_torch():
    values = torch.randn(37, dtype=torch.float64).tolist()
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        expected = torch.tensor(values, dtype=torch.float64).quantile(share).item()
        assert percentile(values, share) == pytest.approx(expected)
    assert percentile([3.0], 0.8) == 3.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_sample_of_several_calls_is_divided_among_them():
    timing = summarise([10.0, 20.0, 30.0, 40.0, 50.0], calls=10, peak_bytes=7)
    assert (timing.median_ms, timing.p20_ms, timing.p80_ms) == pytest.approx((3.0, 1.8, 4.2))
    assert (timing.samples, timing.calls_per_sample, timing.peak_bytes) == (5, 10, 7)


def test_a_sleep_takes_at_least_its_time_and_every_call_is_used():
    used = []

    def sleeper(which):
        def call():
            used.append(which)
            time.sleep(0.002)

        return call

    timing = measure([sleeper(0), sleeper(1), sleeper(2)], CPU, seconds=0.001)
    assert 2.0 <= timing.p20_ms <= timing.median_ms <= timing.p80_ms
    assert timing.samples == 7  # the fewest, though the time was up before
    assert len(used) == 10  # and three to warm up
    assert set(used) == {0, 1, 2}
    assert timing.peak_bytes is None


@pytest.mark.skipif(resident_bytes() is None, reason="the system does not tell the resident set")
def test_memory_of_a_call_on_the_cpu():
    """That of the largest of the calls, above the baseline, whatever was there at times before."""
    torch.ones(128 << 20, dtype=torch.uint8)
    before = resident_bytes()
    kept = torch.ones(32 << 20, dtype=torch.uint8)
    timing = measure(
        [lambda: torch.ones(64 << 20, dtype=torch.uint8)], CPU, seconds=0.001, baseline_bytes=before
    )
    assert timing.peak_bytes == pytest.approx(kept.nbytes + (64 << 20), rel=0.1)


def test_slow_calls_are_timed_a_few_times(monkeypatch):
    monkeypatch.setattr(timing_module, "_SLOW", 0.001)
    calls = []
    timing = measure([lambda: calls.append(time.sleep(0.002))], CPU, seconds=0.001)
    assert (len(calls), timing.samples) == (4, 3)


@pytest.mark.parametrize(("calls", "seconds", "message"), [([], 1.0, "no call"), ([int], 0.0, "above 0")])
def test_nothing_to_time(calls, seconds, message):
    with pytest.raises(ValueError, match=message):
        measure(calls, CPU, seconds=seconds)


def test_a_failure_is_a_reason():
    def fail():
        raise RuntimeError("capture failed\nwith a long story")

    def exhausted():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate …")

    assert attempt(lambda: measure([fail], CPU)) == (None, "RuntimeError: capture failed")
    assert attempt(lambda: measure([exhausted], CPU)) == (None, "out of memory")
    assert attempt(lambda: measure([int], CPU, seconds=1e-4))[1] is None
    assert describe(ValueError()) == "ValueError"


def test_ceilings_are_rates():
    ceilings = measure_ceilings(CPU, seconds=0.01)
    assert ceilings.copy_tb_s > 0
    assert ceilings.matmul_tflops > 0
    assert ceilings.matmul_dtype == "float32"
    assert Ceilings("x", 4.0, 1.0, "x").milliseconds_to_move(4e12) == pytest.approx(1000)


@needs_gpu
def test_a_graph_on_the_gpu():
    device = torch.device("cuda")
    x = torch.randn(1 << 20, device=device)
    timing = measure([lambda: x + 1, lambda: x + 2], device, seconds=0.01)
    assert timing.calls_per_sample == 2
    assert 0 < timing.p20_ms <= timing.median_ms <= timing.p80_ms
    assert timing.peak_bytes == 4 << 20
    reason = attempt(lambda: measure([lambda: x.sum().item()], device, seconds=0.01))[1]
    assert reason is not None  # a synchronisation cannot be captured
    assert measure([lambda: x + 1], device, seconds=0.01).median_ms > 0  # and the next row is none the worse
