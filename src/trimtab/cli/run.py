"""`trimtab run`."""

import json
from typing import Any

import click

from trimtab.cli import completion
from trimtab.cli.options import (
    OWN,
    RunOptions,
    WithOwnOptions,
    algorithm_of,
    hyper_options,
    run_options,
)
from trimtab.cli.output import output_folder, short_name, show, users_output
from trimtab.cli.progress import follow
from trimtab.cli.starting import needs


@click.command(cls=WithOwnOptions)
@click.argument("algorithm", shell_complete=completion.algorithm)
@click.argument("problem", default="digits", shell_complete=completion.problem)
@hyper_options
@run_options
@needs("report", "studies.run")
def run(
    algorithm: str,
    problem: str,
    options: RunOptions,
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
    loading = {"batch": options.batch, "data": options.data, "seed": options.seed}
    with users_output():
        chosen = None if ".py" in problem else algorithm_of(algorithm, hyper, own)
        made, _ = load_problem(problem, **loading)
        if chosen is None:  # a file may register algorithms, and so it is read first
            chosen = algorithm_of(algorithm, hyper, own)
        name = f"{kind(chosen).name}-{short_name(problem)}"
        folder = output_folder(options.out, name, options.resume)
        work = run_algorithm.start(
            chosen,
            made,
            S=options.S,
            R=options.R,
            target=options.target,
            seed=options.seed,
            name=problem,
            out=folder,
            resume=options.resume,
        )
        result = follow(work, folder)
    result.page = write_page(result, folder / "report.html")
    if options.as_json:
        only = {"problem": result.problem, "target": options.target, **result.entries[0].to_json()}
        only |= {"page": str(result.page), "model": str(folder / "model.safetensors")}
        only |= {"best_model": str(folder / "best.safetensors")}
        click.echo(json.dumps(only, indent=2))
    else:
        show(result)
        click.echo(f"Model after the last round: {folder / 'model.safetensors'}")
        click.echo(f"Model after the best round: {folder / 'best.safetensors'}")
