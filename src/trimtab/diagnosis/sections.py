"""Explain: a diagnosis as sections, for the terminal, a notebook and a page.

First what to do and how sure that is, then why in three sentences, then the numbers with a line on
what each means, then theory. Every sentence is made of the numbers that are shown.
"""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING

from trimtab.algorithms.registry import kind
from trimtab.core.sections import Section, Table
from trimtab.diagnosis.advise import NEAREST, NO_DIFFERENCE, Advice, Choice
from trimtab.diagnosis.confirm import Confirmed
from trimtab.diagnosis.intervals import LEVEL
from trimtab.diagnosis.rules import BETA, FEDAVG, RULES, has_K, named
from trimtab.diagnosis.theory import NO_GRADIENTS, dominating
from trimtab.studies.entry import listed, rounds_in_words, two_ends

if TYPE_CHECKING:
    from trimtab.diagnosis.diagnosis import Diagnosis
    from trimtab.diagnosis.stages import ClientRow

SHOWN = 5  # clients on a terminal; a page shows more
NOTHING = "-"


def sections(diagnosis: "Diagnosis") -> list[Section]:
    """Return the whole report; a page adds figures to its sections."""
    return [
        answer(diagnosis),
        why(diagnosis),
        runs(diagnosis),
        expected(diagnosis),
        measured(diagnosis),
        differences(diagnosis),
        clients(diagnosis, SHOWN),
        theory(diagnosis),
    ]


def as_text(parts: Sequence[Section]) -> str:
    """Return sections as plain text; folded tables are left out."""
    lines: list[str] = []
    for section in parts:
        said = [f"- {s}" if section.kind == "list" else s for s in section.sentences]
        table = section.table
        if table is not None and not table.folded and table.rows:
            rows = [table.heads, *table.rows]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                said.append(f"  {'  '.join(cells).rstrip()}")
        inside = as_text(section.parts)
        said += [*section.notes, *([inside] if inside else [])]
        if said:
            titled = section.title and section.kind != "answer"  # The advice comes first.
            lines += [*([""] if lines else []), *([section.title] if titled else []), *said]
    return "\n".join(lines)


# -- what to do, and why


def answer(diagnosis: "Diagnosis") -> Section:
    """Return the question, the advice, and how sure it is."""
    question = f"Which algorithm, K and step size suit {diagnosis.name}?"
    return Section(question, [diagnosis.advice, f"How sure: {diagnosis.sure}"], kind="answer")


def why(diagnosis: "Diagnosis") -> Section:
    """Return the three sentences: gradients, Hessians, runs; and what speaks against them."""
    doubts = [*diagnosis.doubts, *diagnosis.cut]
    against = Section("What speaks against it" if doubts else "", doubts, kind="list")
    return Section("Why", diagnosis.reasons, parts=[against])


def gradients_sentence(
    start: float, gradient: float, zeta: float, where: str, limit: float | None, K: int | None
) -> str:
    """Say how far the clients' gradients disagree, and where FedAvg stops because of that.

    start, gradient: zeta and |grad f| where training starts. zeta: that of the point `where` all is
    measured. limit: |x - x*| where FedAvg stops with the advised step size, if that is known.

    >>> gradients_sentence(0.6, 0.4, 0.5, "optimum", 0.2, 8)
    'Client gradients disagree strongly (zeta = 0.6 at the start, where |grad f| = 0.4; 0.5 at the \
optimum), so FedAvg with this step and K stops 0.2 away from the optimum.'
    """
    how = "strongly" if start >= gradient else "moderately"
    how = "little" if start == 0 or start < RULES.close * gradient else how
    scale = f"zeta = {start:.2g} at the start, where |grad f| = {gradient:.2g}"
    scale += "" if where == "start" else f"; {zeta:.2g} at the {where}"
    stops = ""
    if limit is not None and K is not None and K > 1:
        stops = f", so {named(FEDAVG)} with this step and K stops {limit:.2g} away from the optimum"
    return f"Client gradients disagree {how} ({scale}){stops}."


