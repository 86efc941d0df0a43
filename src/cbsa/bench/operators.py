"""``cbsa bench ops``: CBSA beside softmax, linear and channel attention, as functions of projected tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbsa._checks import check_choice
from cbsa.bench.candidates import CANDIDATES, SDPA, Candidate
from cbsa.bench.ceilings import Ceilings, measure_ceilings
from cbsa.bench.compiling import fresh_compiler
from cbsa.bench.gate import Check, Gate, refusal
from cbsa.bench.geometry import BOTH, MODES, Geometry
from cbsa.bench.origin import command_line, describe_environment
from cbsa.bench.problems import Function, Problem
from cbsa.bench.results import DONE, NOT_RUN, REFUSED, Results, Row, best, open_results, ratio
from cbsa.bench.timing import Call, Timing, attempt, describe, measure, recover
from cbsa.bench.warm import compile_ahead, compile_candidate

KEY = ("candidate", "tokens", "batch", "heads", "head_dim", "representatives", "dtype", "mode")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
FILE = "ops.json"
_SETS = {"cuda": 8, "cpu": 2}  # inputs of their own for calls that share a graph
_GATE_DRAWS = 2

Progress = Callable[[str], object]


@dataclass(frozen=True)
class Config:
    """What is measured, and how long."""

    geometries: tuple[Geometry, ...]
    candidates: tuple[str, ...]
    device: torch.device
    dtype: str = "bfloat16"
    modes: tuple[str, ...] = MODES
    seconds: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)
        for name in self.candidates:
            check_choice("candidate", name, CANDIDATES)
        for mode in self.modes:
            check_choice("mode", mode, MODES)
        for what, values in (("geometries", self.geometries), ("candidates", self.candidates)):
            if not values:
                raise ValueError(f"no {what} to measure")

    def keys(self) -> Iterator[dict[str, Any]]:
        """The rows there will be: size by size, so that a run that is cut short has whole comparisons."""
        for geometry in self.geometries:
            for name in self.candidates:
                for mode in self.modes:
                    yield row_key(name, geometry, self.dtype, mode)


def row_key(name: str, geometry: Geometry, dtype: str, mode: str) -> dict[str, Any]:
    """The fields of :data:`KEY`."""
    return {
        "candidate": name,
        "tokens": geometry.tokens,
        "batch": geometry.batch,
        "heads": geometry.heads,
        "head_dim": geometry.head_dim,
        "representatives": geometry.representatives,
        "dtype": dtype,
        "mode": mode,
    }


def run(
    config: Config,
    out: Path,
    *,
    fresh: bool = False,
    jobs: int = 0,
    say: Progress = lambda text: None,
    advance: Callable[[], object] = lambda: None,
) -> Results:
    """Measure what ``out`` does not hold yet; every row is written as soon as it is there.

    Args:
        config: what to measure.
        out: folder of ``ops.json``.
        fresh: forget what ``out`` holds.
        jobs: compile ahead in so many processes.
        say: is told what is happening.
        advance: is called once for each row, measured or found.
    """
    path = out / FILE
    environment = describe_environment(config.device)
    results, note = open_results(path, "ops", KEY, environment, command_line(), fresh)
    if note:
        say(note)
    if results.ceilings is None:
        say("ceilings of the machine")
        results.ceilings = measure_ceilings(config.device, config.seconds).as_dict()
        results.save(path)
    ceilings = Ceilings(**results.ceilings)
    tasks = [
        (name, geometry, DTYPES[config.dtype], str(config.device), mode)
        for geometry in config.geometries
        for name in config.candidates
        for mode in config.modes
        if CANDIDATES[name].compiled and _is_missing(results, name, geometry, config, mode)
    ]
    compile_ahead(compile_candidate, tasks, jobs, say)
    for geometry in config.geometries:
        bench = _Size(geometry, config)
        for name in config.candidates:
            wanted = [mode for mode in config.modes if _is_missing(results, name, geometry, config, mode)]
            if wanted:
                say(f"{CANDIDATES[name].label} at {geometry}")
                for row in bench.measure(CANDIDATES[name], wanted, ceilings):
                    results.put(row)
                _compare(results.rows)
                results.save(path)
            for _ in config.modes:
                advance()
        del bench
        recover()
    return results


def _is_missing(results: Results, name: str, geometry: Geometry, config: Config, mode: str) -> bool:
    found = results.find(row_key(name, geometry, config.dtype, mode))
    return found is None or found["status"] == NOT_RUN


def _compare(rows: Sequence[Row]) -> None:
    """Enter how many times faster than the best SDPA of the same size each row is."""
    for row in rows:
        same = [r for r in rows if all(r[k] == row[k] for k in KEY if k != "candidate")]
        rival = best([r for r in same if CANDIDATES[r["candidate"]].kind == SDPA])
        row["times_best_sdpa"] = ratio(rival["median_ms"] if rival else None, row.get("median_ms"))


class _Size:
    """Inputs, truths and tolerances of one size, made when they are first needed."""

    def __init__(self, geometry: Geometry, config: Config) -> None:
        self.geometry, self.config = geometry, config
        self.dtype = DTYPES[config.dtype]
        self._inputs: dict[str, list[list[Tensor]]] = {}
        self._gates: dict[str, Gate] = {}

    def inputs(self, problem: Problem) -> list[list[Tensor]]:
        """Several draws of a problem's inputs."""
        if problem.name not in self._inputs:
            device = self.config.device
            generator = torch.Generator(device).manual_seed(self.config.seed)
            self._inputs[problem.name] = [
                problem.draw(self.geometry, self.dtype, device, generator) for _ in range(_SETS[device.type])
            ]
        return self._inputs[problem.name]

    def gate(self, problem: Problem) -> Gate:
        """The accuracy gate of a problem."""
        if problem.name not in self._gates:
            draws = self.inputs(problem)[:_GATE_DRAWS]
            self._gates[problem.name] = Gate(problem, self.geometry, draws, self.config.seed)
        return self._gates[problem.name]

    def measure(self, candidate: Candidate, modes: Sequence[str], ceilings: Ceilings) -> list[Row]:
        """Check a candidate, and time it where it passed."""
        rows = []
        with fresh_compiler():
            for mode in modes:
                checks, reason, function = self._check(candidate, mode)
                rows.append(self._row(candidate, mode, checks, reason))
                if function is not None and rows[-1]["status"] == DONE:
                    self._time(rows[-1], function, candidate.problem, mode, ceilings)
        if any(row["status"] == NOT_RUN for row in rows):
            recover()
        return rows

    def _check(self, candidate: Candidate, mode: str) -> tuple[list[Check], str | None, Function | None]:
        """What the gate says of a candidate, or why it cannot be run."""
        try:
            function = candidate.build(self.geometry)
            gate = self.gate(candidate.problem)
            if mode != BOTH:
                with torch.no_grad():
                    return gate.check(function, gradients=False), None, function
            return gate.check(function), None, function
        except Exception as error:  # whatever a kernel or a compiler raises costs this row alone
            return [], describe(error), None

    def _row(self, candidate: Candidate, mode: str, checks: list[Check], reason: str | None) -> Row:
        status = DONE
        if reason is not None:
            status = NOT_RUN
        elif (reason := refusal(checks)) is not None:
            status = REFUSED
        return {
            **row_key(candidate.name, self.geometry, self.config.dtype, mode),
            "label": candidate.label,
            "kind": candidate.kind,
            "problem": candidate.problem.name,
            "status": status,
            "reason": reason,
            "errors": [check.as_dict() for check in checks],
        }

    def _time(self, row: Row, function: Function, problem: Problem, mode: str, ceilings: Ceilings) -> None:
        """Add the numbers to a row, or why there are none."""
        seconds, device = self.config.seconds, self.config.device
        timing, reason = attempt(
            lambda: measure(self._calls(function, problem, mode), device, seconds=seconds)
        )
        if timing is None:  # a failed capture, too little memory
            row["status"], row["reason"] = NOT_RUN, reason
            return
        row.update(timing.as_row())
        row.update(self._derived(timing, problem, mode, ceilings))

    def _calls(self, function: Function, problem: Problem, mode: str) -> list[Call]:
        """The work on each set of inputs: forward alone, or forward and all gradients."""

        def forward(leaves: list[Tensor]) -> Tensor:
            with torch.no_grad():
                return function(*leaves)

        def both(leaves: list[Tensor], weight: Tensor) -> tuple[Tensor, ...]:
            out = function(*leaves)
            return out.detach(), *torch.autograd.grad(out, leaves, weight)

        calls: list[Call] = []
        for draw in self.inputs(problem):
            leaves = [x.detach().requires_grad_() for x in draw]
            if mode == BOTH:
                weight = torch.randn_like(draw[0].transpose(1, 2).contiguous()).transpose(1, 2)
                calls.append(lambda leaves=leaves, weight=weight: both(leaves, weight))  # type: ignore[misc]
            else:
                calls.append(lambda leaves=leaves: forward(leaves))  # type: ignore[misc]
        return calls

    def _derived(self, timing: Timing, problem: Problem, mode: str, ceilings: Ceilings) -> dict[str, Any]:
        """Rates and shares of a time."""
        least = self.geometry.least_bytes(mode, self.dtype)
        floor = ceilings.milliseconds_to_move(least)
        held = sum(x.numel() * x.element_size() for x in self.inputs(problem)[0])
        output = self.geometry.token_bytes(self.dtype)
        # Inputs and output, and in training a gradient of each; the output's gradient is given from outside.
        needed = held + output if mode != BOTH else 2 * (held + output)
        given = held if mode != BOTH else held + output
        peak = timing.peak_bytes
        return {
            "least_bytes": least,
            "tb_s": least / (1e-3 * timing.median_ms) / 1e12,
            "floor_ms": floor,
            "of_floor": floor / timing.median_ms,
            "memory_ratio": None if peak is None else (peak + given) / needed,
        }
