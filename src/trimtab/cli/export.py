"""`trimtab export`."""

import json
from pathlib import Path

import click

from trimtab.cli.group import requires
from trimtab.cli.output import users_output
from trimtab.errors import BadArgument

KINDS = ("csv", "tensorboard", "mlflow", "onnx")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR…")
@click.option("--to", "kind", type=click.Choice(KINDS), required=True, help="Format to write.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to [the first DIR].")
@click.option("--algorithm", help="Of a comparison, for onnx [the recommended one].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("report.sources")
def export(
    folders: tuple[Path, ...], kind: str, out: Path | None, algorithm: str | None, as_json: bool
) -> None:
    """Write a model as ONNX, or rounds for a spreadsheet, TensorBoard or MLflow.

    DIR is the folder of a comparison, a run or a federation. Of rounds, all seeds are written, one
    run each. Of a model, model.onnx has the scaling of numbers and of the target in its graph, and
    onnx.json the order of its inputs and classes.
    """
    home = out or folders[0]
    if kind == "onnx":
        paths = _model(folders, home, algorithm)
    else:
        paths = _rounds(folders, home, kind, algorithm)
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


def _model(folders: tuple[Path, ...], home: Path, algorithm: str | None) -> list[Path]:
    """Write the model of one folder as ONNX; return the files."""
    from trimtab.problems.trained import load

    if len(folders) > 1:
        raise BadArgument("to", "{to:onnx} takes one DIR, not {_count}.", _count=len(folders))
    with users_output():
        return load(folders[0], algorithm=algorithm).to_onnx(home)


def _rounds(folders: tuple[Path, ...], home: Path, kind: str, algorithm: str | None) -> list[Path]:
    """Write the rounds of all folders; return the files."""
    from trimtab.report.sources import distinct_sources, read_any

    if algorithm is not None:
        sentence = "{algorithm} chooses a model for {to:onnx}; drop it."
        raise BadArgument("algorithm", sentence)
    sources = distinct_sources([read_any(folder) for folder in folders])
    # Each format has its own extra, so that only the one that is written is imported.
    if kind == "csv":
        from trimtab.report.export import write_csv

        return write_csv(sources, home)
    if kind == "tensorboard":
        from trimtab.report.export import write_tensorboard

        return write_tensorboard(sources, home / "tensorboard")
    from trimtab.report.export import write_mlflow

    return write_mlflow(sources, home / "mlflow")