def hessians_sentence(
    delta: float, L: float, K: int | None, *, rough: bool, alike: bool = False
) -> str:
    """Say how far the clients' Hessians differ, and what that means for local steps.

    K: the local steps with which the advised runs reached the target, if they did. alike: whether
    another algorithm, which may have more local steps, needed about as many rounds.

    >>> hessians_sentence(0.05, 1.0, 16, rough=False)
    'Client Hessians are similar (delta/L = 0.05), so local steps pay off: K = 16 did best.'
    """
    if not isfinite(delta):
        return "How far client Hessians differ was not measured."
    if rough or not L > 0:
        return f"How far client Hessians differ is known in part only (delta >= {delta:.2g})."
    similar, many = delta / L < RULES.close, K is not None and K > 1
    said = f"Client Hessians {'are similar' if similar else 'differ'} (delta/L = {delta / L:.2g})"
    if K is None:
        return f"{said}."
    did = "did as well" if alike and not many else "did best"
    if similar == many:
        return f"{said}, so local steps {'' if similar else 'do not '}pay off: K = {K} {did}."
    if many:
        return f"{said}, which limits local steps in the long run; here K = {K} {did}."
    return f"{said}, but local steps did not save rounds here: K = {K} {did}."


def headline(advice: Advice, eps: float) -> str:
    """Return the first sentence: an imperative only where the runs support one."""
    choice = advice.choice
    if choice is None:
        return f"No advice: {advice.why_not}; run `trimtab compare`."
    chosen = f"{named(choice.algorithm)} with {settings(choice)}"
    if advice.verdict == NEAREST:
        return f"No algorithm reached f - f* = {eps:.2g}; {chosen} came nearest."
    others = listed([named(name) for name in advice.alike])
    if advice.verdict == NO_DIFFERENCE:
        name = named(choice.algorithm)
        return f"No difference found between {name} and {others}; {chosen} is the simplest."
    return f"Use {chosen}; no difference to {others} was found." if others else f"Use {chosen}."


def settings(choice: Choice) -> str:
    """Return the settings in words.

    >>> settings(Choice("fedavg", 8, 0.5))
    'K = 8, eta_l = 0.5 and eta_g = 1'
    """
    known = kind(choice.algorithm)
    parts = [f"K = {choice.K}"] * known.has_K + [f"{known.step} = {choice.eta:.3g}"]
    names = [parameter.name for parameter in known.parameters]
    parts += [f"momentum {BETA:g}"] * ("base" in names) + ["eta_g = 1"] * ("eta_g" in names)
    return listed(parts)


def rounds_of(confirmed: Confirmed) -> str:
    """Return the rounds of every algorithm that ran, in one sentence."""
    said = []
    for entry, R in zip(confirmed.entries, confirmed.R, strict=True):
        K = entry.settings.get("K")
        name = entry.shown + (f" (K = {K})" if K else "")
        if not entry.failed:
            said.append(f"{name} needed {rounds_in_words(entry.rounds or 0)}")
        elif entry.diverged:
            said.append(f"{name} diverged")
        else:
            said.append(f"{name} did not get there in {len(entry.curve) or R} rounds")
    return f"On the problem itself {listed(said)}." if said else ""


# -- the runs


def runs(diagnosis: "Diagnosis") -> Section:
    """Return a row for each algorithm that was run on the problem."""
    rows = [
        [
            named(one.algorithm),
            str(one.K) if has_K(one.algorithm) else NOTHING,
            f"{one.eta:.3g}",
            f"{one.limit}+" if one.rounds is None else str(one.rounds),
            NOTHING if one.range is None else two_ends(one.range, " to "),
            NOTHING if one.expected is None else str(one.expected),
        ]
        for one in diagnosis.confirmed
    ]
    heads = ["algorithm", "K", "step size", "rounds", "of the seeds", "expected by the model"]
    aim = f"Rounds to f - f* = {diagnosis.eps:.2g}, each with the best settings found."
    bold = frozenset(
        (j, 0) for j, one in enumerate(diagnosis.confirmed) if one.algorithm == diagnosis.algorithm
    )
    table = Table(heads, rows, bold=bold) if rows else None
    return Section("Runs on the problem", [aim] if rows else [], table)


