"""`trimtab compare`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab.algorithms.registry import BASE_NAMES, NAMES
from trimtab.cli import completion
from trimtab.cli.group import requires
from trimtab.cli.options import (
    GroupedCommand,
    Numbers,
    RunOptions,
    cluster_of,
    cluster_option,
    conflicting_steps_error,
    run_options,
)
from trimtab.cli.output import follow_study, output_folder, short_name, show, users_output
from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.studies.space import Prior

# Repeated from studies, which would load torch for `--help`.
UNITS = ("rounds", "exchanges", "bytes", "work")


@click.command(cls=GroupedCommand)
@click.argument("problem", default="digits", shell_complete=completion.problem)
@click.option(
    "--algorithms",
    help="Names separated by commas: " + ", ".join(NAMES) + ".",
    shell_complete=completion.algorithm,
)
@click.option("--K", "K", type=Numbers(), help="Local steps, one number or several: 1,5,20.")
@click.option("--eta-g", type=float, help="The server's step size; searched by default.")
@click.option("--base", type=click.Choice(BASE_NAMES), help="Optimiser in mime, fedopt, ….")
@click.option("--seeds", type=int, default=5, show_default=True, help="Report seeds.")
@click.option("--prefer", type=click.Choice(UNITS), default="rounds", help="The cost to minimise.")
@click.option("--minutes", type=float, help="Limit of everything [default: 5, none with --budget].")
@click.option("--budget", type=float, help="Sample gradients per algorithm, on any machine.")
@click.option(
    "--round-cost",
    type=float,
    default=0.0,
    help="Sample gradients that a round costs besides its own; belongs to --budget.",
)
@click.option(
    "--diagnosed",
    type=click.Path(path_type=Path),
    help="Folder of `trimtab diagnose`: its predictions are tried first, and checked.",
)
@click.option("--baselines", is_flag=True, help="Add each client alone, and all data pooled.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Parallel processes.")
@cluster_option
@run_options
@requires("report", "studies.compare")
def compare(
    problem: str,
    algorithms: str | None,
    K: list[int] | None,
    eta_g: float | None,
    base: str | None,
    options: RunOptions,
    diagnosed: Path | None,
    cluster: str | None,
    **how: Any,
) -> None:
    """Tune algorithms on PROBLEM, run them side by side, and recommend one.

    PROBLEM is file.py:function or a built-in name: digits, quadratic, garnet, emnist, cifar10, a9a,
    heart, concrete, shakespeare. Data files are read from --data, TRIMTAB_DATA or the cache.
    Step size, K, eta_g and momentum are searched unless they are given.
    """
    from trimtab.core import Epochs
    from trimtab.studies.compare import compare as compare_algorithms
    from trimtab.studies.holdout import read_model
    from trimtab.studies.record import move_aside

    if options.epochs is not None and K is not None:
        raise conflicting_steps_error()
    steps = K if options.epochs is None else Epochs(options.epochs)
    folder = output_folder(options.out, f"compare-{short_name(problem)}", options.resume)
    # Everything below may run the user's file, whose prints must not mix with JSON on stdout.
    with users_output():
        spec = options.problem_spec(problem)
        made, _ = spec.problem_and_target
        if options.force:
            move_aside(folder, options.resume)
        work = compare_algorithms.start(
            spec,
            None if algorithms is None else [name.strip() for name in algorithms.split(",")],
            target=options.target,
            metric=options.metric,
            K=steps,
            eta_g=eta_g,
            S=options.S,
            R=options.R,
            seed=options.seed,
            base=base,
            split=_share(options.split),
            x=None if options.init is None else read_model(options.init, made),
            slow=options.slow,
            lost=options.lost,
            available=options.available,
            out=folder,
            resume=options.resume,
            prior=None if diagnosed is None else _prior(diagnosed),
            cluster=cluster_of(cluster),
            **how,
        )
        result = follow_study(work, folder, problem, made, options)
    if options.as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        show(result)


def _share(split: float | str | None) -> float | None:
    # `compare` tunes on validation data, so that a tenth is held out unless `none` is given.
    if split is None:
        return 0.1
    return None if split == "none" else float(split)


def _prior(folder: Path) -> "Prior":
    """Return the predictions of a diagnosis, which the search tries first."""
    from trimtab._files import read_json
    from trimtab.studies.space import Prior

    path = folder / "diagnosis.json"
    if not path.exists():
        raise BadArgument(
            "diagnosed",
            "{_folder} holds no diagnosis.json; pass the folder that `trimtab diagnose` wrote.",
            _folder=folder,
        )
    return Prior.from_diagnosis(read_json(path))
