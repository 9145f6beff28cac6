"""What is known after a few seconds: sizes, how data differ, and how far gradients are apart."""

from dataclasses import dataclass

from trimtab.core import Vector
from trimtab.diagnosis.differences import Differences
from trimtab.diagnosis.intervals import Draws, Estimate
from trimtab.diagnosis.measure import Gradients


@dataclass(frozen=True)
class Early:
    """What the first facts rest on, for the stages after them."""

    differences: Differences
    draws: Draws  # what else might have been drawn
    x: Vector | None  # where a few rounds lead; None: there was no time
    gradients: Gradients | None  # the gradients there


@dataclass(frozen=True)
class FirstFacts:
    """The first page of a diagnosis, which later stages sharpen."""

    N: int
    d: int
    S: int
    sizes: tuple[int, ...]  # samples of each client that is measured; empty if there are none
    differences: Differences
    points: tuple[tuple[Estimate, float], ...]  # zeta and |grad f|, where they were measured
    seconds: float

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is known so far, one sentence each."""
        shape = f"{self.N} clients, {self.S} a round, d = {self.d}"
        if self.sizes:
            low, high = min(self.sizes), max(self.sizes)
            shape += f", {low} to {high} samples each" if low < high else f", {low} samples each"
        apart = [
            f"How far the clients' gradients are apart ({zeta.at}): zeta = {zeta}, where "
            f"|grad f| = {size:.3g}."
            for zeta, size in self.points
        ]
        return (f"{shape}.", self.differences.sentence, *apart)

    def __str__(self) -> str:
        return "\n".join(
            (f"After {self.seconds:.0f} seconds:", *(f"  {s}" for s in self.sentences))
        )
