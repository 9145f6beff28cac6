"""`trimtab check`: the contract of an algorithm, on the command line."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from trimtab._files import write_json
from trimtab.cli import completion
from trimtab.cli.group import requires
from trimtab.cli.options import OWN, WithOwnOptions, hyper_options
from trimtab.cli.progress import on_interrupt


@click.command(cls=WithOwnOptions)
@click.argument("algorithm", shell_complete=completion.algorithm)
@hyper_options
@click.option("--mean-gradient", is_flag=True, help="c_i is the mean gradient, as in SCAFFOLD.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the problems it is tried on."
)
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the verdicts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("testing")
def check(
    algorithm: str,
    mean_gradient: bool,
    seed: int,
    out: Path | None,
    as_json: bool,
    **hyper: Any,
) -> None:
    """Check an ALGORITHM, such as mine.py:Mine, against the contract, rule by rule.

    Its hyper-parameters are options, as for run; the step size is 0.1 and K is 5 unless given. One
    with control variates (a `c` in the server's state) is checked against their rules too.
    """
    from trimtab.algorithms.registry import kind, trial_of
    from trimtab.cli.options import converted
    from trimtab.testing import verdicts

    chosen = kind(algorithm)
    given = {word: value for word, value in hyper.items() if value is not None}
    own = converted(chosen, click.get_current_context().meta[OWN])
    instance = trial_of(chosen, **given | own)
    with on_interrupt("no verdict is kept: repeat the command."):
        judged = list(verdicts(instance, mean_gradient=mean_gradient, seed=seed))
    broken = [verdict for verdict in judged if verdict.broken]
    rules = {v.rule: v.broken or "kept" for v in judged}
    content = {"algorithm": repr(instance), "seed": seed, "rules": rules}
    if out is not None:
        write_json(out, content)
    if as_json:
        click.echo(json.dumps(content, indent=2))
    else:
        for verdict in judged:
            click.echo(f"{'broken' if verdict.broken else 'kept  '}  {verdict.says}")
            if verdict.broken:
                click.echo(f"        {verdict.broken}")
        kept = f"{len(judged) - len(broken)} of {len(judged)} rules"
        click.echo(f"{instance} keeps {'all ' * (not broken)}{kept}.")
    sys.exit(1 if broken else 0)
