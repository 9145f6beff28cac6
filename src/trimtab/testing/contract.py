"""The rules for every algorithm: `trimtab check` prints the first line of each check."""

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trimtab.core import State, leaves, map_leaves
from trimtab.problems import Quadratic
from trimtab.simulation import Diverged, Simulation
from trimtab.testing import _trials
from trimtab.testing._trials import first_line, require


def is_a_frozen_dataclass(algorithm: Any, seed: int = 0) -> None:
    """It is a frozen dataclass of hyper-parameters with three methods."""
    cls = algorithm if isinstance(algorithm, type) else type(algorithm)
    # Scaffold instead of Scaffold(...) is a common mistake, and has its own message.
    require(algorithm is not cls, cls, "this is the class", "pass an instance")
    frozen = is_dataclass(cls) and getattr(cls, "__dataclass_params__").frozen  # noqa: B009
    require(frozen, cls, "it is not a frozen dataclass", "decorate it with @dataclass(frozen=True)")
    for name in ("init_server", "init_client", "round"):
        require(hasattr(cls, name), cls, f"it has no method {name}", "see trimtab.core.Algorithm")


def has_states_of_tensors(algorithm: Any, seed: int = 0) -> None:
    """States and messages are tensors or tuples of them; states keep their structure."""
    server, client = algorithm.init_server(_trials.start()), algorithm.init_client(_trials.start())
    x = getattr(server, "x", None)
    same = isinstance(x, torch.Tensor) and torch.equal(x, _trials.start())
    require(same, algorithm, "init_server(x).x is not x", "return a NamedTuple that has it")
    advice = "use tensors and tuples of them"
    for name, state in (("the server's state", server), ("the client's state", client)):
        for part_name, part in _trials.parts(name, state):
            what = f"{part_name} is a {type(part).__name__}"
            require(isinstance(part, torch.Tensor), algorithm, what, advice)
    try:
        new, clients = _trials.run_round(algorithm, seed=seed)
        leaves(new, "the server's new state")
    except ValueError as error:
        require(False, algorithm, first_line(error).partition(";")[0], advice)
    for name, a, b in (
        ("server", server, new),
        ("client", client, clients.states[_trials.SOME[0]]),
    ):
        what, same = f"the {name}'s state changes its shape", _trials.shapes(a) == _trials.shapes(b)
        require(same, algorithm, what, f"return all of its parts from init_{name}")


def can_be_rebuilt(algorithm: Any, seed: int = 0) -> None:
    """Pickle and repr restore it, and the programs for the clients can be pickled."""
    try:
        # repr must be valid Python where the public names and those of its module are known.
        package, own = sys.modules["trimtab"], vars(sys.modules[type(algorithm).__module__])
        public = {name: getattr(package, name) for name in package.__all__}
        copies = pickle.loads(pickle.dumps(algorithm)), eval(repr(algorithm), {**public, **own})
        same = copies == (algorithm, algorithm)
        pickle.dumps(_trials.run_round(algorithm, seed=seed)[1].programs)
    except Exception as error:
        what = f"pickle or repr of it or of its program fails ({first_line(error)})"
        require(False, algorithm, what, "use a dataclass of a module, and run its methods")
    what = "its pickle or its repr does not restore it"
    require(same, algorithm, what, "hold all settings in fields, which are compared and shown")


def stays_finite(algorithm: Any, seed: int = 0) -> None:
    """Twenty rounds with L = 1, some of one client, give finite numbers only."""
    # With two clients and lost replies, many rounds have a single reply.
    sim = _trials.simulated(algorithm, seed, S=2, lost=0.4)
    with suppress(Diverged):
        _trials.advance(sim, 20)
    finite = sim.r == 20 and all(bool(t.isfinite().all()) for t in leaves(_trials.all_states(sim)))
    what = f"NaN or infinity after {sim.r} rounds of one or two clients with L = 1"
    require(finite, algorithm, what, "pass a smaller step size, or check divisions for zeros")


def is_pure(algorithm: Any, seed: int = 0) -> None:
    """It changes none of its arguments, and equal inputs give equal bits."""
    # From states that are not zero: adding zero in place would leave no trace.
    server, states = _trials.warm(algorithm, seed)
    before, itself = map_leaves(torch.clone, server), _attributes(algorithm)
    first, clients = _trials.run_round(algorithm, server, states, seed=seed)
    for name, given, copy in (*clients.given, ("the server's state", server, before)):
        what = f"the round changes {name} in place"
        require(_trials.equal(given, copy), algorithm, what, "write y = y + dy, never y += dy")
    what = "the round changes the algorithm itself"
    require(itself == _attributes(algorithm), algorithm, what, "keep all memory in the states")
    second, again = _trials.run_round(algorithm, server, states, seed=seed)
    same = _trials.equal((first, *clients.states.values()), (second, *again.states.values()))
    what = "the same round twice gives other bits"
    require(same, algorithm, what, "keep all memory in the states, and draw random numbers by g")


def keeps_dtype(algorithm: Any, seed: int = 0) -> None:
    """float32 stays float32 and float64 float64, in states, broadcasts and uploads."""
    for dtype in (torch.float32, torch.float64):
        server, clients = _trials.run_round(
            algorithm, problem=_trials.quadratic(dtype=dtype, seed=seed), seed=seed
        )
        for name, part in clients.parts(algorithm.init_server(_trials.start(dtype)), server):
            what = f"{name} is {part.dtype} where x is {dtype}"
            require(part.dtype == dtype, algorithm, what, "make it like x, as zeros_like(x) does")


