"""Which clients take part in a round: the available ones, the sampled ones, the lost replies.

Each is a function of (seed, round), so a resumed run samples the same clients.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from operator import index
from pathlib import Path

import torch

from trimtab.core import plain_number
from trimtab.core.streams import COHORT, LOST, stream
from trimtab.errors import BadArgument

Available = Callable[[int], Iterable[int]] | str | Path | None
"""The available clients: a function of the round, or the path of a CSV. None: always all."""


def cohort_size(S: int | float | None, N: int) -> int:
    """Return S as a number of clients; a float is a fraction of N.

    >>> cohort_size(0.2, 100), cohort_size(5, 100), cohort_size(None, 100)
    (20, 5, 100)
    """
    if S is None:
        return N
    S = plain_number(S)
    # 1.0 is a fraction, all clients; 1 is one client.
    if isinstance(S, float):
        if not 0 < S <= 1:
            sentence = "{S:{_given}}: as a fraction of the clients, pass 0 < S <= 1."
            raise BadArgument("S", sentence, _given=S)
        return max(1, round(S * N))
    if isinstance(S, bool) or not hasattr(S, "__index__") or index(S) < 1:
        sentence = "{S:{_given}}: pass a whole number S >= 1, or a fraction of the clients."
        raise BadArgument("S", sentence, _given=repr(S))
    S = index(S)
    if S > N:
        sentence = "{S:{_given}} clients asked for, but the problem has N={N}; pass S <= {N}."
        raise BadArgument("S", sentence, _given=S, N=N)
    return S


def checked_cohort(cohort: Sequence[int], N: int) -> list[int]:
    """Return an explicit cohort, sorted. Raise ValueError unless its clients are distinct."""
    if isinstance(cohort, str) or not hasattr(cohort, "__iter__"):
        raise ValueError(f"cohort {cohort!r}: pass a list of clients for each round.")
    whole = all(hasattr(i, "__index__") and not isinstance(i, bool) for i in cohort)
    # Sorted, because executors add up replies in the order of the numbers.
    clients = sorted(index(i) for i in cohort) if whole else []
    if not clients or len(set(clients)) != len(clients) or clients[0] < 0 or clients[-1] >= N:
        raise ValueError(f"cohort {list(cohort)}: pass distinct clients from 0 to {N - 1}.")
    return clients


def sampled(N: int, S: int, seed: int, r: int) -> list[int]:
    """Draw S of N clients without replacement, from (seed, r).

    Floyd's algorithm: time and memory grow with S only, and N may be millions.
    """
    if S == N:
        return list(range(N))
    # One call for all draws; float32 has 24 bits, too few for tens of millions of clients.
    u = torch.rand(S, generator=stream(seed, COHORT, r), dtype=torch.float64).tolist()
    chosen: set[int] = set()
    for j, u_j in zip(range(N - S, N), u, strict=True):
        t = int(u_j * (j + 1))
        chosen.add(j if t in chosen else t)
    return sorted(chosen)


FUNCTION = "a function"  # the id of every function: two of them cannot be compared


@dataclass(frozen=True)
class Availability:
    """The available clients by round, and an id by which a checkpoint distinguishes tables."""

    there: Callable[[int], Iterable[int]]
    availability_id: str

    def sampled(self, N: int, S: int, seed: int, r: int) -> list[int]:
        """Draw S of the clients available in round r, or take all of them if they are fewer."""
        given = self.there(r)
        try:
            there = sorted({index(i) for i in given})
        except TypeError:
            there = [-1]  # Numbers that are not whole get the error below.
        if there and not 0 <= there[0] <= there[-1] < N:
            raise ValueError(
                f"available({r}) returned {given!r}; return the clients from 0 to {N - 1} that are "
                "available in that round."
            )
        return [there[j] for j in sampled(len(there), min(S, len(there)), seed, r)]


def availability(given: Available, N: int) -> Availability | None:
    """Return the availability that a function of the round or the path of a CSV describes."""
    if given is None:
        return None
    if isinstance(given, str | Path):
        return _of_table(sorted(set(_rows(Path(given), N))))
    if not callable(given):
        raise ValueError(
            f"available={given!r}; pass a function of the round that returns the available "
            "clients, or the path of a CSV with the columns client,from,to."
        )
    return Availability(given, FUNCTION)


_Row = tuple[int, int, int | float]
"""A client, and the first and the last round in which it is available."""


def _of_table(rows: list[_Row]) -> Availability:
    """Return the availability of a table. Its id depends on the rounds alone, not on their rows."""
    spans: dict[int, list[_Row]] = {}
    for row in rows:
        spans.setdefault(row[0], []).append(row)
    merged = [span for own in spans.values() for span in _merged(own)]
    availability_id = sha256(repr(merged).encode()).hexdigest()[:16]
    return Availability(
        lambda r: [i for i, first, last in merged if first <= r <= last], availability_id
    )


def _merged(rows: list[_Row]) -> list[_Row]:
    """Join the spans of one client that overlap or touch."""
    spans = [rows[0]]
    for client, first, last in rows[1:]:
        _, begun, until = spans[-1]
        # Rounds 1 to 3 and 4 to 6 are one span: both ends are inclusive.
        if first <= until + 1:
            spans[-1] = (client, begun, max(last, until))
        else:
            spans.append((client, first, last))
    return spans


COLUMNS = ("client", "from", "to")


def _rows(path: Path, N: int) -> Iterator[_Row]:
    """Read a table of availability; both rounds are inclusive, an empty `to` means no end."""
    try:
        # Excel writes a byte-order mark, which utf-8-sig skips.
        lines = [*csv.reader(path.read_text(encoding="utf-8-sig").splitlines())]
    except FileNotFoundError:
        raise BadArgument(
            "available", "{_path}: there is no such file; pass another {available}.", _path=path
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); write a CSV of {','.join(COLUMNS)}."
        ) from None
    header = [name.strip() for name in lines[0]] if lines else []
    if not set(COLUMNS) <= set(header):
        where = f"line 1 of {path} is {','.join(header)!r}" if header else f"{path} is empty"
        raise ValueError(f"{where}; begin it with the header {','.join(COLUMNS)}.")
    for number, line in enumerate(lines[1:], 2):
        if any(cell.strip() for cell in line):
            yield _row(f"line {number} of {path}", header, line, N)


def _row(where: str, header: list[str], line: list[str], N: int) -> _Row:
    if len(line) != len(header):
        raise ValueError(f"{where} has {len(line)} columns, its header {len(header)}; fix it.")
    cells = {name: cell.strip() for name, cell in zip(header, line, strict=True)}
    numbers = [cells[name] for name in COLUMNS if name != "to" or cells[name]]
    wrong = [cell for cell in numbers if not cell.removeprefix("-").isdecimal()]
    if wrong:
        raise ValueError(f"{where} has {wrong[0]!r}; write a whole number.")
    client, first, *rest = map(int, numbers)
    last = rest[0] if rest else inf
    if not 0 <= client < N:
        raise ValueError(f"{where} has client {client}; write one from 0 to {N - 1}.")
    if first < 1:
        raise ValueError(f"{where} has rounds from {first}, but they count from 1; write 1.")
    if last < first:
        raise ValueError(f"{where} goes from {first} to {last}; write the earlier round first.")
    return client, first, last


def responding_clients(
    clients: list[int], lost: float, seed: int, r: int, exchange: int
) -> list[int]:
    """Return the clients whose replies to an exchange arrive; a share of them is lost."""
    if not lost:
        return clients
    draw = stream(seed, LOST, r, exchange)
    u = torch.rand(len(clients), generator=draw, dtype=torch.float64).tolist()
    return [i for i, u_i in zip(clients, u, strict=True) if u_i >= lost]
