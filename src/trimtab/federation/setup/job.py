"""A job: what the server is to run, as run.json keeps it for `federate resume`.

A federation has one unnamed experiment, in run.json and state/, and any number of named ones, in
experiments/NAME/. They share sites, keys and port; one runs at a time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab._files import Lock, read_json, write_json
from trimtab._version import RESULTS, __version__
from trimtab.errors import BadArgument, InUse
from trimtab.federation.setup.operator import Federation
from trimtab.federation.setup.site import check_fields, check_name
from trimtab.federation.storage.files import read_sealed, write_sealed
from trimtab.federation.storage.journal import (
    CHECKPOINT,
    JOURNAL,
    KEEP,
    MOST_KEPT,
    read_chain,
    read_summary,
)

if TYPE_CHECKING:
    from trimtab.core import Algorithm


@dataclass(frozen=True)
class Job:
    """An experiment, or an audit of one."""

    kind: str  # run or audit
    algorithm: dict[str, Any]  # as `registry.encode` writes it
    R: int
    target: float | None
    min_sites: int
    round_timeout: float
    seed: int
    on_lost_state: str
    state: str  # the folder of the coordinator's state
    keep: int  # checkpoints and states that are kept for a rollback
    trimtab: str = __version__
    results: int = RESULTS

    @property
    def experiment(self) -> str:
        """The name of the experiment; "the experiment" if it has none."""
        return _name_of(self.state)

    def to_json(self) -> dict[str, Any]:
        """Return what run.json holds."""
        return asdict(self)


_POLL = 0.5  # seconds between two looks whether another experiment has ended
_FIELDS = {
    **dict.fromkeys(("kind", "on_lost_state", "state", "trimtab"), str),
    **dict.fromkeys(("R", "min_sites", "seed", "results", "keep"), int),
    "algorithm": dict,
    "target": int | float | None,
    "round_timeout": int | float,
}


def state_of(folder: Path, experiment: str | None) -> str:
    """Return where the state of an experiment is: of the last one that was started by default."""
    if experiment is not None:
        check_name(experiment, "an experiment")
        return f"experiments/{experiment}/state"
    runs = [folder / "run.json", *folder.glob("experiments/*/run.json")]
    runs = sorted((run for run in runs if run.is_file()), key=lambda run: run.stat().st_mtime_ns)
    return str((runs[-1].parent / "state").relative_to(folder)) if runs else "state"


def states_of(folder: Path) -> dict[str, str]:
    """Return where the states of the named experiments are, by name."""
    runs = sorted(folder.glob("experiments/*/run.json"))
    return {run.parent.name: f"experiments/{run.parent.name}/state" for run in runs}


@contextmanager
def turn(folder: Path, job: Job, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other experiment of a federation runs, and keep the others waiting.

    folder: the operator's folder.
    job: what is to run; InUse is raised if its own experiment runs already.
    say: shows the sentence that it waits.
    """
    place, said = folder / "run" / "turn", ""
    while True:
        try:
            lock = Lock(place)
            break
        except InUse:
            running = _running(place)
            if running == job.experiment:
                raise
            if running and running != said:
                say(f"{running} is running; {job.experiment} starts when it has ended.")
                said = running
            time.sleep(_POLL)
    with lock:
        write_json(place / "running.json", {"experiment": job.experiment})
        yield


def _running(place: Path) -> str:
    """Return which experiment has its turn; empty while that is not written yet."""
    try:
        return str(read_json(place / "running.json")["experiment"])
    except (ValueError, KeyError):
        return ""


def _name_of(state: str) -> str:
    parts = Path(state).parts
    return f"experiment {parts[-2]}" if parts[0] == "experiments" else "the experiment"


