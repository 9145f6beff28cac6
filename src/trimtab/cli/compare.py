"""`trimtab compare`."""

import json

import click

from trimtab.algorithms.registry import BASE_NAMES, NAMES
from trimtab.cli import completion
from trimtab.cli.options import Numbers, RunOptions, run_options
from trimtab.cli.output import output_folder, short_name, show, users_output
from trimtab.cli.progress import follow
from trimtab.cli.starting import needs


@click.command()
@click.argument("problem", default="digits", shell_complete=completion.problem)
@click.option(
    "--algorithms",
    help="Names with commas between: " + ", ".join(NAMES) + ".",
    shell_complete=completion.algorithm,
)
@click.option("--K", "K", type=Numbers(), help="Local steps, one number or several: 1,5,20.")
@click.option("--base", type=click.Choice(BASE_NAMES), help="Optimiser in mime, fedopt, ….")
@run_options
@needs("report", "studies.compare")
def compare(
    problem: str,
    algorithms: str | None,
    K: list[int] | None,
    base: str | None,
    options: RunOptions,
) -> None:
    """Tune algorithms on PROBLEM, run them side by side, and say which to use.

    PROBLEM is file.py:function or a built-in name: digits, quadratic, emnist, cifar10, a9a, heart,
    concrete, shakespeare. Data files are looked for in --data, TRIMTAB_DATA and the cache.
    """
    from trimtab.problems.loading import load_problem
    from trimtab.report import write_page
    from trimtab.studies.compare import compare as compare_algorithms

    folder = output_folder(options.out, f"compare-{short_name(problem)}", options.resume)
    loading = {"batch": options.batch, "data": options.data, "seed": options.seed}
    with users_output():
        made, suggested = load_problem(problem, **loading)
        work = compare_algorithms.start(
            made,
            None if algorithms is None else [name.strip() for name in algorithms.split(",")],
            target=suggested if options.target is None else options.target,
            K=K,
            S=options.S,
            R=options.R,
            seed=options.seed,
            base=base,
            name=problem,
            out=folder,
            resume=options.resume,
        )
        result = follow(work, folder)
    result.page = write_page(result, folder / "report.html")
    if options.as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        show(result)
