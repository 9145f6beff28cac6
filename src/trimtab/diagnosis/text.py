"""How a diagnosis reads on a terminal."""

from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from trimtab.diagnosis.candidates import BETA, MIMELITE, has_K, named
from trimtab.diagnosis.intervals import LEVEL
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.theory import NO_GRADIENTS, dominating

if TYPE_CHECKING:
    from trimtab.diagnosis.diagnosis import Diagnosis
    from trimtab.diagnosis.model_rounds import Predicted
    from trimtab.diagnosis.rows import ClientRow

SHOWN = 5  # <= 5 clients are shown


def first_sentence(diagnosis: "Diagnosis") -> str:
    """Return the advice, or why there is none."""
    if diagnosis.algorithm is None:
        return f"No advice: {diagnosis.why_not}; run `trimtab compare`."
    chosen = f"{named(diagnosis.algorithm)} with {_settings(diagnosis, diagnosis.algorithm)}"
    if diagnosis.gain is not None and diagnosis.gain.none_to_expect:
        other = named(diagnosis.gain.over)
        return (
            f"No difference to expect between {named(diagnosis.algorithm)} and {other} in the "
            f"rounds to f - f* = {diagnosis.eps:.2g}; {chosen} was tried and is ready to run."
        )
    return f"Use {chosen}."


def _settings(diagnosis: "Diagnosis", algorithm: str) -> str:
    if not has_K(algorithm):
        return f"eta = {diagnosis.eta_l:.3g}"
    if algorithm == MIMELITE:
        return f"K = {diagnosis.K}, eta = {diagnosis.eta_l:.3g} and momentum {BETA:g}"
    return f"K = {diagnosis.K}, eta_l = {diagnosis.eta_l:.3g} and eta_g = {diagnosis.eta_g:g}"


def whole(diagnosis: "Diagnosis") -> str:
    """Return all that a diagnosis says."""
    lines = [diagnosis.advice]
    if diagnosis.gain is not None and diagnosis.algorithm is not None:
        lines.append(diagnosis.gain.sentence(diagnosis.algorithm))
    lines.append(" ".join(diagnosis.reasons))
    lines += [sentence for sentence in (diagnosis.accuracy, diagnosis.about_K) if sentence]
    lines += [f"How sure: {diagnosis.sure}"]
    lines += [f"  - {doubt}" for doubt in diagnosis.doubts]
    sizes = f"N = {diagnosis.N}, d = {diagnosis.d}, S = {diagnosis.S}"
    lines += ["", f"Measured at the {diagnosis.where}, {sizes}; {LEVEL:.0%} intervals:"]
    lines += [f"  {row}" for row in _measured(diagnosis)]
    if diagnosis.rates:
        aim = f"with K = {diagnosis.K or 1} to f - f* = {diagnosis.eps:.3g}"
        lines += ["", f"Predicted by theory ({diagnosis.convexity}), relative, {aim}:"]
    predicted = (*_theory(diagnosis), *stationary(diagnosis), *_model(diagnosis))
    lines += [f"  {row}" for row in predicted]
    lines += ["", diagnosis.differences.sentence]
    lines += ["", "Clients, those that differ most first (gradient, Hessian apart):"]
    lines += [f"  {_client(row)}" for row in diagnosis.clients[:SHOWN]]
    if diagnosis.cut:
        lines += ["", "Cut short:", *(f"  {sentence}" for sentence in diagnosis.cut)]
    lines += ["", f"{diagnosis.seconds:.0f} seconds."]
    return "\n".join(lines)


def html(diagnosis: "Diagnosis") -> str:
    """Return advice, reasons, doubts and what was measured, for a notebook; every text escaped."""
    why = [*diagnosis.reasons, diagnosis.accuracy, diagnosis.about_K]
    if diagnosis.gain is not None and diagnosis.algorithm is not None:
        why.insert(0, diagnosis.gain.sentence(diagnosis.algorithm))
    said = [f"<b>{escape(diagnosis.advice)}</b> {escape(' '.join(filter(None, why)))}"]
    said += [f"How sure: {escape(diagnosis.sure)}", escape(diagnosis.differences.sentence)]
    doubts = "".join(f"<li>{escape(doubt)}</li>" for doubt in (*diagnosis.doubts, *diagnosis.cut))
    sizes = f"N = {diagnosis.N}, d = {diagnosis.d}, S = {diagnosis.S}"
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td><td>{escape(meaning)}</td></tr>"
        for name, value, meaning in scalars(diagnosis)
    )
    return (
        f"<div>{''.join(f'<p>{sentence}</p>' for sentence in said)}"
        f"{f'<ul>{doubts}</ul>' if doubts else ''}"
        f"<table><caption>Measured at the {escape(diagnosis.where)}, {sizes}; {LEVEL:.0%} "
        f"intervals</caption><tbody>{rows}</tbody></table></div>"
    )


# -- measured


def _measured(diagnosis: "Diagnosis") -> list[str]:
    rows = [f"{name:<7}{value:<34}{meaning}" for name, value, meaning in scalars(diagnosis)]
    if diagnosis.bounds and diagnosis.measured_on < diagnosis.N:
        rows.append(f"(Hessians of {diagnosis.measured_on} of {diagnosis.N} clients one by one)")
    return rows


