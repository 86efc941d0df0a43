"""When the layers and impl="auto" take Triton kernels."""

import pytest
import torch

from cbsa.ops import availability

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch on Linux")


@pytest.fixture
def run_on(monkeypatch):
    """Ask anew, of a GPU of some capability."""

    def ask(capability, allowed=True, device="cuda"):
        monkeypatch.setattr(availability, "_KERNELS_ALLOWED", allowed)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        availability._kernels_run_on.cache_clear()
        return availability.kernels_run_on(torch.device(device))

    yield ask
    availability._kernels_run_on.cache_clear()


def test_on_gpus_from_ampere_on_unless_forbidden(run_on):
    assert run_on((8, 0))
    assert run_on((9, 0))
    assert not run_on((7, 5))
    assert not run_on((9, 0), allowed=False)
    assert not run_on((9, 0), device="cpu")


@pytest.mark.parametrize(("value", "allowed"), [(None, True), ("1", True), ("0", False)])
def test_the_environment_decides(value, allowed, monkeypatch):
    monkeypatch.delenv("CBSA_KERNELS", raising=False)
    if value is not None:
        monkeypatch.setenv("CBSA_KERNELS", value)
    assert availability.kernels_allowed() is allowed


@pytest.mark.parametrize("value", ["", "false", "off", "2"])
def test_other_values_are_refused(value, monkeypatch):
    monkeypatch.setenv("CBSA_KERNELS", value)
    with pytest.raises(ValueError, match=f"CBSA_KERNELS='{value}' in the environment: 0 forbids"):
        availability.kernels_allowed()


def test_compiled_code_takes_the_answer_as_a_constant():
    """The mark is set by hand, since PyTorch's decorator imports the compiler: it is the same one."""
    marked = torch.compiler.assume_constant_result(lambda: None)
    assert vars(availability.kernels_run_on) == vars(marked) != {}
