"""Sentences of a paper, checks of our own, and what our records say of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trimtab_papers.records import Records


@dataclass(frozen=True)
class Verdict:
    """Whether a sentence holds in our records (None: open), and the numbers that decide it.

    mixed: some seeds say yes and some no, whatever held says.
    seeds: how many seeds decide it; None if nothing in the computation is random.
    """

    held: bool | None
    numbers: str
    mixed: bool = False
    seeds: int | None = None


class MissingRecordError(Exception):
    """A cell that a sentence is judged by has no record yet, so the sentence is open."""


Judge = Callable[[Records], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence; whether it holds in our records (None: they do not tell).

    numbers: what decided it, or why nothing here can. own: it is ours and no paper's.
    seeds: how many seeds decided it; None if nothing is random. repeats: the sentence of the same
    reproduction that states the same fact.
    """

    sentence: str
    held: bool | None
    numbers: str = ""
    mixed: bool = False
    own: bool = False
    judgeable: bool = True
    seeds: int | None = None
    repeats: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether the records decide it: it is neither open nor without a judge."""
        return self.held is not None or self.mixed

    @property
    def verdict(self) -> str:
        """Held, mixed, not held, open, or not judged."""
        if not self.judgeable:
            return "not judged"
        return "mixed" if self.mixed else {True: "held", False: "not held", None: "open"}[self.held]


@dataclass(frozen=True)
class Sentence:
    """What a paper says, where it says it, and the function that judges it.

    own: it is a check of ours. judge is None if nothing here can judge it; reason says why.
    repeats: the text of another sentence that states the same fact.
    """

    text: str
    where: str
    judge: Judge | None
    own: bool = False
    reason: str = ""
    repeats: str = ""

    def judged(self, records: Records) -> Claim:
        """Return what the records say of it."""
        if self.judge is None:
            return Claim(self.text, None, self.reason, own=self.own, judgeable=False)
        try:
            verdict = self.judge(records)
        except MissingRecordError:
            return Claim(self.text, None, own=self.own, repeats=self.repeats)
        same = f"; the same fact as '{self.repeats}'" if self.repeats else ""
        return Claim(
            self.text,
            verdict.held,
            f"{verdict.numbers}{same}",
            verdict.mixed,
            self.own,
            seeds=verdict.seeds,
            repeats=self.repeats,
        )


def sentence(text: str, where: str, repeats: Sentence | None = None) -> Callable[[Judge], Sentence]:
    """Make a sentence of the function below that judges it.

    text: what the paper says, with what we take it to mean in brackets.
    where: the section, table, figure or slide.
    repeats: a sentence that states the same fact; the two are counted as one fact.

    >>> @sentence("SCAFFOLD arrives.", "section 1")
    ... def arrives(records: Records) -> Verdict:
    ...     return Verdict(records["cell"]["rounds"] < 10, f"{records['cell']['rounds']} rounds")
    >>> claim = arrives.judged({"cell": {"rounds": 7}})
    >>> claim.verdict, claim.numbers
    ('held', '7 rounds')
    """
    return lambda judge: Sentence(text, where, judge, repeats=repeats.text if repeats else "")


def check(text: str, where: str) -> Callable[[Judge], Sentence]:
    """Make a check of our own, which no paper states, of the function below; it counts apart."""
    return lambda judge: Sentence(text, where, judge, own=True)


def not_judged(text: str, where: str, reason: str) -> Sentence:
    """Return a sentence of a source that nothing here can judge, and why."""
    return Sentence(text, where, None, reason=reason)


Held = dict[int | str, bool]
"""Whether a sentence holds, by seed, or by the name of a run that stands for one."""


def over_seeds(held: Held, numbers: str) -> Verdict:
    """Return held if every seed says so, not held if none does, and mixed if they disagree.

    >>> over_seeds({0: True, 1: False}, "7 and 12 rounds")
    Verdict(held=None, numbers='7 and 12 rounds; seed 0: yes, seed 1: no', mixed=True, seeds=2)
    >>> over_seeds({0: True}, "7 rounds").numbers
    '7 rounds; one seed'
    >>> over_seeds({"full size, seed 0": True, "small clients, seed 0": True}, "7 rounds").numbers
    '7 rounds; all agree: full size, seed 0; small clients, seed 0; one seed'
    """
    if not held:
        raise MissingRecordError
    said = set(held.values())
    mixed = len(said) > 1
    seeds = {_seed_of(run) for run in held}
    told = f"{numbers}; {_each_said(held, mixed)}"
    if len(held) > len(seeds) == 1:
        told += "; one seed"
    return Verdict(None if mixed else said.pop(), told, mixed, len(seeds))


def _seed_of(run: int | str) -> str:
    """Return the seed of a run; two sizes of clients with one seed are one seed."""
    return str(run).rpartition("seed ")[2]


def _each_said(held: Held, mixed: bool) -> str:
    """Tell what each seed says, or that all say the same; runs that are no seeds are named."""
    if mixed:
        named = {f"seed {run}" if isinstance(run, int) else run: held[run] for run in held}
        return ", ".join(f"{name}: {'yes' if yes else 'no'}" for name, yes in named.items())
    if len(held) == 1:
        return "one seed"
    if all(isinstance(run, int) for run in held):
        return f"all {len(held)} seeds"
    return f"all agree: {'; '.join(map(str, held))}"


VERDICTS = ("held", "mixed", "not held", "open", "not judged")


def counted(verdicts: Iterable[str]) -> str:
    """Return how many there are of each verdict.

    >>> counted(["not held", "held", "held"])
    '2 held, 1 not held'
    """
    known = list(verdicts)
    return ", ".join(f"{known.count(v)} {v}" for v in VERDICTS if v in known)


def by_seeds(claims: Iterable[Claim]) -> str:
    """Return how many claims rest on how many seeds; those that are not judged rest on none.

    >>> by_seeds([Claim("a", True, seeds=1), Claim("b", False, seeds=3), Claim("c", True)])
    '1 where nothing is random, 1 by several seeds, 1 by one seed'
    """
    judged = [claim for claim in claims if claim.is_judged]
    kinds = {
        "where nothing is random": sum(claim.seeds is None for claim in judged),
        "by several seeds": sum(claim.seeds is not None and claim.seeds > 1 for claim in judged),
        "by one seed": sum(claim.seeds == 1 for claim in judged),
    }
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)


def weighed(claims: Iterable[Claim]) -> str:
    """Return how many there are of each verdict, by one seed, and repeating another.

    >>> weighed([Claim("a", True, seeds=1), Claim("b", False, seeds=3)])
    '1 held, 1 not held; 1 by one seed'
    """
    known = list(claims)
    judged = [claim for claim in known if claim.is_judged]
    one_seed, again = sum(claim.seeds == 1 for claim in judged), repeated(known)
    notes = [f"{'all' if one_seed == len(judged) else one_seed} by one seed"] if one_seed else []
    notes += [f"{again} repeated"] if again else []
    return "; ".join([counted(claim.verdict for claim in known), *notes])


def repeated(claims: Iterable[Claim]) -> int:
    """Return how many claims repeat another one that has the same verdict."""
    known = list(claims)
    verdicts = {claim.sentence: claim.verdict for claim in known}
    return sum(verdicts.get(claim.repeats) == claim.verdict for claim in known if claim.is_judged)
