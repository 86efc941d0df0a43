"""Every experiment of ``cbsa reproduce`` on settings so small that a CPU does all of them in minutes."""

from dataclasses import dataclass
from pathlib import Path

RUNS = "studies-work"  # folder of the studies' runs
_SIZE = {"embed_dim": 16, "depth": 2, "num_heads": 2}
_SHORT = ("epochs=1", "batch_size=480", "schedule.warmup_epochs=0", "runtime.device=cpu")
_DIGITS = (*(f"model.kwargs.{k}={v}" for k, v in _SIZE.items()), "data.img_size=16", "augment.padding=2")
_SEGMENTER = (
    *("model.encoder=cbt_tiny_patch4_32", *(f"model.encoder_kwargs.{k}={v}" for k, v in _SIZE.items())),
    *("model.decoder_kwargs.depth=1", "data.dataset=folder", "data.short_side=16", "data.crop=16,16"),
    *("data.workers=0", "data.store=device", "windows.size=16,16", "windows.stride=8,8", "epochs=1"),
    *("batch_size=4", "schedule.warmup_epochs=0", "runtime.device=cpu", "runtime.precision=fp32"),
    "runtime.compile=false",
)


@dataclass(frozen=True)
class Step:
    """A command, and the folder it writes into.

    Attributes:
        words: what follows ``cbsa``.
        out: its folder.
        needs: the step before it that it makes use of, by the name of its folder.
    """

    words: tuple[object, ...]
    out: Path
    needs: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        return str(self.words[1] if self.words[0] == "reproduce" else f"{self.words[0]} {self.out.name}")


def smoke_steps(out: Path, scenes: Path) -> list[Step]:
    """Models of seconds first, then each experiment on them.

    Args:
        out: folder for all of it.
        scenes: folder of images with masks, for the segmenter.
    """
    from cbsa.studies.manifest import FOLDER

    manifests = FOLDER / "smoke"
    models = out / "models"
    cbt, vit, adapted, segmenter = (models / name for name in ("cbt", "vit", "adapted", "segmenter"))
    studies = out / "studies"

    def experiment(name: str, *words: object, needs: str = "") -> Step:
        return Step(("reproduce", name, *words, "--out", out / name), out / name, needs)

    def table(name: str, study: str) -> Step:
        manifest = manifests / f"{study}.toml"
        return experiment(name, "--study", manifest, "--results", studies, needs="studies")

    def look(name: str, *words: object) -> Step:
        return experiment(name, "--model", f"CBT={cbt}", "--device", "cpu", *words, needs="cbt")

    vit_size = ("model.kwargs.img_size=16", "model.kwargs.patch_size=4")
    return [
        Step(("train", "digits_cbt", *_DIGITS, *_SHORT, "--out", cbt), cbt),
        Step(("train", "digits_vit", *_DIGITS, *vit_size, *_SHORT, "--out", vit), vit),
        Step(
            (
                *("adapt", *_SHORT, "swap.representatives=2,2", "--recipe", "digits_adapt"),
                *("--model", vit, "--out", adapted),
            ),
            adapted,
            "vit",
        ),
        Step(
            (
                *("segment", "train", "camvid_cbt_tiny", f"data.root={scenes}", *_SEGMENTER),
                *("--out", segmenter),
            ),
            segmenter,
        ),
        Step(("study", manifests, "--out", studies, "--work", out / RUNS), studies),
        experiment("fig-3d", "--points", 20, "--iterations", 8),
        experiment("table-complexity"),
        experiment("fig-complexity"),
        experiment(
            *("table-throughput", "--device", "cpu", "--models", "cbt_tiny_patch16_224,vit_tiny_patch16_224"),
            *("--size", 32, "--batch", 2, "--precision", "fp32", "--no-compile", "--seconds", 0.01),
        ),
        table("table-fair", "digits"),
        table("table-transfer", "transfer"),
        experiment("table-ablations", "--results", studies),
        experiment("table-gap", "--results", studies),
        look("fig-coding-rate", "--images", 16, "--untrained"),
        look("fig-reduced-cr", "--images", 16),
        look("fig-attn-map", "--images", 2),
        look("fig-overview", "--size", 16),
        look("table-zero-shot", "--images", 16),
        look("table-zero-shot-layers", "--images", 16),
        look("fig-rank", "--images", 16),
        look("fig-perturb", "--images", 32, "--sigmas", "0,0.1", "--seeds", 1),
        experiment("table-seg-cost"),
        experiment(
            "fig-seg-noise", "-m", f"CBT={segmenter}", "--sigmas", "0,0.1", "--seeds", 1, needs="segmenter"
        ),
        experiment("fig-vit-adapt", "--runs", adapted, "--widths", "tiny", needs="adapted"),
        # Of what lies there, not of the repository: none of these claims is tested.
        Step(
            ("reproduce", "report", "--root", out, "--out", out / "report" / "REPRODUCTION.md"),
            out / "report",
        ),
    ]
