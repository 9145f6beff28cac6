"""The interfaces: a model is one vector x in R^d, and the server's code describes a round.

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
    """The stochastic gradient g_i of one client's loss f_i, which a problem provides."""

    def __call__(self, y: Vector, k: int | None = None) -> Vector:
        """Return g_i(y) on the k-th mini-batch of this round, or on all local data if k is None.

        Equal k means equal mini-batch: g(y, k) - g(x, k) is a difference on the same samples.
        """
        ...


class Oracle(Gradient, Protocol):
    """The client as its program sees it; `core.oracle.ClientOracle` implements this."""

    def steps(self, K: int | Epochs, *, equal: bool = False) -> int:
        """Return K_i, the number of local steps of this client in this round.

        K: a number of steps, or Epochs of the client's data.
        equal: raise BadArgument unless all clients make K steps; False by default.
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
    """The replies of the clients that answered; an algorithm only ever sees their mean."""

    @property
    def share(self) -> float:
        """The sum of p_i over those that answered: |S|/N when all clients weigh the same."""
        ...

    def mean(self) -> Any:
        """Return the mean upload, client i weighted by p_i."""
        ...

    def __len__(self) -> int: ...


Program = Callable[..., tuple[Any, State]]
"""The function that a client runs: `program(g, state, *broadcast) -> (upload, new state)`."""


class Clients(Protocol):
    """The clients of one round: simulated ones, or machines. Nothing else reaches them."""

    def run(self, program: Program, *broadcast: Any) -> Replies:
        """Send `broadcast` to the clients, run `program` on each, and collect the replies.

        program: a method of the algorithm, because programs are pickled by name.
        broadcast: tensors or tuples of them, the same for all clients.
        """
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
