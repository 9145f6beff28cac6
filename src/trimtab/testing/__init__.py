"""The contract of an algorithm, executable: what trimtab expects of yours as of its own.

`check_algorithm` runs the checks in `CHECKS`, `check_controls` those in `CONTROL_CHECKS`; each may
also be called alone. They use small quadratics with L = 1, six clients of unequal weights in R^4:
pass an instance whose step size is stable for L = 1.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from math import inf
from tempfile import TemporaryDirectory
from typing import Any

import torch

from trimtab.algorithms.stages import Rounding
from trimtab.algorithms.through import Through
from trimtab.core import State, leaves, map_leaves
from trimtab.problems import Quadratic
from trimtab.simulation import Diverged, Simulation, simulate
from trimtab.testing import _trials as lab


class ContractError(AssertionError):
    """An algorithm breaks the contract; the sentence says what, where, and what to do."""


def check_algorithm(algorithm: Any) -> None:
    """Raise ContractError unless the algorithm keeps the contract of `trimtab.core.Algorithm`.

    >>> from trimtab import FedAvg
    >>> check_algorithm(FedAvg(eta_l=0.1, K=5))
    >>> check_algorithm(FedAvg)
    Traceback (most recent call last):
    trimtab.testing.ContractError: FedAvg: this is the class; pass an instance.
    """
    for check in CHECKS:
        check(algorithm)


def check_controls(algorithm: Any) -> None:
    """Raise ContractError unless the controls of a SCAFFOLD-like algorithm are right.

    The server's state must have a `c`, and the client's must be c_i: after a round the mean of the
    client's raw gradients, or its full gradient g(x) if `algorithm.option` is "I".

    >>> from trimtab import Scaffold
    >>> check_controls(Scaffold(eta_l=0.1, K=5))
    """
    for check in CONTROL_CHECKS:
        check(algorithm)


@dataclass(frozen=True)
class Verdict:
    """Whether an algorithm keeps one rule."""

    rule: str
    says: str  # the rule in a sentence
    broken: str = ""  # what breaks it, where, and what to do; empty if it is kept


def verdicts(algorithm: Any) -> Iterator[Verdict]:
    """Go through the rules of the contract; those of controls too, if the server has a `c`.

    What is no algorithm at all breaks the first rule, and the others are not tried.

    >>> from trimtab import FedAvg
    >>> [verdict.rule for verdict in verdicts(FedAvg(eta_l=0.1, K=5)) if verdict.broken]
    []
    """
    for number, check in enumerate(CHECKS):
        verdict = _verdict(check, algorithm)
        yield verdict
        if verdict.broken and number < 2:  # without tensors as states nothing can be run
            return
    server = algorithm.init_server(lab.start())
    for check in CONTROL_CHECKS if hasattr(server, "c") else ():
        yield _verdict(check, algorithm)


def _verdict(check: Callable[[Any], None], algorithm: Any) -> Verdict:
    says = (check.__doc__ or "").partition("\n")[0]
    try:
        check(algorithm)
    except ContractError as error:
        return Verdict(check.__name__, says, str(error))
    except Exception as error:
        what = f"{type(algorithm).__name__}: it fails ({type(error).__name__}: {_line(error)})"
        return Verdict(check.__name__, says, f"{what}; mend it.")
    return Verdict(check.__name__, says)


# -- what every algorithm keeps


def is_a_frozen_dataclass(algorithm: Any) -> None:
    """It is a frozen dataclass of hyper-parameters with three methods."""
    cls = algorithm if isinstance(algorithm, type) else type(algorithm)
    _require(algorithm is not cls, cls, "this is the class", "pass an instance")
    frozen = is_dataclass(cls) and getattr(cls, "__dataclass_params__").frozen  # noqa: B009
    _require(frozen, cls, "no frozen dataclass", "decorate it with @dataclass(frozen=True)")
    for name in ("init_server", "init_client", "round"):
        _require(hasattr(cls, name), cls, f"no method {name}", "see trimtab.core.Algorithm")


def has_states_of_tensors(algorithm: Any) -> None:
    """States and messages are tensors or tuples of them; states keep their structure."""
    server, client = algorithm.init_server(lab.start()), algorithm.init_client(lab.start())
    x = getattr(server, "x", None)
    same = isinstance(x, torch.Tensor) and torch.equal(x, lab.start())
    _require(same, algorithm, "init_server(x).x is not x", "return a NamedTuple that has it")
    advice = "use tensors and tuples of them"
    for name, state in (("the server's state", server), ("the client's state", client)):
        for part_name, part in lab.parts(name, state):
            what = f"{part_name} is a {type(part).__name__}"
            _require(isinstance(part, torch.Tensor), algorithm, what, advice)
    try:
        new, clients = lab.run_round(algorithm)
        leaves(new, "the server's new state")
    except ValueError as error:
        _require(False, algorithm, _line(error).partition(";")[0], advice)
    for name, a, b in (("server", server, new), ("client", client, clients.states[lab.SOME[0]])):
        what, same = f"the {name}'s state changes its shape", lab.shapes(a) == lab.shapes(b)
        _require(same, algorithm, what, f"let init_{name} return it whole")


def can_be_rebuilt(algorithm: Any) -> None:
    """Pickle and repr give it back, and the programs for the clients can be pickled."""
    try:
        package, own = sys.modules["trimtab"], vars(sys.modules[type(algorithm).__module__])
        public = {name: getattr(package, name) for name in package.__all__}
        copies = pickle.loads(pickle.dumps(algorithm)), eval(repr(algorithm), {**public, **own})
        same = copies == (algorithm, algorithm)
        pickle.dumps(lab.run_round(algorithm)[1].programs)
    except Exception as error:
        what = f"pickle or repr of it or of its program fails ({_line(error)})"
        _require(False, algorithm, what, "use a dataclass of a module, and run its methods")
    what = "its pickle or its repr gives another one back"
    _require(same, algorithm, what, "show all of it in fields that compare")


def stays_finite(algorithm: Any) -> None:
    """Twenty rounds with L = 1, some of one client, give finite numbers only."""
    sim = simulate(algorithm, lab.quadratic(), S=2, lost=0.4, x=lab.start())
    with suppress(Diverged):
        lab.advance(sim, 20)
    finite = sim.r == 20 and all(bool(t.isfinite().all()) for t in leaves(lab.all_states(sim)))
    what = f"NaN or infinity after {sim.r} rounds of one or two clients with L = 1"
    _require(finite, algorithm, what, "pass a smaller step size, or look for divisions by zero")


def is_pure(algorithm: Any) -> None:
    """It changes nothing it is given, and equal inputs give equal bits."""
    server, states = lab.warm(algorithm)
    before, itself = map_leaves(torch.clone, server), _attributes(algorithm)
    first, clients = lab.run_round(algorithm, server, states)
    for name, given, copy in (*clients.given, ("the server's state", server, before)):
        what = f"the round changes {name} in place"
        _require(lab.equal(given, copy), algorithm, what, "write y = y + dy, never y += dy")
    what = "the round changes the algorithm itself"
    _require(itself == _attributes(algorithm), algorithm, what, "keep all memory in the states")
    second, again = lab.run_round(algorithm, server, states)
    same = lab.equal((first, *clients.states.values()), (second, *again.states.values()))
    what = "the same round twice gives other bits"
    _require(same, algorithm, what, "keep all memory in the states, and all chance in g")


def keeps_dtype(algorithm: Any) -> None:
    """float32 stays float32 and float64 float64, in states, broadcasts and uploads."""
    for dtype in (torch.float32, torch.float64):
        server, clients = lab.run_round(algorithm, problem=lab.quadratic(dtype=dtype))
        for name, part in clients.parts(algorithm.init_server(lab.start(dtype)), server):
            what = f"{name} is {part.dtype} where x is {dtype}"
            _require(part.dtype == dtype, algorithm, what, "make it like x, as zeros_like(x) does")


def ignores_the_order_of_clients(algorithm: Any) -> None:
    """The order in which clients run changes nothing but rounding."""
    server, states = lab.warm(algorithm)
    a, there = lab.run_round(algorithm, server, states, order=(0, 2, 3, 5))
    b, back = lab.run_round(algorithm, server, states, order=(5, 3, 0, 2))
    same = lab.close(a, b) and all(lab.close(there.states[i], back.states[i]) for i in range(lab.N))
    what = "another order of the clients gives another result"
    _require(same, algorithm, what, "let clients know nothing but state and broadcast")


def accepts_chunks(algorithm: Any) -> None:
    """s clients as one chunk, with states and gradients of shape (s, d), are as those s alone."""
    server, states = lab.warm(algorithm)
    _, alone = lab.run_round(algorithm, server, states)
    advice = "write for y of shape (d,) and (s, d), and reduce over dim=-1 only"
    try:
        _, chunk = lab.run_round(algorithm, server, states, chunk=True)
    except Exception as error:
        what = f"on a chunk of {len(lab.SOME)} clients it fails ({_line(error)})"
        _require(False, algorithm, what, advice)
    what = "a chunk of clients does not give what they give alone"
    for i in lab.SOME:
        a, b = ((clients.uploads[i], clients.states[i]) for clients in (alone, chunk))
        _require(lab.close(a, b), algorithm, what, advice)


def runs_alike_in_every_executor(algorithm: Any) -> None:
    """Lazy vectors, chunks of clients and a tape give what tensors give, but for rounding."""

    def after_three_rounds(executor: str, problem: Any) -> State:
        sim = simulate(algorithm, problem, S=4, lost=0.2, x=lab.start(), executor=executor)
        return lab.all_states(lab.advance(sim, 3))

    expected = after_three_rounds("loop", lab.quadratic())
    advice = "treat what a program is given as vectors, whatever their class, and change nothing"
    for name, executor, kind in (
        ("lazy vectors", "fused", Quadratic),
        ("lazy vectors in threads", "threads", Quadratic),
        ("chunks of clients", "batched", Quadratic),
        ("a tape", "batched", lab.Taped),
    ):
        try:
            found = after_three_rounds(executor, lab.quadratic(kind))
        except Exception as error:
            _require(False, algorithm, f"with {name} it fails ({_line(error)})", advice)
        what = f"with {name} it gives another result than with tensors"
        _require(lab.close(found, expected), algorithm, what, advice)


def survives_lost_replies(algorithm: Any) -> None:
    """A round in which a client's reply is lost is the round without that client."""
    without, others = lab.run_round(algorithm, *lab.warm(algorithm), order=(0, 2, 3))
    lost, clients = lab.run_round(algorithm, *lab.warm(algorithm), order=(0, 1, 2, 3), lost=1)
    same = lab.equal((lost, *clients.states.values()), (without, *others.states.values()))
    what = "a client whose reply was lost leaves traces in a state"
    _require(same, algorithm, what, "use nothing of the clients but replies.mean()")


