"""Several processes: the same run as one process on the same global batch."""

import json
import signal
import time

import pytest
import torch
from torch import distributed, multiprocessing, nn

from cbsa.parallel.sync_batch_norm import SyncBatchNorm2d, synchronise_batch_norm
from cbsa.train.config import RuntimeConfig
from cbsa.train.distributed import join_world
from tests.compare import assert_close
from tests.train.runs import assert_same_bits, finish, last_state, losses, start, torchrun

# A learning rate at which rounding errors do not grow: AdamW divides by small gradients.
CALM = ("optimizer.lr=1e-4", "checkpoint.every_steps=3")
ACCUMULATING = ("accumulate=2", "ema=0.9")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs by number of processes and settings."""
    done = {}

    def run(processes, *settings):
        if (processes, settings) not in done:
            folder = tmp_path_factory.mktemp(f"run{processes}") / "run"
            launcher = torchrun(processes) if processes > 1 else ()
            code, output = finish(start(folder, *CALM, *settings, launcher=launcher))
            assert code == 0, output
            done[processes, settings] = folder
        return done[processes, settings]

    return run


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize(
    "settings",
    [(), ACCUMULATING, ("runtime.parallel=fsdp", *ACCUMULATING), ("runtime.context=2",)],
    ids=["ddp", "ddp accumulating", "fsdp", "context"],
)
def test_losses_are_those_of_one_process(runs, settings):
    common = tuple(s for s in settings if not s.startswith("runtime."))
    one, two = runs(1, *common), runs(2, *settings)
    assert losses(two) == pytest.approx(losses(one), rel=2e-5)
    assert summary(two)["loss"] == pytest.approx(summary(one)["loss"], rel=1e-4)
    assert summary(two)["evaluated_images"] == summary(one)["evaluated_images"] == 359  # none counted twice
    assert summary(two)["processes"] == 2
    for part in ("model", "average") if "ema=0.9" in settings else ("model",):
        a, b = last_state(one)[part], last_state(two)[part]
        assert a.keys() == b.keys()
        for name in a:
            assert_close(b[name].double(), a[name].double(), 1e-3, f"{part} {name}")


def test_two_pairs_of_processes_share_images(runs):
    """Four processes, of which two at a time have the rows of the same images."""
    four = runs(4, "runtime.context=2")
    assert losses(four) == pytest.approx(losses(runs(1)), rel=2e-5)
    assert summary(four)["evaluated_images"] == 359
    assert summary(four)["processes"] == 4


@pytest.mark.parametrize("settings", [(), ("runtime.context=2",)], ids=["ddp", "context"])
def test_a_rank_that_dies_is_started_again(runs, tmp_path, settings):
    """torchrun restarts all processes; they go on from the last checkpoint to the same end."""
    folder = tmp_path / "run"
    launcher = torchrun(2, "--max-restarts=1")
    process = start(folder, *CALM, *settings, launcher=launcher, KILL_AT="5", KILL_RANK="1")
    code, output = finish(process)
    assert code == 0, output
    assert (tmp_path / "run.killed").exists()
    assert losses(folder) == losses(runs(2, *settings))
    assert_same_bits(last_state(folder), last_state(runs(2, *settings)))


def test_the_number_of_processes_may_change(runs, tmp_path):
    """Two processes, one of which dies; the run goes on in one."""
    folder = tmp_path / "run"
    code, output = finish(start(folder, *CALM, launcher=torchrun(2), KILL_AT="4", KILL_RANK="1"))
    assert code != 0, output
    assert last_state(folder)["progress"]["step"] == 3
    code, output = finish(start(folder, *CALM))
    assert code == 0, output
    assert losses(folder) == pytest.approx(losses(runs(1)), rel=2e-5)


def test_a_signal_to_one_rank_saves_and_stops_all(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, *CALM, "epochs=40", launcher=torchrun(2))
    deadline = time.monotonic() + 120
    while not (folder / "log.jsonl").exists() or len(losses(folder)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)  # torchrun hands it on
    code, output = finish(process)
    assert code != 0
    assert "stopped by signal 15" in output
    assert last_state(folder)["progress"]["step"] == max(losses(folder))


def test_images_cannot_be_shared_by_more_processes_than_there_are():
    with (
        pytest.raises(ValueError, match=r"runtime\.context=2 .* where there are 1; start a multiple"),
        join_world(RuntimeConfig(device="cpu", context=2)),
    ):
        pass


# --- batch statistics over processes -------------------------------------------------------------------


SIZES = {"even": (3, 3), "uneven": (4, 1)}  # how many images each of two processes has


def _rank(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for case, sizes in SIZES.items():
        given = torch.load(f"{folder}/{case}.pt")
        first = sum(sizes[:rank])
        part = slice(first, first + sizes[rank])
        norm = nn.BatchNorm2d(5).double()
        norm.load_state_dict(given["norm"])
        norm = SyncBatchNorm2d.of(norm).train()
        x = given["x"][part].clone().requires_grad_()
        out = norm(x)
        out.backward(given["grad"][part])
        torch.save(
            {
                "out": out.detach(),
                "x": x.grad,
                "weight": norm.weight.grad,
                "bias": norm.bias.grad,
                "state": norm.state_dict(),
            },
            f"{folder}/{case}-rank{rank}.pt",
        )
    distributed.destroy_process_group()


def test_synchronised_batch_norm_is_batch_norm_of_the_whole(tmp_path):
    """Outputs, every gradient and the running statistics, in float64; far from 0, where sums cancel."""
    wholes = {}
    for case, sizes in SIZES.items():
        norm = nn.BatchNorm2d(5).double()
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        x = (100 + torch.randn(sum(sizes), 5, 3, 4, dtype=torch.float64)).requires_grad_()
        grad = torch.randn_like(x)
        state = {k: v.clone() for k, v in norm.state_dict().items()}
        torch.save({"norm": state, "x": x.detach(), "grad": grad}, tmp_path / f"{case}.pt")
        out = norm(x)
        out.backward(grad)
        wholes[case] = norm, out, x.grad
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    for case, (norm, out, x_grad) in wholes.items():
        ranks = [torch.load(tmp_path / f"{case}-rank{rank}.pt") for rank in range(2)]
        for name, truth in {"out": out, "x": x_grad}.items():
            assert_close(torch.cat([r[name] for r in ranks]), truth, 1e-10, f"{case} {name}")
        for name, truth in {"weight": norm.weight.grad, "bias": norm.bias.grad}.items():
            assert_close(ranks[0][name] + ranks[1][name], truth, 1e-10, f"{case} {name}")
        for rank in ranks:
            for name, truth in norm.state_dict().items():
                assert_close(rank["state"][name].double(), truth.double(), 1e-12, f"{case} {name}")


def test_synchronised_norms_keep_names_and_evaluate_as_before():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Sequential(nn.BatchNorm2d(3), nn.GELU()))
    x = torch.randn(4, 2, 5, 5)
    model(x)
    before, names = model.eval()(x), list(model.state_dict())
    synchronise_batch_norm(model, torch.device("cpu"))
    assert isinstance(model[1][0], SyncBatchNorm2d)
    assert list(model.state_dict()) == names
    assert torch.equal(model.eval()(x), before)
