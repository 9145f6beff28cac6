"""`trimtab diagnose`."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from trimtab._files import write_json
from trimtab.cli import completion
from trimtab.cli.group import requires
from trimtab.cli.options import CountOrFraction, live_option
from trimtab.cli.output import LivePage, command_again, output_folder, short_name, users_output
from trimtab.cli.progress import watch
from trimtab.errors import BadArgument

if TYPE_CHECKING:
    from trimtab.diagnosis.differences import FirstFacts

STAGES = "stages"  # the folder of what each finished stage found
POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("problem", default="digits", shell_complete=completion.problem)
@click.option("--S", "S", type=CountOrFraction(), help="Clients per round: 20, or 0.2 of all.")
@click.option("--batch", type=CountOrFraction(), help="Mini-batch: 32, or 0.2 of all.")
@click.option(
    "--eps", type=POSITIVE, help="Accuracy f(x) - f(x*) to reach [a hundredth of the start's]."
)
@click.option("--cross-device", is_flag=True, help="Clients take part once and keep no state.")
@click.option("--minutes", type=POSITIVE, default=5, show_default=True, help="Time limit.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--resume", is_flag=True, help="Continue after the last finished stage.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@live_option
@requires("diagnosis.diagnose", "report")
def diagnose(
    problem: str,
    S: int | float | None,
    batch: int | float | None,
    eps: float | None,
    cross_device: bool,
    minutes: float,
    seed: int,
    data: Path | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    live: bool,
) -> None:
    """Measure how the clients of PROBLEM differ, and advise algorithm, K and step sizes.

    PROBLEM is a built-in name or file.py:function, as for compare.
    """
    from trimtab.diagnosis.diagnose import diagnose as diagnose_problem
    from trimtab.problems.loading import load_problem
    from trimtab.report import write_diagnosis

    folder = output_folder(out, f"diagnose-{short_name(problem)}", resume)
    there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if there - {"report.html"} and not resume:
        or_continue = "{resume:True} to continue its diagnosis, or " if STAGES in there else ""
        sentence = f"{{folder}} is not empty; pass {or_continue}another {{out}}."
        raise BadArgument("out", sentence, folder=folder)
    with users_output():
        made = load_problem(problem, batch=batch, data=data, seed=seed)
        work = diagnose_problem.start(
            made,
            S=S,
            eps=eps,
            cross_device=cross_device,
            seed=seed,
            minutes=minutes,
            out=folder / STAGES,
            resume=resume,
        )
        page = folder / "report.html"
        with _FirstPage(problem, page, live) as first:
            diagnosis = replace(watch(work, first.stopped, first.on_event), name=problem)
        write_diagnosis(diagnosis, page, command_again())
        content = {"problem": problem, "page": str(page), **diagnosis.to_json()}
        write_json(folder / "diagnosis.json", content)
    if as_json:
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        click.echo(diagnosis)
        click.echo(f"Page: {page}")


class _FirstPage:
    """The page of the first facts, until the diagnosis ends or is stopped."""

    def __init__(self, name: str, path: Path, live: bool) -> None:
        self.name, self.path = name, path
        self.facts: FirstFacts | None = None
        self.live = LivePage(path, self._so_far, live)

    def on_event(self, event: Any) -> None:
        """Write the page as soon as the first facts are known."""
        from trimtab.diagnosis.differences import FirstFacts
        from trimtab.report.diagnosis import write_first_facts

        self.live.on_event(event)
        if isinstance(event, FirstFacts):
            self.facts = event
            if self.live.live:
                self.live.update("the first facts are known", now=True)
            else:
                write_first_facts(event, self.name, self.path)

    def stopped(self) -> str:
        """Return the sentence that is printed when the user stops the diagnosis."""
        if self.facts is None:
            return "stopped; repeat the command with --resume to continue."
        return (
            f"stopped; its first facts are in {self.path}. Finished stages are kept: repeat the "
            "command with --resume to continue after them."
        )

    def _so_far(self) -> str:
        from trimtab.report.diagnosis import first_facts_page
        from trimtab.report.page import empty_page

        facts = self.facts
        return empty_page(self.name) if facts is None else first_facts_page(facts, self.name)

    def __enter__(self) -> "_FirstPage":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Mark the page as stopped if the diagnosis did not end.

        A live page without facts is removed, and so is an empty folder: nothing was measured.
        """
        from trimtab.report.diagnosis import STOPPED, write_first_facts

        if kind is None:
            return
        if self.facts is not None:
            write_first_facts(self.facts, self.name, self.path, STOPPED)
        elif self.live.live:
            self.path.unlink(missing_ok=True)
        with suppress(OSError):  # A folder that is not empty stays.
            self.path.parent.rmdir()
