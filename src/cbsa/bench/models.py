"""``cbsa bench models``: images per second of CBT beside ViT, CRATE and ToST of the same width."""

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from cbsa._checks import check_choice, check_int
from cbsa.bench.compiling import fresh_compiler
from cbsa.bench.crew import PROCESS_ENDED, Alone, Crew
from cbsa.bench.gate import refusal
from cbsa.bench.model_forms import COMPILATIONS, MODES, PRECISIONS, Form, prepare
from cbsa.bench.origin import CODE, command_line, describe_environment
from cbsa.bench.resident import peak_resident_bytes, reset_peak, resident_bytes
from cbsa.bench.results import DONE, NOT_RUN, REFUSED, Results, Row, open_results, ratio
from cbsa.bench.timing import describe, measure, recover

KEY = ("model", "img_size", "batch", "mode", "precision", "compilation", "num_classes")
SIZES = ("tiny", "small", "base", "large")
FAMILIES = {"cbt": SIZES, "vit": SIZES, "crate": SIZES, "tost": ("tiny", "small")}
COMPARED = tuple(
    f"{family}_{size}_patch16_224" for size in SIZES for family, has in FAMILIES.items() if size in has
)
RESOLUTIONS = (224, 512, 1024, 2048)
OURS = "cbt"
LARGE = 0  # stands for the batch of as many images as make up the token budget
_TOKENS = 1 << 16  # the budget; wider models take their share of it
_SHARE = {"base": 2, "large": 4}


@dataclass(frozen=True)
class Config:
    """What is measured, and how long."""

    models: tuple[str, ...]
    device: torch.device
    img_sizes: tuple[int, ...] = RESOLUTIONS
    modes: tuple[str, ...] = MODES
    batches: tuple[int, ...] = (LARGE, 1)
    precision: str = "bf16"
    compilation: str = "blocks"
    seconds: float = 0.5
    num_classes: int = 1000
    kind: ClassVar[str] = "models"  # what the file of results says it holds
    form: ClassVar[type[Form]] = Form
    code: ClassVar[tuple[str, ...]] = CODE  # folders of the package that the speed depends on
    one_size_at_a_time: ClassVar[bool] = False  # whether rows of larger images wait for those of smaller ones

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("compilation", self.compilation, COMPILATIONS)
        for mode in self.modes:
            check_choice("mode", mode, MODES)
        for batch in self.batches:
            check_int("batch", batch, at_least=0)
        check_int("num_classes", self.num_classes)
        for what in ("models", "img_sizes", "modes", "batches"):
            if not getattr(self, what):
                raise ValueError(f"no {what} to measure")
        for name in self.models:
            patch = patch_size(name)
            for size in self.img_sizes:
                if size < patch or size % patch:
                    raise ValueError(f"size {size} px: {name} needs a multiple of its patch of {patch} px")

    def forms(self) -> Iterator[Form]:
        """The rows there will be: whole comparisons first, should the run be cut short."""
        seen = set()
        for size in self.img_sizes:
            for batch in self.batches:
                for mode in self.modes:
                    for name in self.models:
                        count = batch or large_batch(name, size)
                        how = (mode, self.precision, self.compilation, self.num_classes)
                        form = self.form(name, size, count, *how)
                        if form not in seen:
                            seen.add(form)
                            yield form

    def why_not(self, form: Form, rows: Sequence[Row]) -> str | None:
        """Why a form is not run, if it is not, with the rows measured so far."""
        return None

    def compare(self, rows: Sequence[Row]) -> None:
        """Enter into rows what they are beside others."""
        _compare(rows)


def split_name(name: str) -> tuple[str, str, str]:
    """``"cbt_small_patch16_224"`` as family, size and the rest."""
    family, _, rest = name.partition("_")
    size, _, rest = rest.partition("_")
    return family, size, rest


def patch_size(name: str) -> int:
    """The patch size that a model's name tells."""
    found = [part.removeprefix("patch") for part in name.split("_") if part.startswith("patch")]
    return int(found[0]) if found and found[0].isdigit() else 1


