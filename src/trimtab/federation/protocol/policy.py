"""A site holds each request to its policy, here alone, before anything is computed."""

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from trimtab.algorithms.registry import kind
from trimtab.core.hyper import Epochs, settings_of
from trimtab.federation.message import Message
from trimtab.federation.protocol.checks import shown
from trimtab.federation.storage.policy import Policy

LocalSteps = Callable[[int | Epochs], int]
"""How many local steps are made where K are asked for."""


class OutsidePolicy(ValueError):
    """A request that the site's policy does not allow; the sentence has the line."""


def check_request(policy: Policy, request: Message, now: datetime) -> None:
    """Refuse a request for what it says of problem, sites and time."""
    problem, sites = request.header.get("problem"), request.header.get("sites")
    if problem != policy.problem:
        _refuse(
            policy,
            "problem",
            f"the server's problem file is {shown(problem)}; get it from the operator, read it, "
            "then `trimtab federate approve`",
        )
    if policy.sites:
        named = sites if isinstance(sites, dict) else {}
        if not named:
            _refuse(policy, "sites", "the server does not say which sites take part")
        for name, fingerprint in named.items():
            if name != request["site"] and policy.sites.get(name) != fingerprint:
                _refuse(policy, "sites", f"{shown(name)} takes part with key {shown(fingerprint)}")
    if not policy.is_open_at(60 * now.hour + now.minute):
        _refuse(policy, "hours", f"it is {now:%H:%M}")


def check_algorithm(policy: Policy, algorithm: Any, pace: LocalSteps) -> None:
    """Refuse an algorithm, or its number of local steps, at this site."""
    name = kind(algorithm).name.partition("-")[0]  # what stands around an algorithm comes after it
    if policy.algorithms is not None and name not in policy.algorithms:
        _refuse(policy, "algorithms", f"the server asks for {name}")
    limited(policy, pace)(settings_of(algorithm).get("K", 1))


def check_round(policy: Policy, r: int, batch: int | None) -> None:
    """Refuse the number of a round, and mini-batches; None where the problem has no samples."""
    if not policy.rounds[0] <= r <= policy.rounds[1]:
        _refuse(policy, "rounds", f"the server asks for round {shown(r)}")
    if batch is not None and not policy.batch[0] <= batch <= policy.batch[1]:
        _refuse(policy, "batch", f"a mini-batch has {batch} samples")


def limited(policy: Policy, pace: LocalSteps) -> LocalSteps:
    """Return a pace that refuses steps outside the policy, also where an array asks for them."""

    def steps(K: int | Epochs) -> int:
        own = pace(K)
        if not policy.K[0] <= own <= policy.K[1]:
            _refuse(policy, "K", f"the server asks for {shown(own)} local steps")
        return own

    return steps


@contextmanager
def in_time(policy: Policy) -> Iterator[None]:
    """Refuse what takes too long, between two calls of Python; only where signals can come."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        _refuse(policy, "seconds", "the work took longer")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, policy.seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(policy: Policy) -> None:
    """Let this process have no more memory than the policy says."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if policy.bytes and (most == resource.RLIM_INFINITY or policy.bytes < most):
        resource.setrlimit(resource.RLIMIT_DATA, (policy.bytes, most))


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether Python or torch could not have the memory it asked for."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _refuse(policy: Policy, entry: str, asked: str) -> None:
    raise OutsidePolicy(f"{policy.lines[entry]}; {asked}.")