def expected(diagnosis: "Diagnosis") -> Section:
    """Return the rounds on the quadratic model by algorithm and K, the step size tuned."""
    names = list(dict.fromkeys(one.algorithm for one in diagnosis.predicted))
    if not names:
        return Section()
    Ks = sorted({one.K for one in diagnosis.predicted})
    found = {(one.algorithm, one.K): one for one in diagnosis.predicted}
    rows = [
        [named(name)]
        + [
            NOTHING
            if (one := found.get((name, K))) is None
            else f"{one.ran}+"
            if one.rounds is None
            else str(one.rounds)
            for K in Ks
        ]
        for name in names
    ]
    what = drawn(diagnosis.S < diagnosis.N, diagnosis.sigma)
    once = f" with one draw of {what}" if what else ""
    note = (
        f"On the quadratic model{once}, each K with its best step size; n+: not there in n rounds."
    )
    table = Table(["", *(f"K = {K}" for K in Ks)], rows)
    return Section("Expected rounds", table=table, notes=[note])


def drawn(sampled: bool, sigma: float) -> str:
    """Return what is drawn at random in a round, in words; empty if nothing is.

    >>> drawn(True, 0.3), drawn(False, 0.0)
    ('cohorts and mini-batches', '')
    """
    return " and ".join(["cohorts"] * sampled + ["mini-batches"] * (sigma > 0))


# -- the numbers


def measured(diagnosis: "Diagnosis") -> Section:
    """Return every number with its interval and a line on what it means; then the points."""
    sizes = f"N = {diagnosis.N}, d = {diagnosis.d}, S = {diagnosis.S}"
    said = [f"At the {diagnosis.where}, {sizes}; {LEVEL:.0%} intervals in brackets."]
    if diagnosis.bounds and diagnosis.measured_on < diagnosis.N:
        some = f"{diagnosis.measured_on} of {diagnosis.N} clients"
        said.append(f"Hessians of {some} were measured one by one.")
    table = Table(["number", "value", "what it is"], scalars(diagnosis), kind="facts stacked")
    heads = ["point", "f", "zeta", "|grad f|", "B", "L", "delta"]
    names = ("loss", "zeta", "gradient", "B", "L", "delta")
    rows = [
        [row.where, *(str(row.intervals.get(n, cell(getattr(row, n)))) for n in names)]
        for row in diagnosis.points
    ]
    points = Section("Points", table=Table(heads, rows)) if rows else Section()
    return Section("What was measured", said, table, parts=[points])


def scalars(diagnosis: "Diagnosis") -> list[list[str]]:
    """Return the measured numbers: name, value, meaning."""
    ratio = local = ""
    if diagnosis.L and not diagnosis.rough:
        ratio = f"; delta/L = {diagnosis.intervals['delta/L']}"
    if diagnosis.eta_l is not None:
        local = f" at eta_l = {diagnosis.eta_l:.3g}, K = {diagnosis.K}"
    meanings = {
        "zeta": "how far the clients' gradients are apart",
        "G": "root of the mean squared client gradient; (A1) of SCAFFOLD",
        "B": "how much client gradients grow with that of f, the largest over the points",
        "delta": f"how far a client's Hessian is from the mean Hessian{ratio}",
        "second": "the same as a mean over the clients",
        "L": "the steepest curvature of a client, which bounds step sizes",
        "mu": _convexity(diagnosis),
        "sigma": "noise of a mini-batch gradient",
        "drift": f"how far local steps lead clients apart{local}",
    }
    rows = []
    for name, meaning in meanings.items():
        value = getattr(diagnosis.scalars, name)
        sign = {"at least": ">= ", "at most": "<= "}.get(diagnosis.bounds.get(name, ""), "")
        shown = f"{sign}{diagnosis.intervals.get(name, f'{value:.3g}')}"
        rows.append([name, shown if isfinite(value) else "not measured", meaning])
    return rows


