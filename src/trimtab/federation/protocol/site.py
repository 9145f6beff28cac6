"""A site: its half of the commit protocol that `coordinator.py` states.

The site keeps its new state and its reply durably before it answers. Whether that state counts, it
learns from the next request: `accepted` is the tag of the state that the server counts on.
"""

import hmac
import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from secrets import randbelow
from threading import Lock as ThreadLock
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from trimtab._files import Lock, plain
from trimtab.algorithms.registry import decode
from trimtab.commit import START, Accepted, Mismatch, States, digest, settle
from trimtab.core import State, Vector, leaves
from trimtab.core.hyper import at
from trimtab.core.oracle import ClientOracle, client_random
from trimtab.core.threads import one_thread
from trimtab.federation.log import printable
from trimtab.federation.message import (
    BadMessage,
    Message,
    NotFinite,
    ReplyStatus,
    arrays_of,
    check_arrays,
    filled,
    other_protocol,
    this_trimtab,
)
from trimtab.federation.protocol.answers import Answers, Refusal, identity_of
from trimtab.federation.protocol.checks import shown
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
from trimtab.federation.storage.files import CannotWrite, private_folder, writing
from trimtab.federation.storage.journal import MOST_KEPT
from trimtab.federation.storage.policy import Policy
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.problem import Supervised
from trimtab.simulation.executors import choose
from trimtab.simulation.executors.executor import local_steps_of

log = logging.getLogger("trimtab.federation.protocol")

_WORD = re.compile(r"[0-9a-z]{1,40}")
_DIGEST = re.compile(r"[0-9a-f]{64}|")
_DIGITS = 3  # A metric leaves the site with 3 significant digits.
# The whole numbers of every request, and of one for work: the least and the most. A branch of
# number 0 would never begin, and so never be counted.
_MOST = 1 << 53
_NUMBERS = {"index": (0, _MOST), "branch": (1, _MOST), "commit": (0, _MOST), "keep": (0, MOST_KEPT)}
_OF_WORK = {"exchange": (0, 16), "r": (0, _MOST), "seed": (-(1 << 64), 1 << 64)}