def start_job(
    federation: Federation,
    algorithm: "Algorithm",
    *,
    R: int,
    target: float | None = None,
    min_sites: int | None = None,
    round_timeout: float = 3600.0,
    seed: int = 0,
    on_lost_state: str = "restore",
    state: str = "state",
    keep: int = KEEP,
) -> Job:
    """Write down what is to be run, and return it; a folder of states holds one experiment."""
    from trimtab.algorithms.registry import encode

    begun = read_summary(federation.folder / state)
    check_checkpoint(federation.folder / state)
    if begun is not None:
        raise BadArgument(
            "experiment",
            "{_folder} holds an experiment at round {_r} already; go on with `trimtab federate "
            "resume`, or pass {experiment:NAME} to begin another.",
            _folder=(federation.folder / state).parent,
            _r=begun.r,
        )
    job = Job(
        kind="run",
        algorithm=encode(algorithm),
        R=R,
        target=target,
        min_sites=default_min_sites(len(federation.sites)) if min_sites is None else min_sites,
        round_timeout=round_timeout,
        seed=seed,
        on_lost_state=on_lost_state,
        state=state,
        keep=keep,
    )
    check_job(job, len(federation.sites))
    write_sealed(_run_file(federation, state), job.to_json())
    return job


def _run_file(federation: Federation, state: str) -> Path:
    return (federation.folder / state).parent / "run.json"


def read_job(federation: Federation, state: str = "state") -> Job | None:
    """Return what was to be run with the state in this folder; None if nothing was yet."""
    path = _run_file(federation, state)
    if not path.is_file():
        return None
    return Job(**check_fields(path, read_sealed(path), _FIELDS, {}))


def resume_job(federation: Federation, **changes: Any) -> Job:
    """Write down what was to be run with changes for those that are not None, and return it."""
    job = read_job(federation, changes.get("state") or "state")
    if job is None:
        raise ValueError(
            f"{federation.folder} holds no experiment; begin one with `trimtab federate server`."
        )
    if job.results != RESULTS:
        begun = f"{job.trimtab} (results {job.results})"
        raise ValueError(
            f"{federation.folder} was begun with trimtab {begun}, this is {__version__} (results "
            f"{RESULTS}); go on with that version."
        )
    check_checkpoint(federation.folder / job.state)
    job = replace(job, **{name: value for name, value in changes.items() if value is not None})
    check_job(job, len(federation.sites))
    write_sealed(_run_file(federation, job.state), job.to_json())
    return job


def warnings_of(job: Job, sites: int) -> list[str]:
    """Return what a site could learn of another because too few take part in a round."""
    if sites < 3:
        few = f"only {sites} sites are registered"
    elif job.min_sites < 3:
        few = f"min_sites is {job.min_sites}"
    else:
        return []
    return [
        f"{few}: in a round of two, each site can compute the other's update; three is the least."
    ]


def default_min_sites(sites: int) -> int:
    """Return the fewest replies for a round: half of the sites, but at least three if there are.

    >>> [default_min_sites(sites) for sites in (1, 2, 3, 4, 6, 7, 20)]
    [1, 2, 3, 3, 3, 4, 10]
    """
    return max(min(sites, 3), (sites + 1) // 2)


def check_checkpoint(folder: Path) -> None:
    """Refuse a folder whose journal tells of commits and whose checkpoint is gone.

    A line is written before its checkpoint, so one line alone may be of a start that never was.
    """
    if read_summary(folder) is None and len(read_chain(folder / JOURNAL)) > 1:
        raise ValueError(
            f"{folder} has a journal of rounds, but its {CHECKPOINT} is gone; restore it from a "
            "backup, or begin anew in another folder with `trimtab federate init`."
        )


def check_job(job: Job, sites: int) -> None:
    """Refuse numbers that make no sense."""
    if job.R < 1:
        raise BadArgument("R", "R={rounds}; pass a number of rounds R >= 1.", rounds=job.R)
    if not sites:
        raise ValueError("the federation has no sites yet; let one in with `federate register`.")
    if not 1 <= job.min_sites <= sites:
        raise BadArgument(
            "min_sites",
            "{min_sites:{n}}: the federation has {count} sites; pass 1 to {count}.",
            n=job.min_sites,
            count=sites,
        )
    if not 0 <= job.keep <= MOST_KEPT:
        raise BadArgument(
            "keep", "{keep:{n}}; pass a number from 0 to {most}.", n=job.keep, most=MOST_KEPT
        )
    if not job.round_timeout > 0:
        raise BadArgument(
            "round_timeout",
            "{round_timeout:{seconds}}; pass a number of seconds.",
            seconds=f"{job.round_timeout:g}",
        )
