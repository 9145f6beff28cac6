"""The server's side of a loop of one's own: x, c and which c_i of each client is in c."""

from collections.abc import Mapping, Sequence
from math import fsum, inf, isfinite
from numbers import Integral, Real
from operator import index
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.commit import START
from trimtab.errors import BadArgument
from trimtab.torch.controls import Named, check_names, check_state, finite, trainable, wrong, zeros


class ServerControls:
    """x, c = sum p_i c_i over all N clients, and which c_i of each client is in c.

    model: its trainable parameters are the first x.
    N: the number of all clients, including those that are not asked in a round.
    weights: the weight p_i of each client, for example its number of samples; divided by their
        sum. Default: equal weights.

    >>> import torch
    >>> from trimtab.torch import Controls
    >>> model = torch.nn.Linear(3, 1)
    >>> server, controls = ServerControls(model, N=1), Controls(model)
    >>> x, c, accepted = server.send(0)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> controls.begin(c, optimizer, accepted=accepted)
    >>> model(torch.ones(2, 3)).square().mean().backward()
    >>> controls.correct()
    >>> optimizer.step()
    >>> dc, K = controls.end()
    >>> dx = {name: p.detach() - x[name] for name, p in model.named_parameters()}
    >>> server.receive(0, dx, dc, controls.tag)
    >>> server.step()
    """

    def __init__(self, model: nn.Module, N: int, weights: Sequence[float] | None = None) -> None:
        if not isinstance(N, int | Integral) or N < 1:
            raise wrong("N", N, "the number of all clients")
        given = positive([1.0] * N if weights is None else weights)
        if given is None:
            raise wrong("weights", weights, "a list of positive numbers")
        if len(given) != N:
            raise BadArgument("N", f"{{N}} is {N} for {len(given)} weights; pass one per client.")
        self.N, self.p = N, [weight / fsum(given) for weight in given]
        self.c = zeros(model)
        like = trainable(model)
        self.x = {name: p.detach().to(self.c[name], copy=True) for name, p in like.items()}
        self._dtypes = {name: p.dtype for name, p in like.items()}
        self._accepted = [START] * N
        self._asked: dict[int, str] = {}  # the tag of the last request of this round
        self._replies: dict[int, tuple[Named, Named]] = {}

    def send(self, i: int) -> tuple[Named, Named, str]:
        """Return x, c and `accepted` for client i, which passes it to `Controls.begin`.

        A client that is asked again before it has replied answers the last request.
        """
        i = self._checked(i)
        self._asked[i] = token_hex(8)
        x = {name: value.to(self._dtypes[name], copy=True) for name, value in self.x.items()}
        return x, dict(self.c), f"{self._accepted[i]}/{self._asked[i]}"

    def receive(self, i: int, dx: Mapping[str, Tensor], dc: Mapping[str, Tensor], tag: str) -> None:
        """Take the reply of client i to the last `send(i)` of this round.

        i: the number of the client, from 0.
        dx: the client's parameters after its steps minus x.
        dc: what `Controls.end` returned.
        tag: `Controls.tag` after `end`.
        """
        i = self._checked(i)
        if i not in self._asked or self._asked[i] != tag:
            raise BadArgument(
                "tag",
                f"the reply of client {i} is not to the last send({i}) of this round; drop it if "
                "it is late, otherwise pass accepted= to begin() and the {tag} after end().",
            )
        for what, given in ((f"dx of client {i}", dx), (f"dc of client {i}", dc)):
            check_names(what, given, self.x)
            if not finite(given):
                raise ValueError(f"{what} is not finite; drop it, and try a smaller step size.")
        self._replies[i] = (
            {name: dx[name].detach().to(value) for name, value in self.x.items()},
            {name: dc[name].detach().to(value) for name, value in self.c.items()},
        )

    @torch.no_grad()
    def step(self, eta_g: float = 1.0) -> None:
        """End the round: change x and c by its replies; without any they stay as they are.

        eta_g: the server's step size; default 1.
        """
        if not (isinstance(eta_g, Real) and 0 <= eta_g < inf):
            raise wrong("eta_g", eta_g, "a number that is zero or positive")
        # In the order of the clients, so that the bits do not depend on which one was faster.
        replies = sorted(self._replies.items())
        share = fsum(self.p[i] for i, _ in replies) or 1.0
        for i, (dx, dc) in replies:
            self.x = {n: x + eta_g * self.p[i] / share * dx[n] for n, x in self.x.items()}
            # Not divided by their share: c is the sum over all N clients.
            self.c = {n: c + self.p[i] * dc[n] for n, c in self.c.items()}
            self._accepted[i] = self._asked[i]
        self._asked, self._replies = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return x, c and the accepted tags; save it after `step()`, before the next `send()`."""
        return {"x": dict(self.x), "c": dict(self.c), "accepted": list(self._accepted)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; requests without a reply are dropped."""
        check_state("ServerControls", state, {"x", "c", "accepted"})
        for part in ("x", "c"):
            check_names(f"{part} of the state", state[part], self.x)
        if len(state["accepted"]) != self.N:
            raise ValueError(f"the state is of {len(state['accepted'])} clients; pass that N.")
        self.x, self.c = dict(state["x"]), dict(state["c"])
        self._accepted = list(state["accepted"])
        self._asked, self._replies = {}, {}

    def _checked(self, i: int) -> int:
        """Return the number of a client that has not replied in this round."""
        try:
            number = index(i)  # also of the tensors that torch.randperm gives
        except TypeError:
            number = -1
        if not 0 <= number < self.N:
            raise wrong("i", i, f"a number from 0 to {self.N - 1}")
        if number in self._replies:
            raise ValueError(
                f"client {number} has replied in this round; call step() to end the round."
            )
        return number


def positive(weights: Any) -> list[float] | None:
    """Return weights as floats; None if they are not all positive numbers."""
    try:
        found = [] if isinstance(weights, Mapping) else [float(weight) for weight in weights]
    except (TypeError, ValueError):
        return None
    return found if found and all(isfinite(w) and w > 0 for w in found) else None
