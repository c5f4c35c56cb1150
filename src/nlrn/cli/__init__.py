"""The command line. Commands are plain functions that call the library; they are listed here."""

from nlrn.cli import ablations, bench, convert, equals, export, models, research, restore
from nlrn.cli.entry import app, main

__all__ = ["app", "main"]

# nlrn --help shows them in this order.
for command in (
    restore.denoise,
    restore.upscale,
    models.explain,
    models.web,
    models.info,
    models.models,
    convert.convert,
    export.export,
    research.train,
):
    app.command()(command)
app.add_typer(research.data_app, name="data")
bench.bench_app.command()(ablations.ablate)
bench.bench_app.command()(equals.equal)
for show in (
    ablations.ablation_metric,
    ablations.ablation_variant,
    ablations.window,
    ablations.steps,
    equals.equal_denoise,
    equals.equal_sr,
):
    bench.bench_app.command()(show)
app.add_typer(bench.bench_app, name="bench")
