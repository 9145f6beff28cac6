"""`trimtab run`."""

import json
from pathlib import Path
from typing import Any

import click

from trimtab.cli.options import OWN, WithOwnOptions, algorithm_of, hyper_options, run_options
from trimtab.cli.output import output_folder, short_name, show, users_output
from trimtab.cli.progress import follow
from trimtab.cli.starting import needs


@click.command(cls=WithOwnOptions)
@click.argument("algorithm")
@click.argument("problem", default="digits")
@hyper_options
@run_options
@needs("report", "studies.run")
def run(
    algorithm: str,
    problem: str,
    S: int | float | None,
    batch: int | float | None,
    R: int,
    target: float | None,
    seed: int,
    data: Path | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    **hyper: Any,
) -> None:
    """Run one ALGORITHM on PROBLEM and leave its model.

    ALGORITHM is a class name in lower case (scaffold, fedavg, …), or mine.py:Mine, whose own
    hyper-parameters are options too; --eta-l or --eta is its step size.
    """
    from trimtab.algorithms.registry import kind
    from trimtab.problems.loading import load_problem
    from trimtab.report import write_page
    from trimtab.studies.run import run as run_algorithm

    own = click.get_current_context().meta[OWN]
    options: dict[str, Any] = {"S": S, "R": R, "target": target, "seed": seed, "resume": resume}
    with users_output():
        chosen = None if ".py" in problem else algorithm_of(algorithm, hyper, own)
        made, _ = load_problem(problem, batch=batch, data=data, seed=seed)
        if chosen is None:  # a file may register algorithms, and so it is read first
            chosen = algorithm_of(algorithm, hyper, own)
        folder = output_folder(out, f"{kind(chosen).name}-{short_name(problem)}", resume)
        work = run_algorithm.start(chosen, made, name=problem, out=folder, **options)
        result = follow(work, folder)
    result.page = write_page(result, folder / "report.html")
    if as_json:
        only = {"problem": result.problem, "target": target, **result.entries[0].to_json()}
        only |= {"page": str(result.page), "model": str(folder / "model.safetensors")}
        only |= {"best_model": str(folder / "best.safetensors")}
        click.echo(json.dumps(only, indent=2))
    else:
        show(result)
        click.echo(f"Model after the last round: {folder / 'model.safetensors'}")
        click.echo(f"Model after the best round: {folder / 'best.safetensors'}")
