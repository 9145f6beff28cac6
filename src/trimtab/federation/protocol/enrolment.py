"""The roll of the sites at the start, and of one that joins: what each of them has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from trimtab.federation.protocol.inquiry import Inquiry
from trimtab.federation.storage.ledger import Member, Standing

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Hello:
    """What a site says of itself: its training samples, and what it computes in."""

    n: int
    dtype: torch.dtype


def hello(standing: Standing, inquiry: Inquiry, members: Sequence[Member]) -> dict[str, Hello]:
    """Ask sites what they have; refuse one that cannot take part."""
    found, d = {}, standing.server.x.numel()
    for member, reply in inquiry.replies(standing, "hello", members):
        n, dtype = reply["n"], _DTYPES.get(str(reply["dtype"]))
        if reply["d"] != d:
            raise ValueError(
                f"site {member.name!r} has a model of d={reply['d']}, the server one of d={d}; "
                "give all the same problem file."
            )
        if dtype is None or not isinstance(n, int) or n < 1:
            raise ValueError(
                f"site {member.name!r} has n={n!r} samples in {reply['dtype']}; it needs at least "
                f"one, in {', '.join(_DTYPES)}."
            )
        found[member.name] = Hello(n, dtype)
    return found


def enrolled(standing: Standing, found: dict[str, Hello]) -> Standing:
    """Return the first standing, with x in the dtype of the sites and the weights by the rule."""
    dtypes = {said.dtype for said in found.values()}
    if len(dtypes) > 1:
        shown = ", ".join(f"{name} in {said.dtype}" for name, said in found.items())
        raise ValueError(f"the sites compute in several dtypes ({shown}); give all the same.")
    members = standing.members
    if standing.weights == "samples":
        members = tuple(replace(m, weight=float(found[m.name].n)) for m in members)
    x = standing.server.x.detach().to(dtypes.pop())
    return replace(standing, server=standing.algorithm.init_server(x), members=members)
