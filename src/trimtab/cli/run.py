"""`trimtab run`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trimtab.cli import completion
from trimtab.cli.group import requires
from trimtab.cli.options import (
    OWN,
    RunOptions,
    WithOwnOptions,
    algorithm_of,
    cluster_of,
    cluster_option,
    hyper_options,
    run_options,
    with_epochs,
)
from trimtab.cli.output import follow_study, output_folder, short_name, show, users_output
from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.core import Algorithm
    from trimtab.simulation import Executor
    from trimtab.studies.comparison import Comparison


@click.command(cls=WithOwnOptions)
@click.argument("algorithm", shell_complete=completion.algorithm)
@click.argument("problem", default="digits", shell_complete=completion.problem)
@click.option("--patience", type=int, help="Stop after this many rounds without a better metric.")
@click.option(
    "--save",
    type=click.Choice(["best", "last", "both"]),
    default="both",
    show_default=True,
    help="Which models to save.",
)
@cluster_option
@click.option("--shards", type=int, help="Virtual shards with --cluster; bits depend on them.")
@click.option(
    "--snapshots",
    type=click.Path(path_type=Path),
    help="Folder for client states that all machines of the cluster share.",
)
@hyper_options
@run_options
@requires("report", "studies.run")
def run(
    algorithm: str,
    problem: str,
    patience: int | None,
    save: Literal["best", "last", "both"],
    cluster: str | None,
    shards: int | None,
    snapshots: Path | None,
    options: RunOptions,
    **hyper: Any,
) -> None:
    """Run one ALGORITHM on PROBLEM and save its model.

    ALGORITHM is a class name in lower case (scaffold, fedavg, …), or mine.py:Mine, whose own
    hyper-parameters are options too; --eta-l or --eta is its step size.
    """
    from trimtab.algorithms.registry import kind
    from trimtab.studies.run import run as run_algorithm

    own = click.get_current_context().meta[OWN]

    def build() -> "Algorithm":
        return algorithm_of(algorithm, with_epochs(algorithm, hyper, options.epochs), own)

    executor = _executor(cluster, shards, snapshots)
    with users_output():
        # Wrong hyper-parameters are reported before a built-in problem is loaded, which may take
        # long. A problem file may register the algorithm, so that it must be read first.
        chosen = None if ".py" in problem else build()
        made, _ = options.problem_spec(problem).problem_and_target
        if chosen is None:
            chosen = build()
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
            force=options.force,
            metric=options.metric,
            init=options.init,
            save=save,
            patience=patience,
            split=options.split,
            slow=options.slow,
            lost=options.lost,
            available=options.available,
            executor=executor,
        )
        result = follow_study(work, folder, problem, made, options)
    # `--save` decides which of the two files exist.
    models = {
        "last": None if save == "best" else folder / "model.safetensors",
        "best": None if save == "last" else folder / "best.safetensors",
    }
    if options.as_json:
        click.echo(json.dumps(_as_json(result, options.target, models), indent=2))
        return
    show(result)
    assert result.chosen is not None
    for which, path in models.items():
        if path is not None:
            how = f" ({result.chosen.selection})" if which == "best" else ""
            click.echo(f"Model after the {which} round: {path}{how}")


def _as_json(
    result: "Comparison", target: float | None, models: dict[str, Path | None]
) -> dict[str, Any]:
    """Return the JSON of a run: its result, and the paths of page and models."""
    assert result.chosen is not None
    last, best = (None if models[name] is None else str(models[name]) for name in ("last", "best"))
    return {
        **{"problem": result.problem, "target": target, **result.entries[0].to_json()},
        **{"page": str(result.page), "model": last, "best_model": best},
        **result.chosen.to_json(),
    }


def _executor(cluster: str | None, shards: int | None, snapshots: Path | None) -> "Executor | None":
    """Return the executor of a cluster, or None for the default."""
    if cluster is None:
        for name, given in (("shards", shards), ("snapshots", snapshots)):
            if given is not None:
                sentence = "{" + name + "} is for a cluster; pass {cluster} too, or drop it."
                raise BadArgument(name, sentence)
        return None
    # Imported only here: Ray is an extra.
    from trimtab.cluster.executor import Ray
    from trimtab.simulation.executors.tree import SHARDS

    address = cluster_of(cluster)
    count = SHARDS if shards is None else shards
    return Ray(address if isinstance(address, str) else None, count, snapshots=snapshots)
