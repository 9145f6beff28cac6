"""The nouns: a model is one vector x in R^d, a round is written from the server's seat.

Notation follows Karimireddy et al. (2020), Table 1; `docs/notation.md` is the dictionary.
States, uploads and broadcasts are tensors or (named) tuples of them; `()` is nothing.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from trimtab.core.hyper import Epochs

Vector = Tensor  # shape (d,); for a chunk of s clients (s, d)
State = Any  # a tensor, or a (named) tuple of states; () when there is nothing to remember


class Gradient(Protocol):
    """The stochastic gradient g_i of one client's loss f_i: what a problem provides."""

    def __call__(self, y: Vector, k: int | None = None) -> Vector:
        """Return g_i(y) on the k-th mini-batch of this round, or on all local data if k is None.

        Equal k means equal mini-batch: g(y, k) - g(x, k) is a difference on the same samples.
        """
        ...


class Oracle(Gradient, Protocol):
    """What a program sees of its client; `core.oracle.ClientOracle` is one."""

    def steps(self, K: int | Epochs, *, equal: bool = False) -> int:
        """Return how many local steps this client makes in this round: K_i.

        equal: all clients must make K steps, or there is an error.
        """
        ...

    def sent(self, upload: Any) -> Any:
        """Return the upload as it will arrive; a client's new state is computed from that."""
        ...

    def normal(self, like: Vector) -> Vector:
        """Return standard normal numbers, a function of (seed, client, round, call)."""
        ...

    def uniform(self, like: Vector) -> Vector:
        """Return numbers uniform in [0, 1), a function of (seed, client, round, call)."""
        ...


class Replies(Protocol):
    """What the clients that answered have sent back; only means ever reach an algorithm."""

    @property
    def share(self) -> float:
        """The sum of p_i over those that answered: |S|/N when all clients weigh the same."""
        ...

    def mean(self) -> Any:
        """Return the mean upload, client i weighted by p_i."""
        ...

    def __len__(self) -> int: ...


Program = Callable[..., tuple[Any, State]]
"""What a client runs: `program(g, state, *broadcast) -> (upload, new state)`."""


class Clients(Protocol):
    """The clients of one round: simulated ones, or machines. Nothing else reaches them."""

    def run(self, program: Program, *broadcast: Any) -> Replies:
        """Send `broadcast` to the clients, run `program` on each, and collect the replies."""
        ...

    def normal(self, like: Vector) -> Vector:
        """Return standard normal numbers, a function of (seed, round, call)."""
        ...

    def uniform(self, like: Vector) -> Vector:
        """Return numbers uniform in [0, 1), a function of (seed, round, call)."""
        ...


class Algorithm(Protocol):
    """A frozen dataclass of hyper-parameters with three pure methods.

    `trimtab.testing.check_algorithm` is this contract, executable.
    """

    def init_server(self, x: Vector) -> State:
        """Return the server's state, a NamedTuple whose attribute `x` is the model."""
        ...

    def init_client(self, x: Vector) -> State:
        """Return the state of a client that is sampled for the first time; `()` for none."""
        ...

    def round(self, server: State, clients: Clients) -> State:
        """Return the server's state after one round."""
        ...
