"""How sites are taken in, at the start and when one joins: what each of them has."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import sleep

import torch

from trimtab.federation.protocol.requests import Inquiry
from trimtab.federation.storage.ledger import Member, Standing

log = logging.getLogger("trimtab.federation.protocol")

_OTHER_MODEL = "has a model of d="
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Hello:
    """What a site says of itself: its samples, and what it computes in."""

    n: int
    tested: int
    dtype: torch.dtype


def hello(standing: Standing, inquiry: Inquiry, members: Sequence[Member]) -> dict[str, Hello]:
    """Ask sites what they have; one that cannot take part sits out."""
    answers, d = {}, standing.server.x.numel()
    for member, reply in inquiry.replies(standing, "hello", members):
        dtype = _DTYPES.get(reply.dtype)
        if reply.d != d:
            inquiry.turn_away(member.name, f"it {_OTHER_MODEL}{reply.d}, the server one of d={d}")
        elif dtype is None or reply.n < 1:
            inquiry.turn_away(
                member.name,
                f"it has n={reply.n} samples in {reply.dtype or 'no dtype'}; it needs some, "
                f"in {', '.join(_DTYPES)}",
            )
        else:
            answers[member.name] = Hello(reply.n, reply.tested, dtype)
    return answers


def enrol(first: Standing, inquire: Callable[[], Inquiry], needed: int, pause: float) -> Standing:
    """Ask all sites until enough have answered; return the standing from which rounds start."""
    answers: dict[str, Hello] = {}
    while True:
        unknown = [member for member in first.members if member.name not in answers]
        inquiry = inquire()
        answers |= hello(first, inquiry, unknown)
        reasons = [inquiry.absent.get(member.name, "") for member in first.members]
        if all(_OTHER_MODEL in why for why in reasons):
            raise ValueError(f"no site has the server's model ({reasons[0]}); give all one file.")
        agreeing = _agreeing(answers, first.server.x.dtype)
        if len(agreeing) >= needed:
            return enrolled(first, agreeing)
        missing = sorted({m.name for m in first.members} - agreeing.keys())
        log.warning("%d of %d sites are there; missing: %s", len(agreeing), needed, missing)
        sleep(pause)


def enrolled(standing: Standing, answers: dict[str, Hello]) -> Standing:
    """Return the first standing, with x in the dtype of the sites and the weights by the rule."""
    members = tuple(
        replace(m, tested=answers[m.name].tested) if m.name in answers else m
        for m in standing.members
    )
    total = sum(answer.n for answer in answers.values())
    for name, answer in answers.items():
        log.info("site %s enrols with %d samples, %d to test on", name, answer.n, answer.tested)
        if standing.weights == "samples" and len(answers) > 1 and answer.n > total / 2:
            share = 100 * answer.n / total
            log.warning("site %s has %.3g %% of the weight: its updates decide", name, share)
    if standing.weights == "samples":
        members = tuple(replace(m, weight=float(answers[m.name].n)) for m in members)
    x = standing.server.x.detach().to(next(answer.dtype for answer in answers.values()))
    return replace(standing, server=standing.algorithm.init_server(x), members=members)


def _agreeing(answers: dict[str, Hello], usual: torch.dtype) -> dict[str, Hello]:
    """Return the answers in the dtype of most sites; of several, in that of the server's x."""
    counts = Counter(answer.dtype for answer in answers.values())
    if not counts:
        return {}
    dtype = max(counts, key=lambda dtype: (counts[dtype], dtype == usual, str(dtype)))
    for name, answer in answers.items():
        if answer.dtype != dtype:
            log.warning("site %s sits out: it computes in %s, not in %s", name, answer.dtype, dtype)
    return {name: answer for name, answer in answers.items() if answer.dtype == dtype}
