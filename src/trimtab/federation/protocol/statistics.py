"""BatchNorm in a federation: one exchange more, after the last round.

The sites send the moments of their layers at the last x: of each channel a mean and a variance, and
how many values they are of. The server pools them by p_i, as a simulation does, and the sites
measure x once more with the pooled statistics, which the saved model contains.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.linalg import vector_norm

from trimtab.core import Vector, nbytes
from trimtab.federation.message import Message, check_arrays
from trimtab.federation.protocol.attempt import Inquiry
from trimtab.federation.protocol.checks import MOST_SAMPLES, NotBelieved, outliers
from trimtab.federation.storage.files import writing
from trimtab.federation.storage.ledger import Standing, read, write
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.batch_norm import Found, Moments, buffers_of, pooled
from trimtab.problems.supervised.problem import Supervised

log = logging.getLogger("trimtab.federation.protocol")

FILE = "statistics.safetensors"


@dataclass(frozen=True)
class Layers:
    """The layers of BatchNorm and their numbers of channels, in the order of the module."""

    channels: Mapping[str, int]

    @classmethod
    def of(cls, problem: Problem) -> "Layers":
        """Return those of a problem; most have none."""
        norms = problem.model.norms if isinstance(problem, Supervised) else {}
        return cls({name: layer.num_features for name, layer in norms.items()})

    @property
    def names(self) -> list[str]:
        """The names of the statistics that are sent with x."""
        ends = ("running_mean", "running_var")
        return [f"{name}.{end}".lstrip(".") for name in self.channels for end in ends]

    def like(self) -> list[Tensor]:
        """Return tensors of the shapes of statistics: a mean and a variance for each layer."""
        each = [torch.empty(C, dtype=torch.float64) for C in self.channels.values()]
        return [tensor for pair in zip(each, each, strict=True) for tensor in pair]

    # -- at a site

    def sent(self, problem: Supervised, x: Vector, index: int) -> dict[str, Tensor]:
        """Return the moments of a site at x as arrays: the counts, then mean and variance."""
        found = problem.moments(x, index)
        moments = [found.get(name, _nothing(C)) for name, C in self.channels.items()]
        counts = torch.tensor([float(own.count) for own in moments], dtype=torch.float64)
        parts = [part for own in moments for part in (own.mean, own.variance)]
        return {str(place): part for place, part in enumerate([counts, *parts])}

    def given(self, problem: Problem, arrays: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Evaluate by the statistics that the server sends beside x, if it does."""
        if len(arrays) == 1 or not isinstance(problem, Supervised):
            return nullcontext()
        return problem.normalised_by({n: arrays[str(j)] for j, n in enumerate(self.names, 1)})

    # -- at the server

    def gather(self, inquiry: Inquiry, standing: Standing, least: int) -> dict[str, Tensor] | None:
        """Return the statistics of all sites at the last x; None if fewer than `least` answer."""
        if not self.channels:
            return {}
        arrays, found = {"0": standing.server.x}, dict[str, Found]()
        norms = dict[str, dict[str, float]]()
        most = nbytes((self._counts(), *self.like()))
        for member, reply in inquiry.replies(
            standing, "statistics", standing.members, arrays, most=most
        ):
            try:
                found[member.name] = self._read(member.name, reply.arrays)
            except ValueError as error:
                inquiry.turn_away(member.name, str(error))
            else:
                sizes = {place: float(vector_norm(part)) for place, part in reply.arrays.items()}
                norms[member.name] = {place: size for place, size in sizes.items() if place != "0"}
        for name, why in outliers(norms, 1.0, {}).items():
            del found[name]
            inquiry.turn_away(name, f"of its statistics, {why}")
        if len(found) < least:
            log.warning("%d sites sent statistics, fewer than min_sites=%d", len(found), least)
            return None
        made = buffers_of(pooled((standing.p[name], own) for name, own in found.items()))
        return {name: made[name] for name in self.names if name in made}

    def _counts(self) -> Tensor:
        return torch.empty(len(self.channels), dtype=torch.float64)

    def _read(self, site: str, arrays: dict[str, Tensor]) -> Found:
        check_arrays(f"site {site}", arrays, [self._counts(), *self.like()])
        found, parts = dict[str, Moments](), [arrays[str(place)] for place in range(len(arrays))]
        for j, name in enumerate(self.channels):
            n, mean, variance = float(parts[0][j]), *parts[1 + 2 * j : 3 + 2 * j]
            if not (0 <= n <= MOST_SAMPLES and n == int(n)) or bool((variance < 0).any()):
                raise NotBelieved(f"its statistics of layer {name!r} cannot be")
            if n:
                found[name] = Moments(n, int(n), mean, variance)
        return found


def _nothing(channels: int) -> Moments:
    """Return the moments of a layer that this site's data do not reach."""
    return Moments(0, 0, torch.zeros(channels).double(), torch.zeros(channels).double())


def save(folder: Path, r: int, statistics: dict[str, Tensor]) -> None:
    """Keep the statistics of x after round r beside the checkpoint."""
    if not statistics:
        return
    with writing(folder):
        write(folder / FILE, Message({"r": r}, statistics), "server:statistics")


def saved(folder: Path, problem: Problem, r: int) -> AbstractContextManager[None]:
    """Save a model by the statistics of x after round r; raise ValueError if there are none."""
    if not isinstance(problem, Supervised) or not problem.model.norms:
        return nullcontext()
    try:
        found = read(folder / FILE)
    except FileNotFoundError:
        found = Message({"r": None})
    if found["r"] != r:
        raise ValueError(
            f"{folder} has no statistics of BatchNorm after round {r}, which the sites send after "
            f"the last round; resume it with -R {r}, which ends it there."
        )
    return problem.normalised_by(found.arrays)
