"""Uploads that are out of all proportion to those of the other sites."""

import logging
from collections.abc import Collection, Mapping, Sequence
from statistics import median

log = logging.getLogger("trimtab.federation.protocol")

ENOUGH = 3  # with >= 3 sites there is something to compare with
WARN = 10.0  # a norm of > 10 x the median is logged
REFUSE = 100.0  # a norm of > 100 x the median is not taken
ROUNDING = 1e-6  # norms <= 1e-6 max(1, |x|) are rounding, as near the optimum


def outliers(
    norms: Mapping[str, Sequence[float]], scale: float, unsettled: Collection[str]
) -> dict[str, str]:
    """Return who sits out for the norms of its arrays, and why; log who is near that.

    scale is max(1, |x|). A site that is new, or was away while the others went on, may rightly move
    much further than they do: it is unsettled, and compared with the scale of x instead.

    >>> outliers({"a": [1.0], "b": [2.0], "c": [900.0]}, 1.0, ())
    {'c': 'array 0 has norm 900, 450 times that of most sites'}
    """
    refused: dict[str, str] = {}
    if len(norms) < ENOUGH:
        return refused
    for place, usual in enumerate(map(median, zip(*norms.values(), strict=True))):
        for name, own in norms.items():
            most = max(usual, scale if name in unsettled else ROUNDING * scale)
            said = f"array {place} has norm {own[place]:.3g}, {own[place] / most:.3g} times "
            said += "that of most sites" if most == usual else "what can be expected"
            if own[place] > REFUSE * most:
                refused.setdefault(name, said)
            elif own[place] > WARN * most:
                log.warning("site %s: %s", name, said)
    return refused
