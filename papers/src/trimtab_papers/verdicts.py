"""Sentences of a paper, checks of our own, and what our records say of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trimtab_papers.records import Records


@dataclass(frozen=True)
class Verdict:
    """Whether a sentence holds in our records (None: open), and the numbers that decide it.

    mixed: some seeds say yes and some no, whatever held says.
    """

    held: bool | None
    numbers: str
    mixed: bool = False


class MissingRecordError(Exception):
    """A cell that a sentence is judged by has no record yet, so the sentence is open."""


Judge = Callable[[Records], Verdict]


@dataclass(frozen=True)
class Claim:
    """A sentence; whether it holds in our records (None: they do not tell).

    numbers: what decided it, or why nothing here can. own: it is ours and no paper's.
    """

    sentence: str
    held: bool | None
    numbers: str = ""
    mixed: bool = False
    own: bool = False
    judgeable: bool = True

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
    """

    text: str
    where: str
    judge: Judge | None
    own: bool = False
    reason: str = ""

    def judged(self, records: Records) -> Claim:
        """Return what the records say of it."""
        if self.judge is None:
            return Claim(self.text, None, self.reason, own=self.own, judgeable=False)
        try:
            verdict = self.judge(records)
        except MissingRecordError:
            return Claim(self.text, None, own=self.own)
        return Claim(self.text, verdict.held, verdict.numbers, verdict.mixed, self.own)


def sentence(text: str, where: str) -> Callable[[Judge], Sentence]:
    """Make a sentence of the function below that judges it.

    >>> @sentence("SCAFFOLD arrives.", "section 1")
    ... def arrives(records: Records) -> Verdict:
    ...     return Verdict(records["cell"]["rounds"] < 10, f"{records['cell']['rounds']} rounds")
    >>> claim = arrives.judged({"cell": {"rounds": 7}})
    >>> claim.verdict, claim.numbers
    ('held', '7 rounds')
    """
    return lambda judge: Sentence(text, where, judge)


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
    Verdict(held=None, numbers='7 and 12 rounds; seed 0: yes, seed 1: no', mixed=True)
    >>> over_seeds({0: True}, "7 rounds").numbers
    '7 rounds; one seed'
    >>> over_seeds({"full size": True, "small clients": True}, "7 rounds").numbers
    '7 rounds; all agree: full size; small clients'
    """
    if not held:
        raise MissingRecordError
    said = set(held.values())
    mixed = len(said) > 1
    return Verdict(None if mixed else said.pop(), f"{numbers}; {_each_said(held, mixed)}", mixed)


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