def _convexity(diagnosis: "Diagnosis") -> str:
    if diagnosis.convexity == NO_GRADIENTS:
        return "least eigenvalue of the symmetric part of the mean matrix"
    mu = diagnosis.intervals.get("mu")
    if abs(diagnosis.mu) <= RULES.flat * diagnosis.L or (mu is not None and mu.low <= 0 <= mu.high):
        return "no strong convexity to be seen"
    below_zero = isfinite(diagnosis.mu) and diagnosis.mu < 0
    return "least curvature of f: not convex there" if below_zero else "least curvature of f"


def differences(diagnosis: "Diagnosis") -> Section:
    """Return how the clients' data differ."""
    return Section("How the clients differ", [diagnosis.differences.sentence])


def clients(diagnosis: "Diagnosis", most: int) -> Section:
    """Return a row for each client, those that differ most first."""
    rows = [_client(row) for row in diagnosis.clients[:most]]
    if not rows:
        return Section()
    heads = ["client", "weight", "gradient apart", "Hessian apart", "stands out"]
    note = "Those that differ most come first; 'about': estimated from random vectors."
    return Section("Which clients differ", table=Table(heads, rows), notes=[note])


def _client(row: "ClientRow") -> list[str]:
    about = "" if row.measured else "about "
    hessian = f"{about}{row.hessian:.3g}" if isfinite(row.hessian) else "not measured"
    return [
        *(str(row.client), f"{row.weight:.3g}", f"{row.gradient:.3g}"),
        *(hessian, row.outlier or NOTHING),
    ]


# -- theory


def theory(diagnosis: "Diagnosis") -> Section:
    """Return the rounds of Table 2, K in the long run, bias and variance."""
    rows = [
        [named(name), str(diagnosis.intervals[f"rounds {name}"]), dominating(rate)]
        for name, rate in diagnosis.rates.items()
    ]
    aim = f"with K = {diagnosis.K or 1} to f - f* = {diagnosis.eps:.3g}"
    said = [f"Rounds {aim}, up to constants ({diagnosis.convexity})."] if rows else []
    table = Table(["algorithm", "rounds, relative", "most for"], rows) if rows else None
    more = Section(sentences=_long_run(diagnosis), kind="list")
    return Section("What theory says", said, table, parts=[more])


def _long_run(diagnosis: "Diagnosis") -> list[str]:
    rows = []
    if diagnosis.knee is not None:
        knees = diagnosis.knee.to_json().items()
        shown = ", ".join(f"option {option}: {_count(K)}" for option, K in knees)
        rows.append(
            f"In the long run SCAFFOLD's local steps save rounds up to K ({shown}); constants are "
            "dropped, and the K above is for the wanted accuracy from this start."
        )
    bias = diagnosis.bias
    if bias.heterogeneity is not None and (diagnosis.K or 1) > 1:
        rows.append(
            f"{named(FEDAVG)}'s bias at this eta_l and K: {bias.heterogeneity:.3g} by heterogeneity"
            f"{_part(bias.stochastic, ' and {:.2g} by noise')} (first order)"
            f"{_part(bias.limit, '; it would stop {:.3g} away')}"
            f"{_part(bias.richardson_romberg, '; Richardson-Romberg would leave {:.2g}')}."
        )
    if bias.scaffold is not None:
        rows.append(f"SCAFFOLD's bias: {bias.scaffold:.2g} (noise only).")
    for name, trace in asdict(diagnosis.variance).items():
        if trace is not None:
            how = ", of i.i.d. mini-batches" if trace else ""
            rows.append(f"{named(name)}'s stationary variance (trace{how}): {trace:.3g}.")
    return rows


def _count(K: float) -> str:
    return f"{K:.0f}" if isfinite(K) else "any number"


def _part(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def cell(value: float | None) -> str:
    """Return a number for a cell."""
    return NOTHING if value is None or not isfinite(value) else f"{value:.3g}"
