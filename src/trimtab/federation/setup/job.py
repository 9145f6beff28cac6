"""An experiment of a federation: what is to be run, how far it is, and its model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from trimtab._files import read_json, whole, write_json
from trimtab._version import RESULTS, __version__
from trimtab.core import Algorithm
from trimtab.federation.encoding import describe
from trimtab.federation.message import same_results, versions
from trimtab.federation.setup.operator_folder import Federation
from trimtab.federation.storage.ledger import Standing, read_journal, read_standing

Job = dict[str, Any]


def start_job(
    federation: Federation,
    algorithm: Algorithm,
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
    standing = read_standing(federation.folder / state)
    if standing is not None:
        raise ValueError(
            f"{federation.folder} holds an experiment at round {standing.r} already; go on with "
            "`trimtab federate resume`, or make another folder with `trimtab federate init`."
        )
    job = {
        "kind": "run",
        "algorithm": describe(algorithm),
        "R": R,
        "target": target,
        "min_sites": len(federation.sites) if min_sites is None else min_sites,
        "round_timeout": round_timeout,
        "seed": seed,
        "on_lost_state": on_lost_state,
        "state": state,
        "trimtab": __version__,
        "results": RESULTS,
    }
    check_job(job, len(federation.sites))
    write_json(federation.folder / "run.json", job)
    return job


def resume_job(federation: Federation, **changes: Any) -> Job:
    """Return what was to be run, with changes for those that are not None."""
    path = federation.folder / "run.json"
    if not path.is_file():
        raise ValueError(
            f"{federation.folder} holds no experiment; begin one with `trimtab federate server`."
        )
    job = read_json(path)
    if not same_results(job):
        ours, theirs = versions(job)
        raise ValueError(
            f"{federation.folder} was begun with trimtab {theirs}, this is {ours}; go on with that "
            "version."
        )
    job |= {name: value for name, value in changes.items() if value is not None}
    check_job(job, len(federation.sites))
    write_json(path, job)
    return job


def check_job(job: Job, sites: int) -> None:
    """Refuse numbers that make no sense."""
    if job["R"] < 1:
        raise ValueError(f"R={job['R']}; pass a number of rounds R >= 1.")
    if not 1 <= job["min_sites"] <= sites:
        raise ValueError(
            f"--min-sites {job['min_sites']}: the federation has {sites} sites; pass 1 to {sites}."
        )
    if not job["round_timeout"] > 0:
        raise ValueError(f"--round-timeout {job['round_timeout']:g}; pass a number of seconds.")


@dataclass(frozen=True)
class Progress:
    """How far an experiment is."""

    standing: Standing
    rounds: list[dict[str, Any]]  # the journal's lines of rounds
    bytes_up: int


def progress(federation: Federation, state: str = "state") -> Progress | None:
    """Return how far the experiment is; None if it has not begun."""
    folder = federation.folder / state
    standing = read_standing(folder)
    if standing is None:
        return None
    rounds = [line for line in read_journal(folder, standing) if line["kind"] == "round"]
    return Progress(standing, rounds, sum(line["bytes_up"] for line in rounds))


def save_model(federation: Federation, out: Path) -> int:
    """Write the model of the last committed round as a state_dict; return that round's number."""
    found = progress(federation)
    if found is None:
        raise ValueError(f"{federation.folder} has no model yet; no round was committed.")
    if out.exists():
        raise ValueError(f"{out} exists; pass another name.")
    problem = federation.problem.server_problem()
    state = problem.unflatten(found.standing.server.x)
    with whole(out) as part:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, part)
    return found.standing.r
