"""Commands that make a federation, and that run its server."""

import json
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from trimtab.algorithms.registry import NAMES
from trimtab.cli.federate.output import (
    Watch,
    experiment_option,
    folder_argument,
    json_option,
    page_of_job,
    page_so_far,
    path_type,
    print_instructions,
    print_line,
    until_stopped,
    watching_options,
)
from trimtab.cli.options import (
    OWN,
    CountOrFraction,
    WithOwnOptions,
    algorithm_of,
    hyper_options,
    live_option,
)
from trimtab.cli.output import LivePage, users_output
from trimtab.federation.storage.journal import KEEP

if TYPE_CHECKING:
    from trimtab.core import Algorithm
    from trimtab.federation.events import AuditDone, Ended
    from trimtab.federation.setup.job import Job

# The choices when a site has lost its control variate; docs/commit-protocol.md explains them.
_LOST = click.Choice(["restore", "restart", "refuse"])
# The options of `server` that say how a run goes; the others are of the algorithm.
_OF_RUN = ("R", "target", "min_sites", "round_timeout", "seed", "on_lost_state", "keep")


@click.command()
@folder_argument
@click.option("--sites", default="", help="Sites whose keys are made here, for demonstrations.")
@click.option("--problem", required=True, type=path_type, help="file.py with model and silo.")
@click.option("--weights", type=click.Choice(["uniform", "samples"]), default="uniform")
@click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all; else all.")
@click.option(
    "--host", default="127.0.0.1", help="Names or addresses of the server, separated by commas."
)
@click.option("--port", type=click.IntRange(1, 65535), default=9443, show_default=True)
def init(
    folder: Path,
    sites: str,
    problem: Path,
    weights: str,
    batch: int | float | None,
    host: str,
    port: int,
) -> None:
    """Make the operator's folder DIR: an authority, the server's certificate, the problem."""
    from trimtab.federation.setup.operator import create
    from trimtab.problems.supervised.batches import check_batch

    check_batch(batch)  # Before the folder and its keys are created.
    federation = create(
        folder,
        [name.strip() for name in sites.split(",")] if sites else [],
        problem,
        weights=weights,
        batch=batch,
        hosts=[name.strip() for name in host.split(",")],
        port=port,
    )
    click.echo(f"{folder} is the operator's: keep it private; it holds the federation's keys.")
    if federation.sites:
        print_instructions(federation, list(federation.sites))
    else:
        click.echo(
            f"Each site makes its key with `trimtab federate enroll NAME --federation "
            f"{federation.id}` and sends you the request; admit it with `trimtab federate "
            f"register {folder} REQUEST`."
        )
    click.echo(
        f"Then start the server: trimtab federate server {folder} --algorithm scaffold --eta-l … "
        "--K … -R 50"
    )


@click.command(cls=WithOwnOptions)
@folder_argument
@click.option("--algorithm", required=True, help="One of " + ", ".join(NAMES) + ".")
@hyper_options
@click.option(
    "--experiment", metavar="NAME", help="Another one with the same sites; it waits for its turn."
)
@click.option("-R", "R", type=int, required=True, help="Maximum number of rounds.")
@click.option("--target", type=float, help="Accuracy to reach (regression: loss).")
@click.option(
    "--min-sites", type=int, help="Fewest replies for a round; by default half of the sites, and 3."
)
@click.option("--round-timeout", type=float, default=3600.0, show_default=True, help="Seconds.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--on-lost-state",
    type=_LOST,
    default="restore",
    show_default=True,
    help="What to do when a site has lost its control variate.",
)
@click.option(
    "--keep", type=int, default=KEEP, show_default=True, help="Commits that a rollback can go back."
)
@click.option("--bind", help="Address to listen on; else all, or loopback if that is the host.")
@watching_options
@json_option
@live_option
def server(
    folder: Path,
    algorithm: str,
    experiment: str | None,
    bind: str | None,
    watch: Watch,
    as_json: bool,
    live: bool,
    **options: Any,
) -> None:
    """Run an algorithm over the sites of the federation in DIR."""
    from trimtab.federation.setup.job import start_job, state_of
    from trimtab.federation.setup.operator import Federation

    federation = Federation.read(folder)
    # Reading the problem file may register the algorithm.
    _ = federation.problem
    of_run = {name: options.pop(name) for name in _OF_RUN}
    chosen = algorithm_of(algorithm, options, click.get_current_context().meta[OWN])
    # Over real networks bytes count: SCAFFOLD uploads dx alone unless --no-lean is given.
    if options["lean"] is None:
        chosen = _lean(chosen)
    state = "state" if experiment is None else state_of(folder, experiment)
    job = start_job(federation, chosen, state=state, **of_run)
    outcome = _serve(folder, job, bind, watch, live)
    _show_summary(folder, job, outcome, as_json)


