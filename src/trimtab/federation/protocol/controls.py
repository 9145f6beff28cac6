"""Sites that come, go or forget: what each has, and the invariant c = sum p_i c_i over all of them.

All sums are in float64, whatever the model is. A state that a site shows counts only if it has the
digest that the server accepted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from time import sleep

import torch
from torch import Tensor

from trimtab.commit import START, Accepted, digest
from trimtab.core import State, leaves
from trimtab.core.tree import control, with_control
from trimtab.federation.events import AuditDone
from trimtab.federation.message import arrays_of, check_arrays, filled
from trimtab.federation.protocol.attempt import Inquiry
from trimtab.federation.protocol.checks import outliers
from trimtab.federation.storage.ledger import (
    Ledger,
    Member,
    Standing,
    kept_rounds,
    read_standing,
)

log = logging.getLogger("trimtab.federation.protocol")

_OTHER_MODEL = "has a model of d="
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_ABSURD = 1e6  # a c_i of norm > 1e6 max(1, |c|, |x|) is not taken


@dataclass
class ControlSum:
    """The sum of p_i c_i over the sites that showed their c_i."""

    total: Tensor
    norms: dict[str, float]  # |c_i| by name


def has_controls(standing: Standing) -> bool:
    """Return whether the algorithm keeps a c on the server and a c_i at each client."""
    c, c_i = getattr(standing.server, "c", None), control(_first(standing))
    return isinstance(c, Tensor) and isinstance(c_i, Tensor) and c.shape == c_i.shape


def audit(standing: Standing, inquiry: Inquiry, peak: float) -> AuditDone:
    """Ask every site for the c_i that the server counts on; peak is the largest |c| there was.

    Rounding leaves a deviation of some units in the last place of what the controls once were: half
    of the digits are let go for it. A state that is wrong differs by as much as controls do.
    """
    if not has_controls(standing):
        raise ValueError(f"{standing.algorithm} keeps no control variates; there is no audit.")
    c = standing.server.c
    shown = sum_controls(standing, inquiry, standing.members)
    missing = {
        m.name: inquiry.absent[m.name] for m in standing.members if m.name not in shown.norms
    }
    off = nan if missing else float((c.double() - shown.total).norm())
    largest = max(shown.norms.values(), default=0.0)
    tolerance = torch.finfo(c.dtype).eps ** 0.5 * max(largest, peak, float(c.norm()))
    norms = {name: {"0": norm} for name, norm in shown.norms.items()}
    suspects = {} if off <= tolerance else outliers(norms, max(1.0, float(c.norm())), {})
    return AuditDone(off, largest, missing, off <= tolerance, tolerance, suspects)


def sum_controls(standing: Standing, inquiry: Inquiry, members: Sequence[Member]) -> ControlSum:
    """Add the p_i c_i of some sites, one at a time."""
    first, p = _first(standing), standing.p
    limit = _ABSURD * max(1.0, float(standing.server.c.norm()), float(standing.server.x.norm()))
    shown = ControlSum(torch.zeros_like(control(first), dtype=torch.float64), {})
    for member, reply in inquiry.replies(standing, "control", members):
        c_i = control(first)
        other = digest(reply.arrays) != member.accepted.digest and not reply.start
        if other or reply.start != (member.accepted.tag == START):
            inquiry.turn_away(member.name, "it shows another state than the accepted one")
            continue
        if not reply.start:
            try:
                check_arrays("its state", reply.arrays, leaves(first), limit)
            except ValueError as error:
                inquiry.turn_away(member.name, str(error).rstrip("."))
                continue
            c_i = control(filled(first, reply.arrays))
        shown.total += p[member.name] * c_i.double()
        shown.norms[member.name] = float(c_i.double().norm())
    return shown


def restored(standing: Standing, inquiry: Inquiry, lost: set[str]) -> Standing | None:
    """Give the sites that lost their c_i one that makes the invariant hold, and accept it.

    c_i = (c - sum of p_j c_j over the others) / (sum of p_i over the lost): one site gets its own
    back up to rounding, several share what c lacks. None if a site does not answer that must.
    """
    others = [member for member in standing.members if member.name not in lost]
    shown = sum_controls(standing, inquiry, others)
    if len(shown.norms) < len(others):
        return None
    share, c = sum(standing.p[name] for name in lost), standing.server.c
    c_i = ((c.double() - shown.total) / share).to(c.dtype)
    members = [member for member in standing.members if member.name in lost]
    state = with_control(_first(standing), c_i)  # What stages remember starts again.
    given = Accepted(inquiry.tag, digest(arrays_of(state)))
    replies = inquiry.replies(standing, "restore", members, arrays_of(state))
    names = [member.name for member, _ in replies]
    accepted = standing.accepting(dict.fromkeys(names, given))
    return replace(standing, members=accepted) if names else None


def joined(standing: Standing, name: str, weight: float) -> Standing:
    """Return the standing with one more site: c <- (W c + w c_new) / (W + w), c_new the first."""
    if any(member.name == name for member in standing.members):
        raise ValueError(f"there is a site {name!r} already; give the new one another name.")
    W = sum(member.weight for member in standing.members)
    new = Member(name, standing.numbers, weight)
    grown = replace(standing, members=(*standing.members, new), numbers=standing.numbers + 1)
    if not has_controls(standing):
        return grown
    c = (W * standing.server.c.double() + weight * control(_first(standing)).double()) / (
        W + weight
    )
    return _with_control(grown, c)


def left(standing: Standing, inquiry: Inquiry, name: str) -> Standing:
    """Return the standing with one site fewer: c is the sum over the others, in their new weights.

    The site that leaves is not asked, since nothing verifies what it would show. If one of the
    others does not answer, a new epoch begins.
    """
    standing.member(name)
    others = tuple(member for member in standing.members if member.name != name)
    if not others:
        raise ValueError(f"{name!r} is the only site; end the experiment instead.")
    shrunk = replace(standing, members=others)
    if not has_controls(standing):
        return shrunk
    shown = sum_controls(standing, inquiry, others)
    if len(shown.norms) < len(others):
        return restarted(shrunk)
    return _with_control(shrunk, shown.total / (1 - standing.p[name]))


def restarted(standing: Standing) -> Standing:
    """Return the standing at a new epoch: x stays, all else is as at the start."""
    members = tuple(replace(member, accepted=Accepted(), norms={}) for member in standing.members)
    server = standing.algorithm.init_server(standing.server.x)
    return replace(standing, server=server, members=members, epoch=standing.epoch + 1)


def _first(standing: Standing) -> State:
    return standing.algorithm.init_client(standing.server.x)


def _with_control(standing: Standing, c: Tensor) -> Standing:
    server = standing.server._replace(c=c.to(standing.server.c.dtype))
    return replace(standing, server=server)


class LostState(ValueError):
    """A site's state is gone, and the operator has chosen to be asked."""


