"""`trimtab export`."""

import json
from pathlib import Path

import click

from trimtab.cli.group import requires

KINDS = ("csv", "tensorboard", "mlflow")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR…")
@click.option("--to", "kind", type=click.Choice(KINDS), required=True, help="Format to write.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to [the first DIR].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("report.sources")
def export(folders: tuple[Path, ...], kind: str, out: Path | None, as_json: bool) -> None:
    """Write the rounds of finished results for a spreadsheet, TensorBoard or MLflow.

    DIR is the folder of a comparison, a run or a federation. All seeds are written, one run each.
    """
    from trimtab.report.sources import distinct_sources, read_any

    sources = distinct_sources([read_any(folder) for folder in folders])
    home = out or folders[0]
    # Each format has its own extra, so that only the one that is written is imported.
    if kind == "csv":
        from trimtab.report.export import write_csv

        paths = write_csv(sources, home)
    elif kind == "tensorboard":
        from trimtab.report.export import write_tensorboard

        paths = write_tensorboard(sources, home / "tensorboard")
    else:
        from trimtab.report.export import write_mlflow

        paths = write_mlflow(sources, home / "mlflow")
    if as_json:
        click.echo(json.dumps({"to": kind, "paths": [str(path) for path in paths]}, indent=2))
        return
    for path in paths:
        click.echo(f"Written: {path}")
    how = {
        "tensorboard": f"tensorboard --logdir {paths[0]}",
        "mlflow": f"mlflow ui --backend-store-uri sqlite:///{paths[0]}",
    }
    if kind in how:
        click.echo(f"Show it with: {how[kind]}")
