"""A site: its half of the commit protocol that `coordinator.py` states.

The site keeps what it answered with (its new state) durably before it answers. Whether that state
counts, it learns from the next request: `accepted` is the tag of the state the server counts on.
"""

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from threading import Lock as ThreadLock
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from trimtab._files import Lock, plain
from trimtab.algorithms.registry import decode
from trimtab.core import State, Vector, leaves
from trimtab.core.hyper import at
from trimtab.core.oracle import ClientOracle, client_random
from trimtab.core.threads import one_thread
from trimtab.federation.log import printable
from trimtab.federation.message import (
    Message,
    NotFinite,
    ReplyStatus,
    arrays_of,
    check_arrays,
    filled,
    same_protocol,
    this_trimtab,
    versions,
)
from trimtab.federation.protocol.claims import shown
from trimtab.federation.protocol.policy import (
    LocalSteps,
    OutsidePolicy,
    check_algorithm,
    check_request,
    check_round,
    in_time,
    is_out_of_memory,
    limited,
)
from trimtab.federation.protocol.rehearsal import Plan, plan
from trimtab.federation.protocol.statistics import Layers
from trimtab.federation.storage import files
from trimtab.federation.storage.policy import Policy
from trimtab.federation.storage.states import START, StateFile, States
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation.executors import choose
from trimtab.simulation.executors.executor import local_steps_of

log = logging.getLogger("trimtab.federation.protocol")

_WORD = re.compile(r"[0-9a-z]{1,40}")
_MOST = 1 << 63  # whole numbers of a request are <= this
_OF_WORK = {
    "exchange": 16,
    "r": 1 << 53,
    "seed": 1 << 64,
}  # these of one for work are, too


