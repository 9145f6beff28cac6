"""A job: what the server is to run, as run.json keeps it for `federate resume`."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab._version import RESULTS, __version__
from trimtab.errors import BadArgument
from trimtab.federation.setup.operator import Federation
from trimtab.federation.setup.site import check_fields
from trimtab.federation.storage.journal import read_all
from trimtab.federation.storage.seal import read_sealed, write_sealed
from trimtab.federation.storage.summary import CHECKPOINT, read_summary

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
    trimtab: str = __version__
    results: int = RESULTS

    def to_json(self) -> dict[str, Any]:
        """Return what run.json holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Job":
        """Read what `to_json` wrote."""
        job = cls(**{field.name: content[field.name] for field in fields(cls)})
        numbers = job.R, job.min_sites, job.round_timeout, job.seed, job.results
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError("a number of it is none")
        if not isinstance(job.algorithm, dict) or not isinstance(job.state, str):
            raise TypeError("its algorithm or its state is none")
        return job


_FIELDS = {
    **dict.fromkeys(("kind", "on_lost_state", "state", "trimtab"), str),
    **dict.fromkeys(("R", "min_sites", "seed", "results"), int),
    "algorithm": dict,
    "target": int | float | None,
    "round_timeout": int | float,
}


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
) -> Job:
    """Write down what is to be run, and return it; a folder of states holds one experiment."""
    from trimtab.algorithms.registry import encode

    begun = read_summary(federation.folder / state)
    check_checkpoint(federation.folder / state)
    if begun is not None:
        raise ValueError(
            f"{federation.folder} holds an experiment at round {begun.r} already; go on with "
            "`trimtab federate resume`, or make another folder with `trimtab federate init`."
        )
    job = Job(
        kind="run",
        algorithm=encode(algorithm),
        R=R,
        target=target,
        min_sites=len(federation.sites) if min_sites is None else min_sites,
        round_timeout=round_timeout,
        seed=seed,
        on_lost_state=on_lost_state,
        state=state,
    )
    check_job(job, len(federation.sites))
    write_sealed(federation.folder / "run.json", job.to_json())
    return job


def read_job(federation: Federation) -> Job | None:
    """Return what was to be run; None if nothing was yet."""
    path = federation.folder / "run.json"
    if not path.is_file():
        return None
    return Job.from_json(check_fields(path, read_sealed(path), _FIELDS, {}))


def resume_job(federation: Federation, **changes: Any) -> Job:
    """Write down what was to be run with changes for those that are not None, and return it."""
    job = read_job(federation)
    if job is None:
        raise ValueError(
            f"{federation.folder} holds no experiment; begin one with `trimtab federate server`."
        )
    if job.results != RESULTS:
        _refuse_other_results(federation.folder, job)
    check_checkpoint(federation.folder / job.state)
    job = replace(job, **{name: value for name, value in changes.items() if value is not None})
    check_job(job, len(federation.sites))
    write_sealed(federation.folder / "run.json", job.to_json())
    return job


def check_checkpoint(folder: Path) -> None:
    """Refuse a folder whose journal tells of commits and whose checkpoint is gone.

    A line is written before its checkpoint, so one line alone may be of a start that never was.
    """
    if read_summary(folder) is None and any(line["commit"] > 1 for line in read_all(folder)):
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
    if not job.round_timeout > 0:
        raise BadArgument(
            "round_timeout",
            "{round_timeout:{seconds}}; pass a number of seconds.",
            seconds=f"{job.round_timeout:g}",
        )


def _refuse_other_results(folder: Path, job: Job) -> None:
    from trimtab.federation.message import versions  # it imports torch

    ours, theirs = versions(job.to_json())
    raise ValueError(
        f"{folder} was begun with trimtab {theirs}, this is {ours}; go on with that version."
    )
