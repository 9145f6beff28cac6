"""What a site has answered, durably: each exchange once, within budgets, and a line for each reply.

FOLDER/sent.jsonl            a chain of lines: each branch that was begun, each reply that was sent
FOLDER/EXPERIMENT/replies/   those of the last round, with the client's state between exchanges

The server names experiments and branches, so they are counted together, for each problem file.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.commit import durable
from trimtab.federation.message import Message
from trimtab.federation.storage.files import private_folder, writing
from trimtab.federation.storage.journal import SENT, append, read_chain
from trimtab.federation.storage.ledger import read, write
from trimtab.federation.storage.policy import Policy

_STATE = "state "  # how the arrays of the state between two exchanges begin


class Refusal(ValueError):
    """A request that this site will not serve; the sentence may go to the server."""


@dataclass
class _Experiment:
    """What was answered last in an experiment.

    branch, r: the branch and the round.
    exchanges: the identities of the requests that were answered in this round, by exchange.
    end: those of the requests after the last round of this branch, by kind.
    seen: branch, commit and head of the server's journal at the last reply.
    """

    branch: int = 0
    r: int = 0
    exchanges: dict[int, str] = field(default_factory=dict)
    end: dict[str, str] = field(default_factory=dict)
    seen: tuple[int, int, str] | None = None


class Answers:
    """The record of one site."""

    def __init__(self, folder: Path, policy: Policy | None) -> None:
        self.folder, self.policy = folder, policy
        self._entries = read_chain(folder / SENT)
        self._head = self._entries[-1].digest if self._entries else ""
        self._experiments: dict[str, _Experiment] = {}
        self._spent: Counter[tuple[str, str]] = Counter()  # by entries of the policy
        for entry in self._entries:
            self._count(entry.line)
        self._entries.clear()

    def seen(self, experiment: Any) -> list[Any] | None:
        """Return the place of the server's journal at the last reply, as a reply has it."""
        known = self._experiments.get(experiment)
        return None if known is None or known.seen is None else list(known.seen)

    def begin(self, request: Message) -> None:
        """Refuse a request for a branch or round that is over; note a branch that is new."""
        name, branch = request["experiment"], request["branch"]
        known = self._experiments.get(name, _Experiment())
        if branch < known.branch:
            raise Refusal(f"it is at branch {known.branch}; branch {branch} is over.")
        if branch > known.branch:
            self._check_budget("branches", request)
            self._log(self._facts(request) | {"kind": "branch"})
        elif request["kind"] == "work" and request["r"] < known.r:
            raise Refusal(f"it has answered round {known.r} of branch {branch}.")

    def measures(self, request: Message) -> bool:
        """Return whether the budget of metrics allows one more reply with metrics."""
        if self.policy is None:
            return True
        counted = _metrics_of(_now(), request["experiment"], self._problem(request))
        return all(self._spent[key] < getattr(self.policy, key[0]) for key in counted)

    def stored(self, request: Message, identity: str) -> Message | None:
        """Return the reply to the same request, if it was answered; refuse another request."""
        before = self._before(request)
        if before not in ("", identity):
            what = f"round {request['r']}" if request["kind"] == "work" else "the last model"
            where = f"{what} of branch {request['branch']}"
            raise Refusal(f"it has answered {where} to another broadcast.")
        try:
            found = read(self._path(request))
        except (FileNotFoundError, ValueError):
            # A reply that is lost is computed again: the draws are the same.
            return None
        if found.header.pop("identity", None) != identity:
            return None
        if not before:  # The process was killed before it wrote the line.
            self._sent(request, identity, found.header)
        arrays = {k: v for k, v in found.arrays.items() if not k.startswith(_STATE)}
        return Message(found.header, arrays)

    def _before(self, request: Message) -> str:
        """Return the identity of what was answered in the place of a request; empty for nothing."""
        known = self._experiments.get(request["experiment"], _Experiment())
        if request["kind"] != "work":
            return known.end.get(request["kind"], "")
        return known.exchanges.get(request["exchange"], "") if request["r"] == known.r else ""

    @contextmanager
    def answering(self, request: Message, identity: str) -> Iterator[None]:
        """Write a line for an answer that fails, too.

        That it fails depends on the data: asked for ever other broadcasts, a server could learn
        where a gradient overflows. The same broadcast is computed again.
        """
        try:
            yield
        except Exception:
            if not self._before(request):
                self._sent(request, identity, {})
            raise

    def between(self, request: Message) -> dict[str, Tensor]:
        """Return the client's state after the exchange before."""
        try:
            found = read(self._path(request, request["exchange"] - 1)).arrays
        except (FileNotFoundError, ValueError):
            raise Refusal("it has not answered the exchange before this one.") from None
        return {k.removeprefix(_STATE): v for k, v in found.items() if k.startswith(_STATE)}

    def keep(
        self,
        request: Message,
        identity: str,
        reply: Message,
        state: dict[str, Tensor] | None = None,
    ) -> None:
        """Keep a reply durably, and write its line; only then it may leave.

        state: the client's state, if another exchange of the round follows.
        """
        path, own = self._path(request), {_STATE + k: v for k, v in (state or {}).items()}
        with writing(self.folder):
            private_folder(path.parent)
            if request["kind"] == "work":
                start = f"{request['branch']}-{request['r']}-"
                for other in path.parent.iterdir():
                    if not other.name.startswith(start):
                        other.unlink()
            content = Message(reply.header | {"identity": identity}, reply.arrays | own)
            write(path, content, "site:reply")
        self._sent(request, identity, reply.header)

    def shown(self, request: Message) -> None:
        """Write the line of a reply that is not kept."""
        self._log(self._facts(request))

    # -- lines

    def _sent(self, request: Message, identity: str, header: dict[str, Any]) -> None:
        facts = self._facts(request) | {"identity": identity}
        if request["kind"] == "work":
            facts |= {"r": request["r"], "exchange": request["exchange"]}
        if header.get("metrics"):
            facts |= {"metrics": header["metrics"]}
        self._log(facts)

    def _facts(self, request: Message) -> dict[str, Any]:
        names = ("kind", "experiment", "branch", "commit", "head")
        return {name: request[name] for name in names} | {"problem": self._problem(request)}

    def _log(self, line: dict[str, Any]) -> None:
        with writing(self.folder):
            durable.fault_point("site:before-sent")
            entry = append(self.folder / SENT, {"time": _now()} | line, self._head)
            durable.fault_point("site:after-sent")
        self._head = entry.digest
        self._count(entry.line)

    def _count(self, line: dict[str, Any]) -> None:
        known = self._experiments.setdefault(line["experiment"], _Experiment())
        if line["branch"] != known.branch:
            known = self._experiments[line["experiment"]] = _Experiment(line["branch"])
            self._spent["branches", line["problem"]] += 1
        if line["kind"] == "work":
            if line["r"] != known.r:
                known.r, known.exchanges = line["r"], {}
            known.exchanges[line["exchange"]] = line["identity"]
        if line["kind"] in ("evaluate", "statistics"):
            known.end[line["kind"]] = line["identity"]
        if "metrics" in line:
            self._spent.update(_metrics_of(line["time"], line["experiment"], line["problem"]))
        known.seen = line["branch"], line["commit"], line["head"]

    def _check_budget(self, what: str, request: Message) -> None:
        if self.policy is None:
            return
        spent, limit = self._spent[what, self._problem(request)], getattr(self.policy, what)
        if spent >= limit:
            raise Refusal(f"{self.policy.lines[what]}; {spent} are spent for this problem file.")

    def _problem(self, request: Message) -> str:
        return self.policy.problem if self.policy else str(request.header.get("problem", ""))

    def _path(self, request: Message, exchange: int | None = None) -> Path:
        folder = self.folder / str(request["experiment"]) / "replies"
        if request["kind"] != "work":
            return folder / f"{request['branch']}-{request['kind']}"
        exchange = request["exchange"] if exchange is None else exchange
        return folder / f"{request['branch']}-{request['r']}-{exchange}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _metrics_of(time: str, experiment: str, problem: str) -> list[tuple[str, str]]:
    """Return the entries of a policy by which a reply with metrics counts, and for what."""
    day = time.partition("T")[0]
    return [("metrics", problem), ("metrics_per_experiment", experiment), ("metrics_per_day", day)]


def identity_of(request: Message, arrays: str) -> str:
    """Return the digest of all that a reply depends on; arrays: that of the broadcast."""
    names = ("kind", "experiment", "branch", "algorithm", "index", "r", "exchange", "seed", "x")
    facts = [request.header.get(name) for name in (*names, "accepted", "digest")]
    return sha256(repr([*facts, arrays]).encode()).hexdigest()