def survives_a_restart(algorithm: Any) -> None:
    """Saved, loaded and continued it gives the bits of the run that went on."""
    sim = simulate(replace(algorithm), lab.quadratic(), S=4, lost=0.2, x=lab.start())
    with TemporaryDirectory() as folder:
        lab.advance(sim, 3).save(f"{folder}/saved")
        lab.advance(sim, 3)
        loaded = Simulation.load(f"{folder}/saved", replace(algorithm), sim.problem)
    same = lab.equal(lab.all_states(sim), lab.all_states(lab.advance(loaded, 3)))
    what = "after save and load it goes another way"
    _require(same, algorithm, what, "keep all memory in the states of server and clients")


def rests_when_nobody_moves(algorithm: Any) -> None:
    """From the initial states zero gradients leave x where it is, whatever eta_g."""
    what = "x changes though no client moves, at its eta_g or at half of it"
    for variant in lab.with_half_eta_g(algorithm):
        server, _ = lab.run_round(variant, problem=lab.quadratic(lab.Still))
        rests = lab.close(server.x, lab.start())
        _require(rests, algorithm, what, "multiply the mean of y - x by eta_g, never y or x")


def rests_at_the_optimum_of_equal_clients(algorithm: Any) -> None:
    """From the initial states, x* is a fixed point if all clients are equal, without noise."""
    what = "it leaves x* though all clients are equal"
    for variant in lab.with_half_eta_g(algorithm):
        sim = simulate(variant, lab.quadratic(equal=True, sigma=0.0), S=4, x=lab.start())
        rests = lab.close(lab.advance(sim, 5).server.x, lab.start())
        _require(rests, algorithm, what, "look at signs and at initial states")


