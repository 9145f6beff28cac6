"""`trimtab compare`."""

import json
from pathlib import Path

import click

from trimtab.algorithms.registry import BASE_NAMES, NAMES
from trimtab.cli.options import Numbers, run_options
from trimtab.cli.output import output_folder, short_name, show, users_output
from trimtab.cli.progress import follow
from trimtab.cli.starting import needs


@click.command()
@click.argument("problem", default="digits")
@click.option("--algorithms", help="Names with commas between: " + ", ".join(NAMES) + ".")
@click.option("--K", "K", type=Numbers(), help="Local steps, one number or several: 1,5,20.")
@click.option("--base", type=click.Choice(BASE_NAMES), help="Optimiser in mime, fedopt, ….")
@run_options
@needs("report", "studies.compare")
def compare(
    problem: str,
    algorithms: str | None,
    K: list[int] | None,
    base: str | None,
    S: int | float | None,
    batch: int | float | None,
    R: int,
    target: float | None,
    seed: int,
    data: Path | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Tune algorithms on PROBLEM, run them side by side, and say which to use.

    PROBLEM is file.py:function or a built-in name: digits, quadratic, emnist, cifar10, a9a, heart,
    concrete, shakespeare. Data files are looked for in --data, TRIMTAB_DATA and the cache.
    """
    from trimtab.problems.loading import load_problem
    from trimtab.report import write_page
    from trimtab.studies.compare import compare as compare_algorithms

    folder = output_folder(out, f"compare-{short_name(problem)}", resume)
    with users_output():
        made, suggested = load_problem(problem, batch=batch, data=data, seed=seed)
        work = compare_algorithms.start(
            made,
            None if algorithms is None else [name.strip() for name in algorithms.split(",")],
            target=suggested if target is None else target,
            K=K,
            S=S,
            R=R,
            seed=seed,
            base=base,
            name=problem,
            out=folder,
            resume=resume,
        )
        result = follow(work, folder)
    result.page = write_page(result, folder / "report.html")
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        show(result)
