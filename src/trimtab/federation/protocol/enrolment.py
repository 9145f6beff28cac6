"""How sites are taken in, at the start and when one joins: what each of them has."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import sleep

import torch

from trimtab.federation.protocol.inquiry import Inquiry
from trimtab.federation.storage.ledger import Member, Standing

log = logging.getLogger("trimtab.federation.protocol")

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Hello:
    """What a site says of itself: its samples, and what it computes in."""

    n: int
    tested: int
    dtype: torch.dtype


def hello(standing: Standing, inquiry: Inquiry, members: Sequence[Member]) -> dict[str, Hello]:
    """Ask sites what they have; refuse one that cannot take part."""
    answers, d = {}, standing.server.x.numel()
    for member, reply in inquiry.replies(standing, "hello", members):
        dtype = _DTYPES.get(reply.dtype)
        if reply.d != d:
            raise ValueError(
                f"site {member.name!r} has a model of d={reply.d}, the server one of d={d}; "
                "give all the same problem file."
            )
        if dtype is None or reply.n < 1:
            raise ValueError(
                f"site {member.name!r} has n={reply.n} samples in {reply.dtype or 'no dtype'}; it "
                f"needs at least one, in {', '.join(_DTYPES)}."
            )
        answers[member.name] = Hello(reply.n, reply.tested, dtype)
    return answers


def enrol(first: Standing, inquire: Callable[[], Inquiry], needed: int, pause: float) -> Standing:
    """Ask all sites until enough have answered; return the standing from which rounds start."""
    answers: dict[str, Hello] = {}
    while len(answers) < needed:
        unknown = [member for member in first.members if member.name not in answers]
        answers |= hello(first, inquire(), unknown)
        if len(answers) < needed:
            missing = sorted({m.name for m in first.members} - answers.keys())
            log.warning("%d of %d sites are there; missing: %s", len(answers), needed, missing)
            sleep(pause)
    return enrolled(first, answers)


def enrolled(standing: Standing, answers: dict[str, Hello]) -> Standing:
    """Return the first standing, with x in the dtype of the sites and the weights by the rule."""
    dtypes = {answer.dtype for answer in answers.values()}
    if len(dtypes) > 1:
        shown = ", ".join(f"{name} in {answer.dtype}" for name, answer in answers.items())
        raise ValueError(f"the sites compute in several dtypes ({shown}); give all the same.")
    members = tuple(
        replace(m, tested=answers[m.name].tested) if m.name in answers else m
        for m in standing.members
    )
    for name, answer in answers.items():
        log.info("site %s enrols with %d samples, %d to test on", name, answer.n, answer.tested)
    if standing.weights == "samples":
        members = tuple(replace(m, weight=float(answers[m.name].n)) for m in members)
    x = standing.server.x.detach().to(dtypes.pop())
    return replace(standing, server=standing.algorithm.init_server(x), members=members)