def scalars(diagnosis: "Diagnosis") -> list[tuple[str, str, str]]:
    """Return the measured scalars: name, value, meaning."""
    ratio = local = ""
    if diagnosis.L and not diagnosis.rough:
        ratio = f"; delta/L = {diagnosis.intervals['delta/L']}"
    if diagnosis.eta_l is not None:
        local = f" at eta_l = {diagnosis.eta_l:.3g}, K = {diagnosis.K}"
    return [
        _scalar(diagnosis, "zeta", "how far the clients' gradients are apart"),
        _scalar(diagnosis, "G", "gradient dissimilarity of (A1)"),
        _scalar(diagnosis, "B", "its other constant, the largest over the points tried"),
        _scalar(diagnosis, "delta", f"Hessian dissimilarity of (A2){ratio}"),
        _scalar(diagnosis, "second", "second-order heterogeneity"),
        _scalar(diagnosis, "L", "smoothness, the steepest client"),
        _scalar(diagnosis, "mu", _convexity(diagnosis)),
        _scalar(diagnosis, "sigma", "noise of a mini-batch gradient"),
        _scalar(diagnosis, "drift", f"average drift of local steps{local}"),
    ]


def _scalar(diagnosis: "Diagnosis", name: str, meaning: str) -> tuple[str, str, str]:
    """Return the scalar of this name, with its interval, or what bound it is; and its meaning."""
    value = getattr(diagnosis.scalars, name)
    if not isfinite(value):
        return name, "not measured", meaning
    sign = {"at least": ">= ", "at most": "<= "}.get(diagnosis.bounds.get(name, ""), "")
    shown = f"{sign}{diagnosis.intervals.get(name, f'{value:.3g}')}"
    return name, shown, meaning


def _convexity(diagnosis: "Diagnosis") -> str:
    if diagnosis.convexity == NO_GRADIENTS:
        return "least eigenvalue of the symmetric part of the mean matrix"
    mu = diagnosis.intervals.get("mu")
    if abs(diagnosis.mu) <= RULES.flat * diagnosis.L or (mu is not None and mu.low <= 0 <= mu.high):
        return "no strong convexity to be seen"
    below_zero = isfinite(diagnosis.mu) and diagnosis.mu < 0
    return "least eigenvalue of Hess: not convex there" if below_zero else "strong convexity"


# -- predicted


def _theory(diagnosis: "Diagnosis") -> list[str]:
    rows = []
    for name, rate in diagnosis.rates.items():
        total = diagnosis.intervals[f"rounds {name}"]
        rows.append(f"{named(name):<24}{total!s:>9} rounds, most for {dominating(rate)}")
    if diagnosis.knee is not None:
        knees = diagnosis.knee.to_json().items()
        shown = ", ".join(f"option {option}: {_count(K)}" for option, K in knees)
        rows.append(f"SCAFFOLD's local steps save rounds, in the long run, up to K ({shown})")
    return rows


def stationary(diagnosis: "Diagnosis") -> list[str]:
    """Return where runs would stop, and how much they would scatter there."""
    rows = []
    bias, variance = diagnosis.bias, diagnosis.variance
    if bias.heterogeneity is not None:
        rows.append(
            f"FedAvg's bias at this eta_l and K: {bias.heterogeneity:.3g} by heterogeneity"
            f"{_part(bias.stochastic, ' and {:.2g} by noise')} (first order)"
            f"{_part(bias.limit, '; it would stop {:.3g} away')}"
            f"{_part(bias.richardson_romberg, '; Richardson-Romberg would leave {:.2g}')}"
        )
    if bias.scaffold is not None:
        rows.append(f"Scaffold's bias: {bias.scaffold:.2g} (noise only)")
    for name, trace in variance.to_json().items():
        if trace is not None:
            rows.append(f"{named(name)}'s stationary variance (trace): {trace:.3g}")
    return rows


def _model(diagnosis: "Diagnosis") -> list[str]:
    if not diagnosis.predicted:
        return []
    what = drawn(diagnosis.S < diagnosis.N, diagnosis.sigma)
    once = f", one draw of {what}" if what else ""
    rows = [f"rounds on the quadratic model, step size tuned{once}:"]
    for algorithm in dict.fromkeys(predicted.algorithm for predicted in diagnosis.predicted):
        mine = [predicted for predicted in diagnosis.predicted if predicted.algorithm == algorithm]
        shown = ", ".join(f"{_rounds(predicted)} (K = {predicted.K})" for predicted in mine)
        rows.append(f"  {named(algorithm)}: {shown}")
    return rows


def drawn(sampled: bool, sigma: float) -> str:
    """Return what is drawn at random in a round, in words; empty if nothing is.

    >>> drawn(True, 0.3), drawn(False, 0.0)
    ('cohorts and mini-batches', '')
    """
    return " and ".join(["cohorts"] * sampled + ["mini-batches"] * (sigma > 0))


def _count(K: float) -> str:
    return f"{K:.0f}" if isfinite(K) else "any number"


def _part(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _rounds(predicted: "Predicted") -> str:
    return f"{predicted.ran}+" if predicted.rounds is None else str(predicted.rounds)


def _client(row: "ClientRow") -> str:
    about = "" if row.measured else "about "
    hessian = f"{about}{row.hessian:.3g}" if isfinite(row.hessian) else "not measured"
    mark = f"  <- {row.outlier}" if row.outlier else ""
    return f"{row.client:>5}: {row.gradient:.3g}, {hessian}{mark}"
