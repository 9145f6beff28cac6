"""The sentences of section 7, judged over the cells."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from trimtab.reproduce.raced_cells import NAMES
from trimtab.reproduce.reproduction import Claim, Records
from trimtab.reproduce.rounds_to_target import Need, judged, rounds, setting
from trimtab.reproduce.scaffold2020.table3.cells import settings


def claims(records: Records) -> list[Claim]:
    """Return the sentences of section 7, judged over the cells."""
    made = settings(any(setting(r)["N"] != 100 for r in records.values()))
    epochs = sorted({s.epochs for s in made})
    similarities = sorted({s.similarity for s in made})
    mixed = [s for s in similarities if s > 0]

    def row(need: Need, name: str, s: float) -> list[float]:
        return [need(algorithm=name, epochs=e, similarity=s) for e in epochs]

    def below_sgd(need: Need) -> bool:
        sgd = {s: need(algorithm="sgd", epochs=1, similarity=s) for s in similarities}
        return all(n <= sgd[s] for s in similarities for n in row(need, "scaffold", s))

    def beats(need: Need) -> bool:
        pairs = zip(row(need, "scaffold", 0), row(need, "fedavg", 0), strict=True)
        return all(ours < theirs for ours, theirs in pairs)

    def drifts(need: Need) -> bool:
        fedavg, scaffold = row(need, "fedavg", 0), row(need, "scaffold", 0)
        return fedavg[-1] > fedavg[0] and scaffold[-1] <= 1.1 * max(scaffold[:-1])

    def gain(need: Need) -> bool:
        return all(
            a >= b
            for name in ("scaffold", "fedavg")
            for s in mixed
            for a, b in pairwise(row(need, name, s))
        )

    def steady(need: Need) -> bool:
        found = [need(algorithm="sgd", epochs=1, similarity=s) for s in similarities]
        return max(found) <= 1.313 * min(found)  # 416 to 317

    def slower(need: Need) -> bool:
        pairs = [
            pair
            for s in similarities
            for pair in zip(row(need, "fedavg", s), row(need, "fedprox", s), strict=True)
        ]
        return all(fedavg < fedprox or fedavg == inf for fedavg, fedprox in pairs)

    def numbers(*names: str, only: Sequence[float] = ()) -> str:
        parts = []
        for name in names:
            for s in only or similarities:
                found = [
                    rounds(records, algorithm=name, epochs=e, similarity=s)
                    for e in ([1] if name == "sgd" else epochs)
                ]
                text = ", ".join("?" if r is None else f"{r:g}" for r in found)
                parts.append(f"{NAMES[name]} at {s:g} %: {text}")
        return "; ".join(parts)

    return [
        judged(records, sentence, judge, text)
        for sentence, judge, text in (
            (
                "SCAFFOLD never needs more rounds than SGD.",
                below_sgd,
                numbers("sgd", "scaffold"),
            ),
            (
                "SCAFFOLD beats FedAvg at 0 % similarity for every number of epochs.",
                beats,
                numbers("scaffold", "fedavg", only=(0,)),
            ),
            (
                "FedAvg at 0 % loses as epochs grow, while SCAFFOLD flattens.",
                drifts,
                numbers("scaffold", "fedavg", only=(0,)),
            ),
            (
                "Both gain monotonically from epochs where clients are similar.",
                gain,
                numbers("scaffold", "fedavg", only=mixed),
            ),
            (
                "SGD does not depend on the similarity (within 31 %, the published spread).",
                steady,
                numbers("sgd"),
            ),
            (
                "FedProx (mu = 1) is slower than FedAvg everywhere.",
                slower,
                numbers("fedavg", "fedprox"),
            ),
        )
    ]
