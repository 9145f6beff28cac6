"""Stages between a client and the server: rounding, compression, clipping, noise.

`g.sent` returns a program's upload as it will arrive, and the client's new state is computed from
that, so c = sum p_i c_i stays exact with any stages. STAGES, at the end, has one of each stage for
the tests.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from trimtab.core import (
    Algorithm,
    Clients,
    Positive,
    Program,
    Replies,
    State,
    Vector,
    leaves,
    map_leaves,
    validate,
)
from trimtab.core.oracle import ClientOracle


class Stage(Protocol):
    """A transformation of uploads: a frozen dataclass with pure methods."""

    def init(self, x: Vector) -> State:
        """Return a client's initial state of this stage; `()` for none."""
        ...

    def send(self, upload: Any, state: State, g: ClientOracle) -> tuple[Any, State]:
        """Return the transformed upload and the client's new state; `g.normal` draws numbers."""
        ...

    def receive(self, mean: Any, count: int, clients: Clients) -> Any:
        """Return the mean that the server uses, from the mean of `count` uploads."""
        ...

    def size(self, upload: Any) -> int:
        """Return the bytes of an upload in transit."""
        ...


class StagedState(NamedTuple):
    """A client's state if some stage has a state."""

    inner: State  # the algorithm's state, which `core.tree.control` reads
    stages: tuple[State, ...]


@dataclass(frozen=True)
class Through:
    """An algorithm whose uploads pass through stages.

    algorithm: the algorithm.
    stages: a tuple of stages, applied in this order.
    """

    algorithm: Algorithm
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        stages = self.stages if isinstance(self.stages, tuple) else ()
        if not stages or not all(hasattr(stage, "send") for stage in stages):
            raise ValueError(
                f"Through: stages={self.stages!r}; pass a tuple of them, as (Rounding(0.01),)."
            )

    def init_server(self, x: Vector) -> State:
        return self.algorithm.init_server(x)

    def init_client(self, x: Vector) -> State:
        inner, own = self.algorithm.init_client(x), tuple(s.init(x) for s in self.stages)
        # If no stage has a state, the client's state is the algorithm's own, also in checkpoints.
        return StagedState(inner, own) if leaves(own) else inner

    def round(self, server: State, clients: Clients) -> State:
        return self.algorithm.round(server, _Passing(clients, self.stages))


@dataclass(frozen=True)
class _Passing:
    """Clients whose uploads pass through the stages."""

    clients: Clients
    stages: tuple[Stage, ...]

    def run(self, program: Program, *broadcast: Any) -> Replies:
        relay = Relay(program, self.stages)
        return _Received(self.clients.run(relay.local, *broadcast), self.stages, self.clients)

    def normal(self, like: Vector) -> Vector:
        return self.clients.normal(like)

    def uniform(self, like: Vector) -> Vector:
        return self.clients.uniform(like)


@dataclass(frozen=True)
class Relay:
    """A program whose upload passes through stages before the client's state is computed."""

    program: Program
    stages: tuple[Stage, ...]

    def local(self, g: ClientOracle, state: State, *broadcast: Any) -> tuple[Any, State]:
        behind = isinstance(state, StagedState)
        inner, own = state if behind else (state, ((),) * len(self.stages))
        new: list[State] = []

        def send(upload: Any) -> Any:
            if new:
                raise ValueError("a program called g.sent twice in one exchange; call it once.")
            for stage, stage_state in zip(self.stages, own, strict=True):
                upload, stage_state = stage.send(upload, stage_state, g)
                new.append(stage_state)
            return g.sent(upload)  # An outer `Through` has its own stages.

        upload, inner = self.program(replace(g, send=send), inner, *broadcast)
        if not new:  # A program without a state need not call g.sent.
            upload = send(upload)
        return upload, StagedState(inner, tuple(new)) if behind else inner

    def upload_bytes(self, upload: Any) -> int:
        """Return the bytes of an upload after the last stage."""
        return self.stages[-1].size(upload)


@dataclass(frozen=True)
class _Received:
    """Replies whose mean passes through `receive` of the stages, the last stage first."""

    replies: Replies
    stages: tuple[Stage, ...]
    clients: Clients

    @property
    def share(self) -> float:
        return self.replies.share

    def __len__(self) -> int:
        return len(self.replies)

    def mean(self) -> Any:
        mean = self.replies.mean()
        # The last stage of the clients is undone first.
        for stage in reversed(self.stages):
            mean = stage.receive(mean, len(self), self.clients)
        return mean


@dataclass(frozen=True)
class Rounding:
    """Numbers are rounded to multiples of `step`, which travel as 16-bit integers.

    step: the distance of two values that can be sent, positive.
    """

    step: Positive

    def __post_init__(self) -> None:
        validate(self)

    def init(self, x: Vector) -> tuple[()]:
        return ()

    def send(self, upload: Any, state: tuple[()], g: ClientOracle) -> tuple[Any, tuple[()]]:
        return map_leaves(lambda leaf: (leaf / self.step).round() * self.step, upload), ()

    def receive(self, mean: Any, count: int, clients: Clients) -> Any:
        return mean

    def size(self, upload: Any) -> int:
        return sum(2 * leaf.numel() for leaf in leaves(upload))


STAGES = (Rounding(0.01),)