def ignores_the_order_of_clients(algorithm: Any, seed: int = 0) -> None:
    """The order in which clients run changes the result by rounding only."""
    server, states = _trials.warm(algorithm, seed)
    a, there = _trials.run_round(algorithm, server, states, order=(0, 2, 3, 5), seed=seed)
    b, back = _trials.run_round(algorithm, server, states, order=(5, 3, 0, 2), seed=seed)
    same = _trials.close(a, b) and all(
        _trials.close(there.states[i], back.states[i]) for i in range(_trials.N)
    )
    what = "another order of the clients gives another result"
    require(
        same, algorithm, what, "compute a client's reply from its state and the broadcast alone"
    )


def accepts_chunks(algorithm: Any, seed: int = 0) -> None:
    """s clients as one chunk, with states and gradients of shape (s, d), act as s clients alone."""
    server, states = _trials.warm(algorithm, seed)
    _, alone = _trials.run_round(algorithm, server, states, seed=seed)
    advice = "write for y of shape (d,) and (s, d), and reduce over dim=-1 only"
    try:
        _, chunk = _trials.run_round(algorithm, server, states, chunk=True, seed=seed)
    except Exception as error:
        what = f"on a chunk of {len(_trials.SOME)} clients it fails ({first_line(error)})"
        require(False, algorithm, what, advice)
    what = "a chunk of clients gives other results than the clients alone"
    for i in _trials.SOME:
        a, b = ((clients.uploads[i], clients.states[i]) for clients in (alone, chunk))
        require(_trials.close(a, b), algorithm, what, advice)


def runs_alike_in_every_executor(algorithm: Any, seed: int = 0) -> None:
    """Lazy vectors, chunks of clients and a tape give the results of tensors, up to rounding."""

    def after_three_rounds(executor: str, problem: Any) -> State:
        sim = _trials.simulated(algorithm, seed, problem, S=4, lost=0.2, executor=executor)
        return _trials.all_states(_trials.advance(sim, 3))

    expected = after_three_rounds("loop", _trials.quadratic(seed=seed))
    advice = "treat the arguments of a program as vectors of any class, and do not change them"
    for name, executor, kind in (
        ("lazy vectors", "fused", Quadratic),
        ("lazy vectors in threads", "threads", Quadratic),
        ("chunks of clients", "batched", Quadratic),
        ("a tape", "batched", _trials.TracedQuadratic),
    ):
        try:
            states = after_three_rounds(executor, _trials.quadratic(kind, seed=seed))
        except Exception as error:
            require(False, algorithm, f"with {name} it fails ({first_line(error)})", advice)
        what = f"with {name} it gives another result than with tensors"
        require(_trials.close(states, expected), algorithm, what, advice)


def survives_lost_replies(algorithm: Any, seed: int = 0) -> None:
    """A round in which a client's reply is lost is the round without that client."""
    without, others = _trials.run_round(
        algorithm, *_trials.warm(algorithm, seed), order=(0, 2, 3), seed=seed
    )
    lost, clients = _trials.run_round(
        algorithm, *_trials.warm(algorithm, seed), order=(0, 1, 2, 3), lost=1, seed=seed
    )
    same = _trials.equal((lost, *clients.states.values()), (without, *others.states.values()))
    what = "a client whose reply was lost changes a state"
    require(same, algorithm, what, "use only the mean and the share of the replies")


def survives_a_restart(algorithm: Any, seed: int = 0) -> None:
    """Saved, loaded and continued, it gives the bits of a run without interruption."""
    # replace makes copies, which share no attribute that a method may have set.
    sim = _trials.simulated(replace(algorithm), seed, S=4, lost=0.2)
    with TemporaryDirectory() as folder:
        _trials.advance(sim, 3).save(f"{folder}/saved")
        _trials.advance(sim, 3)
        loaded = Simulation.load(f"{folder}/saved", replace(algorithm), sim.problem)
    same = _trials.equal(_trials.all_states(sim), _trials.all_states(_trials.advance(loaded, 3)))
    what = "after save and load it gives other bits"
    require(same, algorithm, what, "keep all memory in the states of server and clients")


def rests_when_nobody_moves(algorithm: Any, seed: int = 0) -> None:
    """From the initial states zero gradients leave x unchanged, whatever eta_g."""
    # Half of eta_g finds servers that scale x itself: at eta_g = 1 that is the right result.
    what = "x changes though no client moves, at its eta_g or at half of it"
    for variant in _trials.with_half_eta_g(algorithm):
        server, _ = _trials.run_round(
            variant, problem=_trials.quadratic(_trials.ZeroGradients, seed=seed), seed=seed
        )
        rests = _trials.close(server.x, _trials.start())
        require(rests, algorithm, what, "multiply the mean of y - x by eta_g, never y or x")


def rests_at_the_optimum_of_equal_clients(algorithm: Any, seed: int = 0) -> None:
    """From the initial states, x* is a fixed point if all clients are equal, without noise."""
    what = "it leaves x* though all clients are equal"
    equal = _trials.quadratic(equal=True, sigma=0.0, seed=seed)
    for variant in _trials.with_half_eta_g(algorithm):
        sim = _trials.simulated(variant, seed, equal, S=4)
        rests = _trials.close(_trials.advance(sim, 5).server.x, _trials.start())
        require(rests, algorithm, what, "check signs and initial states")


def _attributes(algorithm: Any) -> bytes:
    # object.__setattr__ can change even a frozen dataclass.
    return pickle.dumps(getattr(algorithm, "__dict__", None))


CHECKS: tuple[Callable[[Any, int], None], ...] = (
    is_a_frozen_dataclass,
    has_states_of_tensors,
    can_be_rebuilt,
    stays_finite,
    is_pure,
    keeps_dtype,
    ignores_the_order_of_clients,
    accepts_chunks,
    runs_alike_in_every_executor,
    survives_lost_replies,
    survives_a_restart,
    rests_when_nobody_moves,
    rests_at_the_optimum_of_equal_clients,
)
