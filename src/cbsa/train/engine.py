"""The training loop."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from cbsa.data import Batch
from cbsa.train.averaging import WeightAverage
from cbsa.train.checkpoint import CheckpointFolder
from cbsa.train.config import RunConfig
from cbsa.train.display import Display
from cbsa.train.distributed import World, join_world, parallelise, unwrap
from cbsa.train.initial import kernels, seed_everything
from cbsa.train.log import RunLog
from cbsa.train.optimizer import build_optimizer, set_learning_rate
from cbsa.train.outcome import report_non_finite, summarise
from cbsa.train.pipeline import Pipeline
from cbsa.train.run_folder import locked, read_summary, settle_config, write_summary
from cbsa.train.schedule import learning_rate
from cbsa.train.state import Progress, TrainState
from cbsa.train.step import GradientStep
from cbsa.train.stopping import NonFiniteError, StoppedError, StopRequests
from cbsa.train.tasks import task_of


@dataclass(frozen=True)
class Result:
    """What a run came to; ``metrics`` is None if the run had ended before and nothing was done.

    They are what the task's evaluation gives: :class:`cbsa.train.Metrics` of a classifier.
    """

    folder: Path
    summary: dict[str, Any]
    metrics: Any


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    console: Console | None = None,
    on_look: Callable[[int, float], object] = lambda step, loss: None,
) -> Result:
    """Train a model, or go on with a run that was interrupted, in one process or under ``torchrun``.

    The same call with the same settings continues from the newest checkpoint, exactly where it was: on a CPU
    the result is the same to the last bit as without the interruption.

    Args:
        config: settings; see :mod:`cbsa.train.recipes`. Their kind says what is trained.
        folder: folder of the run. It gets ``config.json``, ``log.jsonl``, ``epochs.csv``, ``checkpoints/``,
            ``model/`` (the weights), ``confusion.csv`` and ``summary.json``.
        console: where to show progress; None for silence.
        on_look: called in every process with the number of steps done and the last loss, whenever the losses
            were looked at: after each step on a CPU, every ``log_every`` steps on a GPU.

    Raises:
        StoppedError: SIGTERM or SIGINT came; the state is saved.
        NonFiniteError: the loss or a parameter is not finite; the last checkpoint is a good one.
    """
    folder, config = Path(folder), task_of(config).settled()
    with join_world(config.runtime) as world, ExitStack() as stack:
        if world.is_main:
            stack.enter_context(locked(folder))
            settle_config(folder, config)
        summary = world.share(read_summary(folder) if world.is_main else None)
        display = stack.enter_context(Display(console if world.is_main else None))
        if summary is not None:
            display.say(f"{escape(str(folder))} holds a finished run: nothing to do")
            return Result(folder, summary, None)
        stack.enter_context(kernels(config.runtime.deterministic))
        stops = stack.enter_context(StopRequests())
        return _Run(config, folder, world, display, stops, on_look).go()


class _Run:
    """One run in one process."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        world: World,
        display: Display,
        stops: StopRequests,
        on_look: Callable[[int, float], object],
    ) -> None:
        self.config, self.folder, self.world, self.display = config, folder, world, display
        self.stops, self.on_look = stops, on_look
        seed_everything(config.seed)
        self.task = task_of(config)
        self.data = Pipeline(self.task, folder, world, display)
        model = self.task.build_model(self.data.num_classes).to(world.device)
        wrapped = parallelise(model, config.runtime, world)
        self.model = unwrap(wrapped)
        if config.runtime.compile:
            self.task.compile_model(self.model)
        optimizer = build_optimizer(self.model, config.optimizer)
        scaler = torch.amp.GradScaler(world.device.type, enabled=config.runtime.precision == "fp16")
        average = WeightAverage(self.model, config.ema) if config.ema else None
        self.state = TrainState(
            self.model, optimizer, scaler, average, Progress(), world, self.task.model_arguments
        )
        objective = self.task.objective(self.data.num_classes, world)
        self.gradients = GradientStep(wrapped, config, scaler, world.device, objective)
        self.checkpoints = CheckpointFolder(folder / "checkpoints", config.checkpoint.keep, display.warn)
        self.log = RunLog(folder, display.warn)
        self.look_every = 1 if world.device.type == "cpu" else config.log_every
        self.steps_per_epoch = self.data.train.steps_per_epoch
        self.total_steps = config.epochs * self.steps_per_epoch
        self.unseen: list[Tensor] = []  # losses since the last look at them, on the device

    def go(self) -> Result:
        """Train to the end."""
        self._introduce()
        self.task.begin(self._assess, self.data.num_classes, self.folder, self.world)
        self._resume()
        self._arrange()
        self.clock = time.perf_counter() - self.state.progress.seconds
        metrics = None
        try:
            with self.display.task("Training", self.total_steps) as update:
                while self.state.progress.step < self.total_steps:
                    metrics = self._epoch(update) or metrics
            return self._finish(metrics or self._evaluate())
        finally:
            self.log.close()

    def _introduce(self) -> None:
        parameters = sum(p.numel() for p in self.model.parameters())
        self.display.say(
            f"[bold]{escape(self.task.model_name)}[/bold], {parameters:,} parameters; "
            f"{self.data.description}; "
            f"{self.config.epochs} epochs of {self.steps_per_epoch} steps of {self.config.batch_size}; "
            f"{self.world.size} × {self.world.device}, {self.config.runtime.precision}"
        )

    def _resume(self) -> None:
        found = self.checkpoints.newest() if self.world.is_main else None
        if self.world.share(found is not None):
            self.state.restore(found)
            self.display.say(f"Going on from step {self.state.progress.step} of {self.total_steps}")
        if self.world.is_main:
            self.log.rewind(self.state.progress.step)

    # --- one epoch ---------------------------------------------------------------------------------------

    def _epoch(self, update: Callable[..., None]) -> Any:
        """Train to the end of the present epoch, evaluate if it is time, and save."""
        config, progress = self.config, self.state.progress
        epoch, first = divmod(progress.step, self.steps_per_epoch)
        batches = iter(self.data.train.epoch(epoch, first))
        self.model.train()
        began = mark = time.perf_counter()
        marked = progress.step
        for _ in range(first, self.steps_per_epoch):
            lr = self._step(batches)
            done = progress.step % self.steps_per_epoch == 0
            save = _divides(config.checkpoint.every_steps, progress.step)
            log = done or _divides(config.log_every, progress.step)
            if not (log or save or _divides(self.look_every, progress.step)):
                continue
            loss = self._look()
            if log:
                now = time.perf_counter()
                speed = (progress.step - marked) * config.batch_size / (now - mark)
                mark, marked = now, progress.step
                record = {"loss": loss, "lr": lr, "images_per_second": speed, **self._memory()}
                self._add_to_log("step", record)
                update(progress.step, **_status(record))
            else:
                update(progress.step)
            if save and not done:
                self._save()
            if not done:
                self._stop_if_asked()
        speed = (self.steps_per_epoch - first) * config.batch_size / (time.perf_counter() - began)
        last = progress.step == self.total_steps
        metrics = self._evaluate() if last or _divides(config.eval_every, epoch + 1) else None
        self._close_epoch(epoch, lr, speed, metrics)
        is_best = metrics is not None and progress.best_epoch == epoch + 1
        if last or is_best or save or _divides(config.checkpoint.every_epochs, epoch + 1):
            self._save(is_best)
        self._stop_if_asked()
        return metrics

    def _step(self, batches: Iterator[Batch]) -> float:
        """One optimiser step; returns its learning rate. Nothing here waits for a GPU."""
        state, settings = self.state, self.config.optimizer
        self._arrange()
        lr = learning_rate(self.config, state.progress.step, self.steps_per_epoch)
        set_learning_rate(state.optimizer, lr)
        self.unseen.append(self.gradients(batches))
        if settings.clip_grad:
            state.scaler.unscale_(state.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_grad)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.average is not None:
            state.average.update()
        state.progress.step += 1
        return lr

    def _arrange(self) -> None:
        """Bring the model into the form that it has in the next step."""
        if self.task.arrange(self.model, self.state.progress.step, self.total_steps):
            self.gradients.forget_graph()

    def _look(self) -> float:
        """Fetch the losses since the last look; stop if one is not finite. Returns the last one."""
        losses = (self.world.sum(torch.stack(self.unseen).double()) / self.world.size).tolist()
        first = self.state.progress.step - len(self.unseen)
        self.unseen.clear()
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                lr = learning_rate(self.config, step, self.steps_per_epoch)
                raise NonFiniteError(report_non_finite(self.folder, self.world, self.data, step, loss, lr))
            self.state.progress.epoch_loss += loss
        self.on_look(self.state.progress.step, losses[-1])
        return float(losses[-1])

    def _evaluate(self) -> Any:
        average = self.state.average
        with average.swapped() if average is not None else nullcontext():
            return self._assess(self.model)

    def _assess(self, model: nn.Module) -> Any:
        with self.display.task("Evaluating") as update:
            return self.task.evaluate(model, self.data.evaluation, self.data.num_classes, self.world, update)

    def _close_epoch(self, epoch: int, lr: float, speed: float, metrics: Any) -> None:
        """Log the epoch, and note whether it is the best so far."""
        self.data.share_unreadable()
        progress = self.state.progress
        train_loss = progress.epoch_loss / self.steps_per_epoch
        record: dict[str, Any] = {"epoch": epoch + 1, "train_loss": train_loss}
        progress.epoch_loss = 0.0
        if metrics is not None:
            record |= self.task.record(metrics)
            score = self.task.score(metrics)
            if score > progress.best:
                progress.best, progress.best_epoch = score, epoch + 1
        record |= {"lr": lr, "images_per_second": speed, **self._memory()}
        self._add_to_log("epoch", record)
        self.display.say(
            f"epoch {epoch + 1:>3}/{self.config.epochs}  loss {train_loss:.4f}"
            + (self.task.describe(metrics, self.data.num_classes) if metrics is not None else "")
            + "".join(f"  {k} {v}" for k, v in _status(record).items())
        )

    # --- around it ---------------------------------------------------------------------------------------

    def _save(self, is_best: bool = False) -> bool:
        """Write a checkpoint, unless a parameter is not finite; all processes take part."""
        progress = self.state.progress
        broken = self.state.first_non_finite()
        if self.world.any(broken is not None):
            raise NonFiniteError(
                f"{broken or 'a parameter of another process'} is not finite at step {progress.step}, though "
                "the losses were; no checkpoint of it is written, and the last one is good. Take a smaller "
                "optimizer.lr, or clip gradients with optimizer.clip_grad=1"
            )
        progress.seconds = time.perf_counter() - self.clock
        state = self.state.capture()
        if not self.world.is_main:
            return True
        if is_best:
            self.checkpoints.save_best(state, self.config)
        return self.checkpoints.save(state, progress.step, self.config)

    def _stop_if_asked(self) -> None:
        """Save and stop if a signal came to any process."""
        if not self.world.any(self.stops.received is not None):
            return
        step, signum = self.state.progress.step, self.stops.received or 15
        kept = self.world.share(self._save())
        raise StoppedError(
            signum,
            f"stopped by signal {signum} after step {step} of {self.total_steps}; "
            + ("the state is saved: the same command goes on from here" if kept else "see the warning above"),
        )

    def _finish(self, metrics: Any) -> Result:
        """Export the model and write the summary."""
        self.state.progress.seconds = time.perf_counter() - self.clock
        state = self.state.capture()
        summary: dict[str, Any] = {}
        if self.world.is_main:
            summary = summarise(self.task, self.folder, self.data, metrics, self.state.progress, self.world)
            self.task.export(self.folder, self.data.num_classes, state, summary)
            write_summary(self.folder, summary)
        return Result(self.folder, self.world.share(summary), metrics)

    def _add_to_log(self, kind: str, record: dict[str, Any]) -> None:
        if self.world.is_main:
            self.log.add(kind, {"step": self.state.progress.step, **record})

    def _memory(self) -> dict[str, float]:
        """Most GPU memory held at once, in GiB."""
        if self.world.device.type != "cuda":
            return {}
        return {"memory_gib": torch.cuda.max_memory_allocated(self.world.device) / 2**30}


def _divides(interval: int, number: int) -> bool:
    """Whether ``number`` is a multiple of ``interval``; 0 divides nothing."""
    return interval > 0 and number % interval == 0


def _status(record: dict[str, Any]) -> dict[str, str]:
    """What the progress bar and the line of an epoch say of a record."""
    status = {"lr": f"{record['lr']:.2e}", "images/s": f"{record['images_per_second']:,.0f}"}
    if "loss" in record:
        status = {"loss": f"{record['loss']:.4f}", **status}
    return status | ({"GiB": f"{record['memory_gib']:.1f}"} if "memory_gib" in record else {})
