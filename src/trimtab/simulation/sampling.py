"""Who takes part in a round: how many, which of them, and whose replies get lost.

All of it is a function of (seed, round), so that a resumed run asks the same clients.
"""

from collections.abc import Sequence
from operator import index

import torch

from trimtab.core import plain_number
from trimtab.core.streams import COHORT, LOST, stream


def cohort_size(S: int | float | None, N: int) -> int:
    """Return S as a number of clients; a float is a fraction of N.

    >>> cohort_size(0.2, 100), cohort_size(5, 100), cohort_size(None, 100)
    (20, 5, 100)
    """
    if S is None:
        return N
    S = plain_number(S)
    if isinstance(S, float):
        if not 0 < S <= 1:
            raise ValueError(f"S={S}: as a fraction of the clients, pass 0 < S <= 1.")
        return max(1, round(S * N))
    if isinstance(S, bool) or not hasattr(S, "__index__") or index(S) < 1:
        raise ValueError(f"S={S!r}: pass a whole number S >= 1, or a fraction of the clients.")
    S = index(S)
    if S > N:
        raise ValueError(f"S={S} clients asked for, but the problem has N={N}; pass S <= {N}.")
    return S


def checked_cohort(cohort: Sequence[int], N: int) -> list[int]:
    """Return an explicit cohort in the order of the clients' numbers, or refuse it."""
    clients = sorted(int(i) for i in cohort)
    if not clients or len(set(clients)) != len(clients) or clients[0] < 0 or clients[-1] >= N:
        raise ValueError(f"cohort {list(cohort)}: pass distinct clients from 0 to {N - 1}.")
    return clients


def sampled(N: int, S: int, seed: int, r: int) -> list[int]:
    """Draw S of N clients without replacement, from (seed, r).

    Floyd's algorithm: time and memory grow with S only.
    """
    if S == N:
        return list(range(N))
    u = torch.rand(S, generator=stream(seed, COHORT, r), dtype=torch.float64).tolist()
    chosen: set[int] = set()
    for j, u_j in zip(range(N - S, N), u, strict=True):
        t = int(u_j * (j + 1))
        chosen.add(j if t in chosen else t)
    return sorted(chosen)


def answering(asked: list[int], lost: float, seed: int, r: int, exchange: int) -> list[int]:
    """Return those whose replies to an exchange arrive, where a share of them is lost."""
    if not lost:
        return asked
    draw = stream(seed, LOST, r, exchange)
    u = torch.rand(len(asked), generator=draw, dtype=torch.float64).tolist()
    return [i for i, u_i in zip(asked, u, strict=True) if u_i >= lost]
