"""The command line: ``cbsa COMMAND``."""

from typing import Annotated

import typer

from cbsa.cli import (
    adapt,
    analyses,
    bench,
    everything,
    reproduce,
    reproduction,
    segment,
    segmentation_cost,
    segmentation_noise,
    shipped,
    study,
    study_tables,
    train,
    vit_adapt,
    weights,
)
from cbsa.cli.demo import demo
from cbsa.cli.explain import explain
from cbsa.cli.models import models

app = typer.Typer(
    name="cbsa",
    help="Interpretable, linear-time attention: Contract-and-Broadcast Self-Attention.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
analyses.register(reproduce.app)
segmentation_cost.register(reproduce.app)
segmentation_noise.register(reproduce.app)
vit_adapt.register(reproduce.app)
study_tables.register(reproduce.app)
reproduction.register(reproduce.app)
everything.register(reproduce.app)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(bench.app, name="bench")
app.add_typer(segment.app, name="segment")
app.add_typer(shipped.app, name="weights")
app.command()(demo)
app.command()(explain)
app.command()(train.train)
app.command()(train.finetune)
app.command("eval")(train.evaluate)
app.command()(adapt.adapt)
app.command()(study.study)
app.command()(train.plot)
app.command()(models)
app.command()(weights.export)
app.command()(weights.convert)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cbsa._version import __version__

        typer.echo(f"cbsa {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Interpretable, linear-time attention: Contract-and-Broadcast Self-Attention."""
