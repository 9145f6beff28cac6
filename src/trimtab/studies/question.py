"""What a comparison asks: all that its numbers depend on, but for the budget."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from trimtab.algorithms.registry import decode, encode, kind
from trimtab.errors import BadArgument
from trimtab.problems.adapter import as_problem
from trimtab.problems.loading import absolute_spec
from trimtab.problems.problem import Problem
from trimtab.simulation import Rounds
from trimtab.studies.goal import goal_of, unit_named
from trimtab.studies.holdout import ProblemSpec, held_out
from trimtab.studies.lanes import LocalSteps, baseline_lanes, lanes_of
from trimtab.studies.prior import Prior
from trimtab.studies.study import Study

NAMED = "its name or file.py:function"


@dataclass(frozen=True)
class Question:
    """The arguments of `compare`, of which a study is made; here, and in other processes."""

    problem: Problem | ProblemSpec
    algorithms: Sequence[Any]
    name: str
    target: float | None
    K: LocalSteps
    R: int
    rounds: Rounds
    base: Any
    metric: str | None
    eta_g: float | None
    prefer: str
    split: float | None
    baselines: bool
    prior: Prior | None = None

    def study(self, folder: Path | None, resume: bool) -> Study:
        """Return the study: the problem split, the goal, a lane for each algorithm."""
        problem = self.problem
        if isinstance(problem, ProblemSpec):
            problem, _ = problem.problem_and_target
        measured = held_out(as_problem(problem), self.split, self.rounds.seed, self.metric)
        goal = replace(goal_of(measured.problem, self.target), unit=unit_named(self.prefer))
        given = {"base": self.base, "eta_g": self.eta_g}
        return Study(
            measured=measured,
            name=self.name,
            goal=goal,
            lanes=[
                *lanes_of(self.algorithms, measured.problem, self.K, given, self.prior),
                *(baseline_lanes(measured, self.K) if self.baselines else ()),
            ],
            R=self.R,
            rounds=self.rounds,
            folder=folder,
            resume=resume,
            prior=self.prior,
        )

    def to_json(self, jobs: int | None) -> dict[str, Any]:
        """Return it as another process may read it; refuse what only this one can make.

        No code is in it: what is the user's has a name, by which the other process finds it. jobs:
        how many processes there are on this machine; None for other machines, where files are
        looked for at the same paths.
        """
        if not isinstance(self.problem, ProblemSpec):
            raise _only_here(jobs, "a problem", NAMED)
        if callable(self.rounds.available):
            raise _only_here(jobs, "a table of who is there", "the path of a CSV as {available}")
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        problem = asdict(self.problem) | {"spec": absolute_spec(self.problem.spec)}
        return plain | {
            "problem": problem | {"data": _path(self.problem.data)},
            "algorithms": [_described(algorithm, jobs) for algorithm in self.algorithms],
            "K": encode(self.K),
            "base": encode(self.base),
            "rounds": _rounds_to_json(self.rounds),
            "prior": None if self.prior is None else self.prior.to_json(),
        }

    @classmethod
    def from_json(cls, described: dict[str, Any]) -> "Question":
        """Return what `to_json` described."""
        problem = described["problem"]
        data = None if problem["data"] is None else Path(problem["data"])
        prior = described["prior"]
        made = {
            "problem": ProblemSpec(**problem | {"data": data}),
            "algorithms": [decode(algorithm) for algorithm in described["algorithms"]],
            "K": decode(described["K"]),
            "base": decode(described["base"]),
            "rounds": _rounds_from_json(described["rounds"]),
            "prior": None if prior is None else Prior.from_json(prior),
        }
        return cls(**described | made)


def _rounds_to_json(rounds: Rounds) -> dict[str, Any]:
    given = {f.name: getattr(rounds, f.name) for f in fields(rounds)}
    x = None if rounds.x is None else b64encode(save({"x": rounds.x.contiguous()})).decode()
    return given | {"x": x, "available": _path(rounds.available)}


def _rounds_from_json(described: dict[str, Any]) -> Rounds:
    x = described["x"]
    return Rounds(**described | {"x": None if x is None else load(b64decode(x))["x"]})


def _path(path: Any) -> str | None:
    return None if path is None else str(Path(path).resolve())


def _described(algorithm: Any, jobs: int | None) -> Any:
    """Return a name, or an instance as names and hyper-parameters."""
    if isinstance(algorithm, str):
        return absolute_spec(algorithm)
    if isinstance(algorithm, type):
        known = kind(algorithm)
        if not known.source:
            return known.name
    else:
        try:
            return encode(algorithm)
        except ValueError:
            pass
    raise _only_here(jobs, "algorithms", "their names or file.py:Class")


def _only_here(jobs: int | None, what: str, instead: str) -> BadArgument:
    if jobs is None:
        return BadArgument(
            "cluster",
            "{cluster} needs {_what} that other machines can make too; pass "
            + instead
            + ", or drop {cluster}.",
            _what=what,
        )
    return BadArgument(
        "jobs",
        "{jobs:{_jobs}} needs {_what} that other processes can make too; pass "
        + instead
        + ", or {jobs:1}.",
        _jobs=jobs,
        _what=what,
    )
