"""The model of an experiment, for those who use it."""

from pathlib import Path

from trimtab.algorithms.registry import kind
from trimtab.core.hyper import settings_of
from trimtab.federation.setup.operator_folder import Federation
from trimtab.federation.storage.ledger import read_journal, read_standing
from trimtab.problems import saved
from trimtab.problems.saved import MODEL, Card


def save_model(federation: Federation, out: Path) -> tuple[Path, int]:
    """Write the model of the last committed round; return its file and that round's number.

    out: a new folder for model.safetensors and model.json, or a file NAME.safetensors, which gets
        NAME.json beside it.
    """
    file = federation.problem  # It may register the algorithm.
    problem = file.server_problem()
    state = federation.folder / "state"
    standing = read_standing(state)
    if standing is None:
        raise ValueError(f"{federation.folder} has no model yet; no round was committed.")
    alone = out.suffix == ".safetensors"
    weights = out if alone else out / "model.safetensors"
    about = out.with_suffix(".json") if alone else out / MODEL
    for path in (weights, about):
        if path.exists():
            raise ValueError(f"{path} exists; pass another name.")
    rounds = [line for line in read_journal(state, standing) if line["kind"] == "round"]
    card = Card(
        data=federation.folder.name,
        algorithm=kind(standing.algorithm).name,
        settings=settings_of(standing.algorithm),
        seed=standing.seed,
        round=standing.r,
        metrics=rounds[-1]["metrics"] if rounds else {},
        measured_on="the data of the sites",
        clients=len(standing.members),
        d=problem.d,
    )
    names = {"weights": weights.name, "about": about.name}
    saved.save_model(
        weights.parent, problem, standing.server.x, card, **names, spec=file.model_spec
    )
    return weights, standing.r