def large_batch(name: str, img_size: int) -> int:
    """The largest power of two of images whose patches stay within the budget, at least 1."""
    patches = (img_size // patch_size(name)) ** 2
    budget = _TOKENS // _SHARE.get(split_name(name)[1], 1)
    return max(1, 1 << int(math.log2(max(budget / patches, 1))))


def choose_models(patterns: Sequence[str]) -> tuple[str, ...]:
    """Models by name or pattern (``*_small_*``): of those compared, or any that timm can create."""
    import timm

    import cbsa.models  # noqa: F401  # registers ours

    chosen: list[str] = []
    for pattern in patterns:
        names = fnmatch.filter(COMPARED, pattern)
        if not names:
            names = [check_choice("model", pattern, timm.list_models())]
        chosen += [name for name in names if name not in chosen]
    return tuple(chosen)


def row_key(form: Form) -> dict[str, Any]:
    """The fields of :data:`KEY`."""
    values = asdict(form)
    return {"model": values.pop("name"), **values}


def run(
    config: Config,
    out: Path,
    *,
    fresh: bool = False,
    jobs: int = 0,
    say: Callable[[str], object] = lambda text: None,
    advance: Callable[[], object] = lambda: None,
    file: str = "",
) -> Results:
    """Measure what ``out`` does not hold yet; every row is written as soon as it is there.

    Args:
        config: what to measure.
        out: folder of the results.
        fresh: forget what ``out`` holds.
        jobs: prepare rows, which is to compile and to check, in so many processes at once; time is taken in
            one of them while the others wait. Up to 1: all in this process.
        say: is told what is happening.
        advance: is called once for each row, measured or found.
        file: name of the results; by default that of their kind.
    """
    path = out / (file or f"{config.kind}.json")
    environment = describe_environment(config.device, config.code)
    results, note = open_results(path, config.kind, KEY, environment, command_line(), fresh)
    if note:
        say(note)
    todo = [form for form in config.forms() if is_missing(results, form)]
    for _ in range(len(list(config.forms())) - len(todo)):
        advance()
    count = max(1, min(jobs, len(todo)))
    with Crew(measure_form, count) if count > 1 else nullcontext() as crew:
        for forms in _waves(todo, count, config.one_size_at_a_time):
            for row in _measure_some(forms, config, results.rows, crew, say):
                results.put(row)
                config.compare(results.rows)
                results.save(path)
                advance()
    return results


def is_missing(results: Results, form: Form) -> bool:
    """Whether a row is to be measured: it is not there, or was not run."""
    found = results.find(row_key(form))
    return found is None or found["status"] == NOT_RUN


def _waves(forms: Sequence[Form], count: int, one_size: bool) -> Iterator[list[Form]]:
    """Forms that are prepared together: at most ``count``, and if it is wanted of images of one size."""
    wave: list[Form] = []
    for form in forms:
        if wave and (len(wave) == count or (one_size and form.img_size != wave[0].img_size)):
            yield wave
            wave = []
        wave.append(form)
    if wave:
        yield wave


def _measure_some(
    forms: Sequence[Form],
    config: Config,
    rows: Sequence[Row],
    crew: Crew | None,
    say: Callable[[str], object],
) -> Iterator[Row]:
    """Rows of forms: each in turn in this process, or all of them prepared side by side."""
    reasons = [config.why_not(form, rows) for form in forms]
    chosen = [form for form, reason in zip(forms, reasons, strict=True) if reason is None]
    for form, reason in zip(forms, reasons, strict=True):
        if reason is not None:
            yield not_run(form, reason)
    if crew is None:
        for form in chosen:
            say(_words(form))
            yield measure_form(form, config.device, config.seconds)
        return
    if chosen:
        more = f" and {len(chosen) - 1} more side by side" if len(chosen) > 1 else ""
        say(f"{_words(chosen[0])}{more}")
    tasks = [(form, config.device, config.seconds) for form in chosen]
    for form, row in zip(chosen, crew.measure(tasks), strict=True):
        yield row if row is not None else not_run(form, PROCESS_ENDED)


def _words(form: Form) -> str:
    return f"{form.name}, {form.img_size} px, {form.mode}, batch {form.batch}"


def not_run(form: Form, reason: str) -> Row:
    """The row of a form that is not run."""
    return {**row_key(form), "status": NOT_RUN, "reason": reason, "errors": []}


def measure_form(form: Form, device: torch.device, seconds: float, alone: Alone = nullcontext) -> Row:
    """One row: build, check, time; the last in the context of ``alone``.

    Its memory is that of a call with model and images. On a CPU, ``process_bytes`` is besides the largest
    resident set of the process, Python and the check included.
    """
    row: Row = {**row_key(form), "status": DONE, "reason": None, "errors": []}
    recover()
    on_cpu = device.type == "cpu"
    allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    before = resident_bytes() if on_cpu else allocated
    reset_peak()
    try:
        with fresh_compiler():
            with _convolutions(deterministic=True, benchmark=False):
                call, checks = prepare(form, device)
            checking = peak_resident_bytes()
            recover()  # what the check held is there for others who prepare at the same time
            row["errors"] = [check.as_dict() for check in checks]
            if (reason := refusal(checks)) is not None:
                row["status"], row["reason"] = REFUSED, reason
            else:
                # One image after another is what a model does in use: its weights may stay in the cache.
                with alone(), _convolutions(deterministic=False, benchmark=True):
                    timing = measure([call], device, seconds=seconds, flush=False, baseline_bytes=before)
                row.update(timing.as_row(), images_s=1e3 * form.batch / timing.median_ms)
                if on_cpu and checking is not None:
                    row["process_bytes"] = max(checking, peak_resident_bytes() or 0)
    except Exception as error:  # whatever a model, a compiler or a capture raises costs this row alone
        row["status"], row["reason"] = NOT_RUN, describe(error)
    recover()
    return row


@contextmanager
def _convolutions(deterministic: bool, benchmark: bool) -> Iterator[None]:
    """How cuDNN chooses its algorithms.

    It is to try them where nothing else runs, when the time is taken. PyTorch remembers its choice for each
    set of sizes and flags, be it tried or guessed: so what comes before has another flag.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = deterministic, benchmark
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def _compare(rows: Sequence[Row]) -> None:
    """Enter how many times the images per second of each row CBT of the same size makes."""
    for row in rows:
        family, size, rest = split_name(row["model"])
        twin = f"{OURS}_{size}_{rest}"
        same = [r for r in rows if r["model"] == twin and all(r[k] == row[k] for k in KEY if k != "model")]
        ours = same[0].get("images_s") if same else None
        row["cbt_over_this"] = None if family == OURS else ratio(ours, row.get("images_s"))