CHECKS: tuple[Callable[[Any], None], ...] = (
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


# -- what algorithms with control variates keep besides


def control_is_the_mean_gradient(algorithm: Any) -> None:
    """After a round c_i is the mean of the raw gradients of its steps; with option I, g(x)."""
    server, states = _controls(algorithm, c=1.0, c_i=2.0)
    _, clients = lab.run_round(algorithm, server, states)
    for i in lab.SOME:
        what, c_i = "the mean of its raw gradients", torch.stack(clients.gradients[i]).mean(0)
        if getattr(algorithm, "option", "II") == "I":
            what, c_i = "its full gradient g(x)", lab.quadratic().client_gradient(i, server.x)
        same = lab.close(clients.states[i], c_i)
        _require(same, algorithm, f"c_i is not {what} after a round", "look at line 12 (i), (ii)")


def correction_matters(algorithm: Any) -> None:
    """c and c_i each change the steps of the clients."""
    x = lab.run_round(algorithm, *_controls(algorithm))[0].x
    for name in ("c", "c_i"):
        y = lab.run_round(algorithm, *_controls(algorithm, **{name: 100.0}))[0].x
        what = f"{name} = 100 does not change the steps"
        _require(not lab.close(x, y), algorithm, what, "add c - c_i to the gradient at every step")


def controls_average_to_c(algorithm: Any) -> None:
    """After every round c = sum p_i c_i, with sampling, weights and lost replies."""
    _controls(algorithm)
    sim = simulate(algorithm, lab.quadratic(), S=4, lost=0.3, x=lab.start())
    _audit(sim, 20, "start at zero, and add to c the share times the mean of c_i_new - c_i")


def keeps_what_it_sent(algorithm: Any) -> None:
    """c = sum p_i c_i also when uploads are rounded on their way."""
    _controls(algorithm)
    rounded = Through(algorithm, (Rounding(0.05),))
    sim = simulate(rounded, lab.quadratic(), S=4, x=lab.start())
    advice = "compute the client's new state from what g.sent(upload) returns, and upload that"
    _audit(sim, 5, advice, algorithm)


def includes_late_clients(algorithm: Any) -> None:
    """c = sum p_i c_i also when clients join late."""
    _controls(algorithm)
    cohorts = [[0, 1], [0, 1], [0, 5], [2, 3, 4]]
    sim = simulate(algorithm, lab.quadratic(), cohorts=cohorts, x=lab.start())
    _audit(sim, len(cohorts), "start a client's c_i in one way, however late it joins")


def reaches_the_weighted_optimum(algorithm: Any) -> None:
    """With half of the clients a round, and no noise, x goes to the minimum of sum p_i f_i."""
    _controls(algorithm)
    sim = simulate(algorithm, lab.quadratic(sigma=0.0), S=lab.N // 2, x=lab.start())
    before, gap = inf, lab.distance(sim)
    with suppress(Diverged):
        while 1e-6 < gap < before / 2:
            before, gap = gap, lab.distance(lab.advance(sim, 100))
    what = f"|x - x*| is {gap:.1g} after {sim.r} rounds with {lab.N // 2} of {lab.N} clients"
    _require(gap <= 1e-6, algorithm, what, "look at lines 10, 12 and 17, or at the step size")


CONTROL_CHECKS: tuple[Callable[[Any], None], ...] = (
    control_is_the_mean_gradient,
    correction_matters,
    controls_average_to_c,
    keeps_what_it_sent,
    includes_late_clients,
    reaches_the_weighted_optimum,
)


def _require(holds: bool, algorithm: Any, what: str, advice: str) -> None:
    if not holds:
        name = getattr(algorithm, "__name__", type(algorithm).__name__)
        raise ContractError(f"{name}: {what}; {advice}.")


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _attributes(algorithm: Any) -> bytes:
    return pickle.dumps(getattr(algorithm, "__dict__", None))


def _audit(sim: Simulation, rounds: int, advice: str, algorithm: Any = None) -> None:
    for _ in range(rounds):
        gap = lab.advance(sim, 1).audit()
        what = f"c differs from the sum of p_i c_i by {gap:.1g} after round {sim.r}"
        what += "" if algorithm is None else " when uploads are rounded"
        _require(gap < 1e-8, algorithm or sim.algorithm, what, advice)


def _controls(algorithm: Any, c: float = 0.0, c_i: float = 0.0) -> tuple[State, dict[int, State]]:
    """Return states of server and clients with these controls."""
    server, client = algorithm.init_server(lab.start()), algorithm.init_client(lab.start())
    found = hasattr(server, "c") and lab.shapes(server.c) == lab.shapes(client)
    what = "it has no c in the server's state, or the client's state is not c_i"
    _require(found, algorithm, what, "use check_algorithm alone")
    states = {i: torch.full_like(client, c_i) for i in range(lab.N)}
    return server._replace(c=torch.full_like(client, c)), states