class Site:
    """One site: its data, and its states in a folder that belongs to this process alone.

    folder: where states and the record of answers are.
    name: the site's name.
    problem: a Problem in which this site is the client of the number that the server gives it.
    policy: what the server may ask; default anything.
    secret: mini-batches, dropout and noise are drawn from it. Without one they are drawn from the
        server's seed, which gives the simulator's bits, and the server knows each mini-batch.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        problem: Problem,
        policy: Policy | None = None,
        secret: bytes | None = None,
    ) -> None:
        self.folder, self.name, self.problem, self.policy = folder, name, problem, policy
        self._dtype, self._secret = problem.x0().dtype, secret
        self._one = ThreadLock()
        self._kinds: dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "work": self._work,
            "statistics": self._statistics,
            "evaluate": self._evaluate,
            "control": self._control,
            "restore": self._restore,
        }
        self._lock = Lock(private_folder(folder))
        self._answers = Answers(folder, policy)

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
            except CannotWrite as error:
                reply = _status(ReplyStatus.FAILED, why=f"{error}.")
            except Mismatch:
                why = f"its state {request['accepted']}, which the server counts on, is not here."
                reply = _status(ReplyStatus.MISMATCH, why=why)
            except (Refusal, OutsidePolicy, BadMessage) as error:
                reply = _status(ReplyStatus.REFUSED, why=str(error))
            except Exception as error:
                reply = self._failed(error)
        before = request.header.get("refused")
        if isinstance(before, str) and "why" not in reply.header:
            reply.header["why"] = (
                f"the server did not take the reply before: {printable(before, 400)}."
            )
        if "why" in reply.header:
            log.warning("site %s: %s", self.name, reply["why"])
        named = {
            name: request.header.get(name) for name in ("kind", "tag", "experiment", "exchange")
        }
        # What is no name is not repeated: the header of a reply has a limit.
        known: dict[str, Any] = {
            k: v for k, v in named.items() if isinstance(v, str | int) and len(str(v)) <= 64
        }
        known |= {"site": self.name, "seen": self._answers.seen(known.get("experiment"))}
        known |= this_trimtab()
        return Message(reply.header | known, reply.arrays)

    def _failed(self, error: Exception) -> Message:
        """Return the class of an error and a number; its text may hold data, and stays here."""
        if self.policy and is_out_of_memory(error):
            why = f"{self.policy.lines['memory']}; it was not enough."
            return _status(ReplyStatus.REFUSED, why=why)
        number = randbelow(10**6)
        log.exception("site %s cannot answer; error %d", self.name, number)
        kind = printable(type(error).__name__, 40)
        return _status(ReplyStatus.FAILED, why=f"{kind}; the site's log has it as error {number}.")

    # -- the kinds of requests

    def _hello(self, request: Message) -> Message:
        """Say what this site has: samples to train and to test on, d and dtype of its model."""
        n, tested = self.sizes(request["index"])
        dtype = str(self._dtype).removeprefix("torch.")
        return _status(ReplyStatus.DONE, n=n, tested=tested, d=self.problem.d, dtype=dtype)

    def _work(self, request: Message) -> Message:
        """Run one exchange of a round, or return the reply that was sent before."""
        started, number = perf_counter(), request["exchange"]
        like = self._plan(at(self._algorithm(request), request["r"]))
        if number >= len(like.exchanges):
            raise Refusal(f"a round of {request['algorithm']['kind']} has no exchange {number}.")
        exchange, last = like.exchanges[number], number + 1 == len(like.exchanges)
        x, broadcast = self._received(request, exchange.broadcast)
        identity = identity_of(request, digest(request.arrays))
        stored = self._answers.stored(request, identity)
        if stored is not None:
            return stored
        state = self._state(request, like, x)
        with self._answers.answering(request, identity):
            telemetry = self._measured(request, x) if number == 0 else {}
            measured = perf_counter()
            index, seed, r = request["index"], self._seed(request), request["r"]
            draws = client_random(seed, index, r, number + 1)
            pace: LocalSteps = local_steps_of(self.problem, index, seed, r)
            if self.policy is not None:
                pace = limited(self.policy, pace)
            g = ClientOracle(self.problem.oracle(index, seed, r), draws, count=pace)
            upload, new = exchange.program(g, state, *broadcast)
            check_arrays("its upload", arrays_of(upload), leaves(exchange.upload))
            check_arrays("its new state", arrays_of(new), leaves(like.client))
        telemetry |= {"base": request["accepted"], "seconds": perf_counter() - measured}
        telemetry |= {"seconds_measuring": measured - started}
        if like.stateful and last:
            telemetry |= self._put(request, arrays_of(new), request["accepted"], "site:pending")
        reply = Message({"status": ReplyStatus.DONE} | telemetry, arrays_of(upload))
        self._answers.keep(request, identity, reply, None if last else arrays_of(new))
        return reply

    def _evaluate(self, request: Message) -> Message:
        """Measure the model after the last round, with the statistics of BatchNorm beside it."""
        layers, arrays = Layers.of(self.problem), request.arrays
        _check(
            "the server's x", arrays, [self._vector(), *(layers.like() if len(arrays) > 1 else [])]
        )

        def measured() -> Message:
            with layers.given(self.problem, arrays):
                return _status(ReplyStatus.DONE, **self._measured(request, arrays["0"]))

        return self._once(request, measured)

    def _statistics(self, request: Message) -> Message:
        """Send the moments of BatchNorm's layers at x on the training data."""
        _check("the server's x", request.arrays, [self._vector()])
        problem = self.problem
        if not isinstance(problem, Supervised):
            raise Refusal("its problem has no layers.")
        x, index = request.arrays["0"], request["index"]
        return self._once(
            request,
            lambda: Message(
                {"status": ReplyStatus.DONE}, Layers.of(problem).sent(problem, x, index)
            ),
        )

    def _once(self, request: Message, answer: Callable[[], Message]) -> Message:
        """Return the answer to a request that is answered once in a branch."""
        identity = identity_of(request, digest(request.arrays))
        reply = self._answers.stored(request, identity)
        if reply is None:
            with self._answers.answering(request, identity):
                reply = answer()
            self._answers.keep(request, identity, reply)
        return reply

    def _control(self, request: Message) -> Message:
        """Show the state that the server counts on; change nothing."""
        state = settle(self._states(request), _accepted(request))
        self._answers.shown(request)
        if state is None:
            return _status(ReplyStatus.DONE, start=True)
        return Message({"status": ReplyStatus.DONE}, state)

    def _restore(self, request: Message) -> Message:
        """Take a state from the server in place of one that is gone."""
        like = self._plan(self._algorithm(request))
        _check("the server's state", request.arrays, leaves(like.client))
        self._put(request, request.arrays, START, "site:restored")
        return _status(ReplyStatus.DONE)

    # -- the states

    def _state(self, request: Message, like: Plan, x: Vector) -> State:
        """Return the state to start from; raise Mismatch if it is not here."""
        if not like.stateful:
            return ()
        if request["exchange"] > 0:
            return filled(like.client, self._answers.between(request))
        arrays = settle(self._states(request), _accepted(request))
        return (
            self._algorithm(request).init_client(x)
            if arrays is None
            else filled(like.client, arrays)
        )

    def _put(
        self, request: Message, arrays: dict[str, Tensor], base: str, what: str
    ) -> dict[str, str]:
        """Keep a new state; return its tag and digest, as a reply has them."""
        states, tag = self._states(request), request["tag"]
        clock = 1 + max((file.clock for file in states.files().values()), default=0)
        with writing(states.folder):
            own = states.put(tag, arrays, base=base, clock=clock, what=what)
            states.trim(tag)
        return {"state": tag, "digest": own}

    def _states(self, request: Message) -> States:
        return States(self.folder / request["experiment"], request["keep"])

    def _seed(self, request: Message) -> int:
        """Return the seed of this round's draws, which the server does not know."""
        if self._secret is None:
            return int(request["seed"])
        place = f"{request['experiment']} {request['branch']} {request['r']}"
        return int.from_bytes(hmac.digest(self._secret, place.encode(), "sha256")[:8])

    # -- what is asked, and of whom

    def _check(self, request: Message) -> None:
        if versions := other_protocol(request.header):
            raise Refusal(
                "it has trimtab {}, the server {}; install versions of one protocol.".format(
                    *versions
                )
            )
        if request["site"] != self.name:
            got = shown(request["site"])
            raise Refusal(f"it got a request for {got}; check the names of sites.")
        if not isinstance(request["kind"], str) or request["kind"] not in self._kinds:
            raise Refusal(f"it knows no request of kind {shown(request['kind'])}.")
        patterns = dict.fromkeys(("experiment", "tag", "accepted"), _WORD)
        patterns |= dict.fromkeys(("digest", "head"), _DIGEST)
        for name, pattern in patterns.items():
            if not isinstance(request[name], str) or not pattern.fullmatch(request[name]):
                raise Refusal(f"a request has the {name} {shown(request[name])}, which is no name.")
        numbers = _NUMBERS | (_OF_WORK if request["kind"] == "work" else {})
        for name, (least, most) in numbers.items():
            value = request[name]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise Refusal(f"a request has the {name} {shown(value)}, which is no number.")
        if request["index"] >= self.problem.N:
            raise Refusal(
                f"it is client {request['index']}, but its problem has N={self.problem.N}."
            )
        if self.policy is not None:
            self._check_policy(self.policy, request)
        if request["kind"] != "hello":
            self._answers.begin(request)

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
        x = arrays.get(str(request["x"]))
        apart = arrays.pop("x", x)  # where the broadcast has x in parts only, it comes beside it
        _check("the server's broadcast", arrays, leaves(like))
        if apart is None:
            raise Refusal("a request came without x.")
        _check("the server's x", {"0": apart}, [self._vector()])
        return apart, filled(like, arrays)

    def _vector(self) -> Tensor:
        return torch.empty(self.problem.d, dtype=self._dtype, device="meta")

    # -- the data

    @property
    def _narrow(self) -> bool:
        """Whether one intra-op thread is best, as in the simulator."""
        return choose(self.problem, S=1).threads == "one"

    def _measured(self, request: Message, x: Vector) -> dict[str, Any]:
        """Return the metrics of x on the test data, while the budget of metrics lasts."""
        tested = self.sizes(request["index"])[1]
        if not tested or not self._answers.measures(request):
            return {"tested": tested}
        if isinstance(self.problem, Supervised):
            metrics = self.problem.evaluate(x)
        else:  # What a problem of another class measures is in its file, which the site approved.
            metrics = self.problem.evaluate(x, client=request["index"])
        rounded = {
            name: value if value is None else float(f"{value:.{_DIGITS}g}")
            for name, value in plain(metrics).items()
        }
        return {"metrics": rounded, "tested": tested}

    def sizes(self, index: int) -> tuple[int, int]:
        """Return how many samples there are to train and to test on."""
        if not isinstance(self.problem, Supervised):
            return 1, 1
        tested = len(self.problem.test) if self.problem.has_test else 0
        return self.problem.clients.size(index), tested


def _accepted(request: Message) -> Accepted:
    return Accepted(request["accepted"], request["digest"])


def _check(who: str, arrays: dict[str, Tensor], like: Any) -> None:
    """Refuse arrays of the server that are not as expected."""
    try:
        check_arrays(who, arrays, like)
    except NotFinite:
        raise
    except ValueError as error:
        raise Refusal(str(error)) from None


def _status(status: ReplyStatus, **facts: Any) -> Message:
    return Message({"status": status} | facts)