@click.command()
@folder_argument
@experiment_option
@click.option("-R", "R", type=int, help="Maximum number of rounds, earlier ones included.")
@click.option("--target", type=float)
@click.option("--min-sites", type=int)
@click.option("--round-timeout", type=float)
@click.option("--on-lost-state", type=_LOST)
@click.option("--restart-controls", is_flag=True, help="Start with c = 0 and all c_i = 0.")
@click.option("--bind")
@watching_options
@json_option
@live_option
def resume(
    folder: Path,
    experiment: str | None,
    restart_controls: bool,
    bind: str | None,
    watch: Watch,
    as_json: bool,
    live: bool,
    **changes: Any,
) -> None:
    """Continue the experiment in DIR from its last committed round."""
    from trimtab._files import Lock
    from trimtab.federation.protocol import controls
    from trimtab.federation.setup.job import resume_job, state_of
    from trimtab.federation.setup.operator import Federation

    federation = Federation.read(folder)
    job = resume_job(federation, state=state_of(folder, experiment), **changes)
    if restart_controls:
        _ = federation.problem  # It may register the algorithm.
        with Lock(folder / job.state):
            controls.restart_controls(folder / job.state, job.keep)
    outcome = _serve(folder, job, bind, watch, live)
    _show_summary(folder, job, outcome, as_json)


@click.command()
@folder_argument
@experiment_option
@click.option("--bind")
@json_option
def audit(folder: Path, experiment: str | None, bind: str | None, as_json: bool) -> None:
    """Check c = sum p_i c_i over the sites of DIR, which must be running; the server must not."""
    from trimtab.federation.events import to_json
    from trimtab.federation.setup.job import resume_job, state_of
    from trimtab.federation.setup.operator import Federation

    # An audit is a job of another kind over the same sites and states.
    job = resume_job(Federation.read(folder), state=state_of(folder, experiment))
    job = replace(job, kind="audit")
    done = _serve(folder, job, bind).audit
    assert done is not None
    click.echo(json.dumps(to_json(done), indent=2) if as_json else done.sentence)
    # Exit code 1, so that a script notices.
    if not done.ok:
        sys.exit(1)


def _lean(algorithm: "Algorithm") -> "Algorithm":
    """Return SCAFFOLD that uploads dx alone, if that is possible; other algorithms unchanged."""
    from trimtab.algorithms import Scaffold
    from trimtab.core.hyper import Epochs

    if isinstance(algorithm, Scaffold) and algorithm.option == "II":
        # With epochs the server does not know K_i, and cannot compute dc from dx.
        return replace(algorithm, lean=not isinstance(algorithm.K, Epochs))
    return algorithm


@dataclass
class _Outcome:
    """The last events of a job."""

    ended: "Ended | None" = None
    audit: "AuditDone | None" = None


def _serve(
    folder: Path,
    job: "Job",
    bind: str | None,
    watch: Watch = Watch(),  # noqa: B008
    live: bool = False,
) -> _Outcome:
    """Run a server until its job is done, when no other experiment runs, and show its events."""
    from trimtab.algorithms.registry import decode
    from trimtab.federation.events import AuditDone, RoundCommitted, round_text
    from trimtab.federation.log import LOGGER, attached
    from trimtab.federation.processes.metrics import OperatorView
    from trimtab.federation.processes.operator import OperatorProcess
    from trimtab.federation.setup.job import turn, warnings_of
    from trimtab.federation.setup.operator import Federation
    from trimtab.report.federation import write_federation

    console, outcome, today = Console(stderr=True, emoji=False), _Outcome(), None

    def show(line: str) -> None:
        print_line(console, line)

    # The contexts end in reverse order: the log is closed after the processes.
    with ExitStack() as stack:
        stack.enter_context(turn(folder, job, show))
        process = OperatorProcess(folder, bind)
        stack.enter_context(users_output())
        stack.enter_context(attached(folder / "logs" / "server.log", style=watch.style))
        stack.enter_context(until_stopped(process.stop, process.close))
        stack.enter_context(attached(follow=show))
        view = stack.enter_context(closing(OperatorView(process, job.R)))
        live_page = LivePage(page_of_job(folder, job), lambda: page_so_far(folder, job), live)
        page = stack.enter_context(live_page)
        stack.enter_context(watch.serving(view))
        page.update("no round is committed yet")
        process.start()
        LOGGER.info(f"{decode(job.algorithm)}; {job.R} rounds at most.")
        LOGGER.info(f"listening on port {process.federation.port}; Ctrl-C ends it, then `resume`.")
        for sentence in warnings_of(job, len(process.federation.sites)):
            LOGGER.warning(sentence)
        for event in process.events(job):
            if date.today() != today:  # A run of weeks warns once a day.
                today = date.today()
                for sentence in Federation.read(folder).expiring():
                    LOGGER.warning(sentence)
            view.note(event)
            if isinstance(event, RoundCommitted):
                show(round_text(event))
                page.update(f"round {event.r} of at most {job.R}")
            elif isinstance(event, AuditDone):
                outcome.audit = event
            else:
                outcome.ended = event
                write_federation(folder, job.state)
        # Rounds are committed one by one, so that the last commit is always a place to resume.
        if process.interrupted:
            raise click.ClickException(
                f"stopped; all committed rounds are in {folder}: "
                "continue with `trimtab federate resume`."
            )
    return outcome


def _show_summary(folder: Path, job: "Job", outcome: _Outcome, as_json: bool) -> None:
    from trimtab.federation.setup.operator import Federation
    from trimtab.federation.setup.status import summary_of

    own = Federation.read(folder).problem.metric
    metric = None if own is None else own.name
    summary = summary_of(folder / job.state, outcome.ended, outcome.audit, metric)
    page = page_of_job(folder, job)
    if as_json:
        click.echo(json.dumps(summary.to_json() | {"page": str(page)}, indent=2))
        return
    click.echo(f"{summary.sentence}\nPage: {page}")
