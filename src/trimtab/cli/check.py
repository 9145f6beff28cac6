"""`trimtab check`: the contract of an algorithm on the command line."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab._files import write_json
from trimtab.cli import completion
from trimtab.cli.group import requires
from trimtab.cli.options import OWN, WithOwnOptions, hyper_options
from trimtab.cli.progress import on_interrupt

if TYPE_CHECKING:
    from trimtab.testing import Verdict


@click.command(cls=WithOwnOptions)
@click.argument("algorithm", shell_complete=completion.algorithm)
@hyper_options
@click.option("--mean-gradient", is_flag=True, help="c_i is the mean gradient, as in SCAFFOLD.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the test problems.")
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

    Its hyper-parameters are options, as for run; the step size is 0.1 and K is 5 unless given. An
    algorithm with control variates (a `c` in the server's state) must keep their rules too.
    """
    from trimtab.algorithms.registry import kind, trial_of
    from trimtab.cli.options import converted
    from trimtab.testing import verdicts

    chosen = kind(algorithm)
    given = {word: value for word, value in hyper.items() if value is not None}
    own = converted(chosen, click.get_current_context().meta[OWN])
    instance = trial_of(chosen, **given | own)
    with on_interrupt("no verdict is saved: repeat the command."):
        judged = list(verdicts(instance, mean_gradient=mean_gradient, seed=seed))
    broken = [verdict for verdict in judged if verdict.broken]
    rules = {v.rule: v.broken or "kept" for v in judged}
    content = {"algorithm": repr(instance), "seed": seed, "rules": rules}
    if out is not None:
        write_json(out, content)
    if as_json:
        click.echo(json.dumps(content, indent=2))
    else:
        _print(instance, judged)
    # As a test runner: 1 for a broken rule, 2 (in `main`) for a command that cannot run.
    sys.exit(1 if broken else 0)


def _print(instance: Any, judged: "list[Verdict]") -> None:
    for verdict in judged:
        # Both words have the same width, so that the rules are aligned.
        click.echo(f"{'broken' if verdict.broken else 'kept  '}  {verdict.says}")
        if verdict.broken:
            click.echo(f"        {verdict.broken}")
    broken = sum(bool(verdict.broken) for verdict in judged)
    kept = f"{len(judged) - broken} of {len(judged)} rules"
    click.echo(f"{instance} keeps {'all ' * (not broken)}{kept}.")
