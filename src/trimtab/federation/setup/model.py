"""The model of an experiment, for whoever uses it."""

from pathlib import Path

from safetensors.torch import save_file

from trimtab._files import atomic_write
from trimtab.federation.setup.operator_folder import Federation
from trimtab.federation.storage.ledger import read_standing
from trimtab.problems.capabilities import capabilities


def save_model(federation: Federation, out: Path) -> int:
    """Write the model of the last committed round as a state_dict; return that round's number.

    Where there is no module, x is written as it is.
    """
    problem = federation.problem.server_problem()  # its file may register the algorithm
    standing = read_standing(federation.folder / "state")
    if standing is None:
        raise ValueError(f"{federation.folder} has no model yet; no round was committed.")
    if out.exists():
        raise ValueError(f"{out} exists; pass another name.")
    unflatten = capabilities(problem).state_dict
    x = standing.server.x
    state = {"x": x} if unflatten is None else unflatten(x)
    with atomic_write(out) as part:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, part)
    return standing.r