class Site:
    """One site: its data, and its states in a folder that belongs to this process alone.

    `problem` is a Problem in which this site is the client of the number that the server gives it.
    `policy` is what the server may ask; without one, whatever it likes.
    """

    def __init__(
        self, folder: Path, name: str, problem: Problem, policy: Policy | None = None
    ) -> None:
        self.folder, self.name, self.problem, self.policy = folder, name, problem, policy
        self._dtype = problem.x0().dtype
        self._between: tuple[str, State] | None = None  # two exchanges of one round: tag and state
        self._one = ThreadLock()
        self._kinds: dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "work": self._work,
            "statistics": self._statistics,
            "evaluate": self._evaluate,
            "control": self._control,
            "restore": self._restore,
        }
        self._lock = Lock(files.private_folder(folder))

    def close(self) -> None:
        """Give the folder up."""
        self._lock.release()

    def answer(self, request: Message) -> Message:
        """Return the reply to a request; whatever goes wrong is a reply, too."""
        with self._one, torch.no_grad(), one_thread(when=self._narrow):
            try:
                with in_time(self.policy) if self.policy else nullcontext():
                    self._check(request)
                    reply = self._kinds[request["kind"]](request)
            except NotFinite as error:
                reply = _status(ReplyStatus.DIVERGED, why=str(error))
            except files.CannotWrite as error:
                reply = _status(ReplyStatus.FAILED, why=f"{error}.")
            except (_Refusal, OutsidePolicy) as error:
                reply = _status(ReplyStatus.REFUSED, why=str(error))
            except Exception as error:
                if self.policy and is_out_of_memory(error):
                    error = OutsidePolicy(f"{self.policy.lines['memory']}; it was not enough.")
                log.exception("site %s cannot answer", self.name)
                reply = _status(
                    ReplyStatus.FAILED, why=f"{type(error).__name__}: {_first_line(error)}"
                )
        before = request.header.get("refused")
        if isinstance(before, str) and "why" not in reply.header:
            reply.header["why"] = (
                f"the server did not take the reply before: {printable(before, 400)}."
            )
        if "why" in reply.header:
            log.warning("site %s: %s", self.name, reply["why"])
        known = {name: request.header.get(name) for name in ("kind", "tag", "experiment")}
        known |= {"site": self.name} | this_trimtab()
        return Message(reply.header | known, reply.arrays)

    # -- the kinds of requests

    def _hello(self, request: Message) -> Message:
        """Say what this site has: samples to train and to test on, d and dtype of its model."""
        n, tested = self.sizes(request["index"])
        dtype = str(self._dtype).removeprefix("torch.")
        return _status(ReplyStatus.DONE, n=n, tested=tested, d=self.problem.d, dtype=dtype)

    def _work(self, request: Message) -> Message:
        """Run one exchange of a round; at its last, keep the new state before answering."""
        started, number = perf_counter(), request["exchange"]
        like = self._plan(at(self._algorithm(request), request["r"]))
        exchange = like.exchanges[number]
        x, broadcast = self._received(request, exchange.broadcast)
        if like.stateful:
            stale = self._stale(request)
            if stale is not None:
                return stale
        state = self._state(request, like, x) if like.stateful else ()
        if state is None:
            return _mismatch(request)
        telemetry = self._measured(request["index"], x) if number == 0 else {}
        measured = perf_counter()
        index, seed, r = (request[name] for name in ("index", "seed", "r"))
        draws = client_random(seed, index, r, number + 1)
        pace: LocalSteps = local_steps_of(self.problem, index, seed, r)
        if self.policy is not None:
            pace = limited(self.policy, pace)
        g = ClientOracle(self.problem.oracle(index, seed, r), draws, count=pace)
        upload, new = exchange.program(g, state, *broadcast)
        check_arrays("its upload", arrays_of(upload), leaves(exchange.upload))
        check_arrays("its new state", arrays_of(new), leaves(like.client))
        if like.stateful:
            self._keep(request, new, last=number + 1 == len(like.exchanges))
        telemetry |= {"base": request["accepted"], "seconds": perf_counter() - measured}
        telemetry |= {"seconds_measuring": measured - started}
        return Message({"status": ReplyStatus.DONE} | telemetry, arrays_of(upload))

    def _evaluate(self, request: Message) -> Message:
        """Measure x, with the statistics of BatchNorm that come with it."""
        layers, arrays = Layers.of(self.problem), request.arrays
        beside = layers.like() if len(arrays) > 1 else []
        check_arrays("the server's x", arrays, [self._vector(), *beside])
        with layers.given(self.problem, arrays):
            return _status(ReplyStatus.DONE, **self._measured(request["index"], arrays["0"]))

    def _statistics(self, request: Message) -> Message:
        """Send the moments of BatchNorm's layers at x on the training data."""
        check_arrays("the server's x", request.arrays, [self._vector()])
        if not isinstance(self.problem, Supervised):
            raise _Refusal("its problem has no layers.")
        arrays = Layers.of(self.problem).sent(self.problem, request.arrays["0"], request["index"])
        return Message({"status": ReplyStatus.DONE}, arrays)

    def _control(self, request: Message) -> Message:
        """Show the state that the server counts on; look, and change nothing."""
        if request["accepted"] == START:
            return _status(ReplyStatus.DONE, start=True)
        arrays = self._states(request).load(request["accepted"])
        return (
            _mismatch(request) if arrays is None else Message({"status": ReplyStatus.DONE}, arrays)
        )

    def _restore(self, request: Message) -> Message:
        """Take a state from the server in place of one that is gone."""
        like = self._plan(self._algorithm(request))
        check_arrays("the server's state", request.arrays, leaves(like.client))
        stale = self._stale(request)
        if stale is not None:
            return stale
        restored = StateFile(request["clock"], request["tag"], START)
        self._states(request).put(restored, request.arrays, "site:restored")
        return _status(ReplyStatus.DONE)

    # -- the states

    def _stale(self, request: Message) -> Message | None:
        """Refuse a request that is older than a state kept here: its `accepted` is history."""
        seen = max((file.clock for file in self._states(request).every().values()), default=0)
        if request["clock"] > seen:
            return None
        return _status(
            ReplyStatus.STALE, seen=seen, why="a request came that is older than the state here."
        )

    def _state(self, request: Message, like: Plan, x: Vector) -> State | None:
        """Return the state to start from; None if it is not here."""
        if request["exchange"] > 0:
            tag, state = self._between or ("", ())
            if tag != request["tag"]:
                raise _Refusal("it was started anew between two exchanges of a round.")
            return state
        if request["accepted"] == START:
            return self._algorithm(request).init_client(x)
        arrays = self._states(request).load(request["accepted"])
        return None if arrays is None else filled(like.client, arrays)

    def _keep(self, request: Message, new: State, last: bool) -> None:
        """Make a new state pending at the last exchange; remember it till then."""
        if not last:
            self._between = request["tag"], new
            return
        self._between = None
        states, accepted = self._states(request), request["accepted"]
        pending = StateFile(request["clock"], request["tag"], accepted)
        states.put(pending, arrays_of(new), "site:pending")
        states.trim(accepted, pending=pending.tag)

    def _states(self, request: Message) -> States:
        return States(self.folder / request["experiment"])

    # -- what is asked, and of whom

    def _check(self, request: Message) -> None:
        if not same_protocol(request.header):
            ours, theirs = versions(request.header)
            raise _Refusal(
                f"it has trimtab {ours}, the server {theirs}; install versions of one protocol."
            )
        if request["site"] != self.name:
            got = shown(request["site"])
            raise _Refusal(f"it got a request for {got}; check the names of sites.")
        if not isinstance(request["kind"], str) or request["kind"] not in self._kinds:
            raise _Refusal(f"it knows no request of kind {shown(request['kind'])}.")
        for name in ("experiment", "tag", "accepted"):
            if not isinstance(request[name], str) or not _WORD.fullmatch(request[name]):
                raise _Refusal(
                    f"a request has the {name} {shown(request[name])}, which is no name."
                )
        numbers = {"clock": _MOST, "index": _MOST} | (_OF_WORK if request["kind"] == "work" else {})
        for name, most in numbers.items():
            value, least = request[name], -most if name == "seed" else 0
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise _Refusal(f"a request has the {name} {shown(value)}, which is no number.")
        if request["index"] >= self.problem.N:
            raise _Refusal(
                f"it is client {request['index']}, but its problem has N={self.problem.N}."
            )
        if self.policy is not None:
            self._check_policy(self.policy, request)

    def _check_policy(self, policy: Policy, request: Message) -> None:
        """Hold a request to the policy, before a round is even rehearsed."""
        check_request(policy, request, datetime.now())
        index, r = request["index"], request.header.get("r", policy.rounds[0])
        batch = self.problem.samples(index)[1] if isinstance(self.problem, Supervised) else None
        check_round(policy, r, batch)
        pace = local_steps_of(self.problem, index, 0, r)
        check_algorithm(policy, at(self._algorithm(request), r), pace)

    def _algorithm(self, request: Message) -> Any:
        return decode(request["algorithm"])

    def _plan(self, algorithm: Any) -> Plan:
        return plan(algorithm, self.problem.d, self._dtype)

    def _received(self, request: Message, like: tuple[Any, ...]) -> tuple[Vector, tuple[Any, ...]]:
        """Return x and the broadcast of a request."""
        arrays = dict(request.arrays)
        x = arrays.get(request["x"])
        apart = arrays.pop("x", x)  # where the broadcast has x in parts only, it comes beside it
        check_arrays("the server's broadcast", arrays, leaves(like))
        if apart is None:
            raise _Refusal("a request came without x.")
        check_arrays("the server's x", {"0": apart}, [self._vector()])
        return apart, filled(like, arrays)

    def _vector(self) -> Tensor:
        return torch.empty(self.problem.d, dtype=self._dtype, device="meta")

    # -- the data

    @property
    def _narrow(self) -> bool:
        """Whether one intra-op thread is best, as in the simulator."""
        return choose(self.problem, S=1).threads == "one"

    def _measured(self, index: int, x: Vector) -> dict[str, Any]:
        """Return the metrics of x on the test part; on the training part if there is none."""
        held_out = isinstance(self.problem, Supervised) and self.problem.has_test
        metrics = self.problem.evaluate(x) if held_out else self.problem.evaluate(x, client=index)
        return {"metrics": plain(metrics), "tested": self.sizes(index)[1]}

    def sizes(self, index: int) -> tuple[int, int]:
        """Return how many samples there are to train and to test on."""
        if not isinstance(self.problem, Supervised):
            return 1, 1
        n = self.problem.clients.size(index)
        return n, len(self.problem.test) if self.problem.has_test else n


class _Refusal(ValueError):
    """A request that this site will not serve."""


def _status(status: ReplyStatus, **facts: Any) -> Message:
    return Message({"status": status} | facts)


def _mismatch(request: Message) -> Message:
    return _status(
        ReplyStatus.MISMATCH,
        why=f"its state {request['accepted']}, which the server counts on, is not here.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") + "."