# -- how sites are taken in, at the start and when one joins


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


# -- what the operator decides while the server is stopped


def roll_back(folder: Path, R: int, keep: int) -> Standing:
    """Commit the model and the accepted states of round R again, in a new branch; return them.

    If sites joined or left since, the model of round R is kept, and a new epoch begins.
    """
    ledger, kept = Ledger(folder, keep), kept_rounds(folder)
    now = ledger.standing
    if now is None:
        raise ValueError(f"{folder} holds no experiment; there is nothing to roll back.")
    if now.r <= R:
        raise ValueError(f"the last round is {now.r}; pass an earlier one than that.")
    if R not in kept:
        rounds = sorted(r for r in kept if r < now.r)
        raise ValueError(
            f"round {R} is not kept; {folder} has "
            f"{', '.join(map(str, rounds)) or 'no earlier round'}."
        )
    then = read_standing(kept[R].parent, kept[R].name)
    assert then is not None
    facts = {"r": then.r, "server": then.server, "branch": now.branch + 1}
    if [m.name for m in then.members] == [m.name for m in now.members]:
        refused = {m.name: m.refused for m in now.members}
        members = tuple(replace(m, refused=refused[m.name]) for m in then.members)
        new = replace(now, **facts, members=members, epoch=then.epoch)
    else:
        new = restarted(replace(now, **facts))
    ledger.commit(new, "rollback", **{"from": now.r})
    assert ledger.standing is not None
    return ledger.standing


def restart_controls(folder: Path, keep: int) -> Standing:
    """Commit a new epoch: x stays, c and all c_i start again at zero."""
    ledger = Ledger(folder, keep)
    if ledger.standing is None:
        raise ValueError(f"{folder} holds no experiment; there are no controls to restart.")
    new = restarted(replace(ledger.standing, branch=ledger.standing.branch + 1))
    ledger.commit(new, "restart", sites=[])
    return ledger.standing
