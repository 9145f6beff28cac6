"""`trimtab picture`: pictures of what federated learning is about."""

import json
from pathlib import Path
from typing import Any

import click

from trimtab.cli import completion
from trimtab.cli.group import HelpfulGroup
from trimtab.cli.output import users_output
from trimtab.cli.progress import if_stopped
from trimtab.cli.starting import needs

_NOTHING = "no picture was written: repeat the command."

_out = click.option("--out", type=click.Path(path_type=Path), help="SVG file to write.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
_seed = click.option("--seed", type=int, default=0, show_default=True)


@click.group(cls=HelpfulGroup)
def picture() -> None:
    """Draw client drift from a real run, or who has which labels."""


@picture.command()
@click.option("--K", "K", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--eta-l", type=float, default=0.4, show_default=True, help="Local step size.")
@click.option("--G", "G", type=float, help="How far gradients differ at the optimum [0.96].")
@click.option("-R", "R", type=click.IntRange(min=1), default=30, show_default=True, help="Rounds.")
@click.option("--sigma", type=click.FloatRange(min=0), default=0.0, help="Noise of gradients.")
@_seed
@_out
@_json
@needs("report.drift")
def drift(out: Path | None, as_json: bool, **asked: Any) -> None:
    """Draw Figures 1 and 2 of the SCAFFOLD paper from a real run on two quadratics."""
    from trimtab._files import write_whole
    from trimtab.algorithms.registry import kind
    from trimtab.report.drift import drift as run_drift

    with if_stopped(_NOTHING):
        found = run_drift(**asked)
    path = out or Path("drift.svg")
    write_whole(path, found.svg())
    ends = {kind(walk.algorithm).shown: walk.distance for walk in found.walks}
    if as_json:
        click.echo(json.dumps({"picture": str(path), "G": found.G, "distance": ends}, indent=2))
        return
    for name, distance in ends.items():
        click.echo(f"{name:9} ends {distance:.2g} from x* after {asked['R']} rounds")
    click.echo(f"Picture: {path}")


@picture.command()
@click.argument("problem", default="digits", shell_complete=completion.problem)
@click.option("--partition", help="How built-in data are cut, such as dirichlet:0.1.")
@_seed
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@_out
@_json
@needs("problems.population", "report")
def partition(
    problem: str,
    partition: str | None,
    seed: int,
    data: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Draw who of PROBLEM's clients has which labels, and how many samples."""
    from trimtab._files import write_whole
    from trimtab.problems.adapter import as_problem
    from trimtab.problems.loading import load_problem
    from trimtab.problems.population import population_of
    from trimtab.report.charts.holdings import holdings_chart
    from trimtab.report.charts.standalone import standalone

    with if_stopped(_NOTHING), users_output():
        made = load_problem(problem, partition=partition, data=data, seed=seed)
        found = population_of(as_problem(made))
    if not found.sizes:
        raise ValueError(
            f"{problem} has no samples to draw, or more than 2000 clients; pass another problem."
        )
    path = out or Path("partition.svg")
    write_whole(path, standalone(holdings_chart(found.sizes, found.labels)))
    if as_json:
        click.echo(json.dumps({"picture": str(path), **found.to_json()}, indent=2))
    else:
        low, high = min(found.sizes), max(found.sizes)
        click.echo(f"{found.N} clients with {low} to {high} samples. Picture: {path}")
