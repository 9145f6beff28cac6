"""The page of a diagnosis: the advice and why, how the clients differ, and what is expected."""

from collections.abc import Sequence
from html import escape
from math import isfinite
from pathlib import Path

from trimtab._files import write_file
from trimtab.algorithms.registry import kind
from trimtab.core.display import format_seconds
from trimtab.diagnosis import Diagnosis, text
from trimtab.diagnosis.candidates import FEDAVG, SCAFFOLD, named
from trimtab.diagnosis.differences import Differences
from trimtab.diagnosis.first_facts import FirstFacts
from trimtab.diagnosis.model_rounds import Predicted
from trimtab.diagnosis.resampling import LEVEL
from trimtab.diagnosis.theory import dominating
from trimtab.report.charts.bars import Bar, bar_chart
from trimtab.report.charts.colours import DASHES
from trimtab.report.charts.lines import Line, line_chart
from trimtab.report.charts.spectrum import spectrum_chart
from trimtab.report.charts.svg import legend
from trimtab.report.differences import picture, table
from trimtab.report.style import behind, document, html_table, section

SHOWN = 30  # <= 30 clients have bars
STRIPS = 6  # <= 6 clients have a spectrum
GRADIENTS, HESSIANS = "#00798c", "#8a5a00"


def write_diagnosis(diagnosis: Diagnosis, path: Path, command: str = "") -> Path:
    """Write the page, and return where it is; command: what makes it again."""
    what = "and what to do" if diagnosis.algorithm is not None else "and why there is no advice"
    parts = (
        _advice(diagnosis),
        section("Why", _why(diagnosis)),
        section("How the clients differ", _how(diagnosis.differences)),
        section("Who differs", _who(diagnosis)),
        section("Rounds that are expected", _expected(diagnosis)),
        section("Where runs would stop", _bias(diagnosis)),
        section("What was measured", _measured(diagnosis)),
        section("What theory says", _theory(diagnosis)),
        section("Settings", _settings(diagnosis, command)),
    )
    title = f"{diagnosis.name}: how its clients differ, {what}"
    write_file(path, document(title, "\n".join(part for part in parts if part)))
    return path


GOES_ON = "The diagnosis goes on, and this page is replaced when it ends."
STOPPED = (
    "The diagnosis ended before it had advice to give. What it measured after these facts is lost, "
    "and a new one begins anew."
)


def write_first_facts(facts: FirstFacts, name: str, path: Path, then: str = GOES_ON) -> Path:
    """Write the first page, which the whole one replaces, and return where it is."""
    write_file(path, first_facts_page(facts, name, then))
    return path


def first_facts_page(facts: FirstFacts, name: str, then: str = GOES_ON) -> str:
    """Return the first page; then: what became of the diagnosis after these facts."""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in facts.sentences)
    body = f"""<div class="advice"><p><b>So far ({facts.seconds:.0f} seconds).</b>
{escape(then)}</p></div>
<ul>{said}</ul>
{section("How the clients differ", _how(facts.differences))}"""
    return document(f"{name}: first facts about its clients", body)


def _advice(diagnosis: Diagnosis) -> str:
    """Return the question, the answer in one sentence, what it saves, and how sure it is."""
    saved = ""
    if diagnosis.gain is not None and diagnosis.algorithm is not None:
        saved = f"<p>{escape(diagnosis.gain.sentence(diagnosis.algorithm))}</p>"
    question = f"Which algorithm, K and step size suit {diagnosis.name}?"
    return f"""<div class="advice"><p class="question">{escape(question)}</p>
<p><b>{escape(diagnosis.advice)}</b></p>{saved}<p>How sure: {escape(diagnosis.sure)}</p></div>"""


def _why(diagnosis: Diagnosis) -> str:
    said = [*diagnosis.reasons, diagnosis.accuracy, diagnosis.about_K]
    reasons = "".join(f"<li>{escape(sentence)}</li>" for sentence in said if sentence)
    doubts = "".join(f"<li>{escape(doubt)}</li>" for doubt in (*diagnosis.doubts, *diagnosis.cut))
    against = f"<h3>What speaks against it</h3><ul>{doubts}</ul>" if doubts else ""
    return f"<ul>{reasons}</ul>{against}" if reasons or against else ""


def _how(differences: Differences) -> str:
    """Return how the clients' data differ, with a picture and its numbers."""
    drawn = picture(differences)
    shown = f'<figure class="wide" tabindex="0">{drawn}</figure>' if drawn else ""
    numbers = behind(table(differences)) if drawn else ""
    return f"<p>{escape(differences.sentence)}</p>{shown}{numbers}"


def _who(diagnosis: Diagnosis) -> str:
    """Return how far each client is apart, and the spectra of those that differ most."""
    rows = diagnosis.clients[:SHOWN]
    if not rows:
        return ""
    gradients = [Bar(str(row.client), row.gradient) for row in rows]
    known = [row for row in rows if isfinite(row.hessian)]
    hessians = [Bar(str(row.client), row.hessian, row.measured) for row in known]
    charts = [bar_chart(gradients, "|grad f_i - grad f|", "client", GRADIENTS, "Gradients")]
    if hessians:
        charts.append(bar_chart(hessians, "|Hess_i - Hess|", "client", HESSIANS, "Hessians"))
    spectra = [
        (f"client {row.client}", *diagnosis.spectra[row.client])
        for row in diagnosis.clients
        if row.client in diagnosis.spectra
    ][:STRIPS]
    if spectra:
        edge = diagnosis.delta if isfinite(diagnosis.delta) else None
        charts.append(spectrum_chart(spectra, edge, "eigenvalues of Hess_i - Hess"))
    figures = "".join(f"<figure>{chart}</figure>" for chart in charts)
    note = "Those that differ most come first; a hollow bar is an estimate from random vectors."
    if spectra:
        note += (
            " Dashed lines are plus and minus delta; a longer stroke stands for more directions."
        )
    body = html_table(
        ["client", "weight", "gradient apart", "Hessian apart", "Hessian is", "stands out"],
        [
            [
                *(str(row.client), f"{row.weight:.3g}", f"{row.gradient:.3g}", _cell(row.hessian)),
                "measured" if row.measured else "estimated",
                escape(row.outlier) or "-",
            ]
            for row in rows
        ],
        "How far clients are apart",
    )
    values = [
        [escape(name), ", ".join(f"{value:.3g}" for value in own)] for name, own, _ in spectra
    ]
    if values:
        body += html_table(["client", "eigenvalues"], values, "Eigenvalues", "facts")
    return f'<div class="pair">{figures}</div><p class="small">{note}</p>{behind(body)}'


def _expected(diagnosis: Diagnosis) -> str:
    """Return the rounds on the quadratic model against K, the step size tuned for each."""
    names = list(dict.fromkeys(one.algorithm for one in diagnosis.predicted))
    if not names:
        return ""
    lines = []
    for j, name in enumerate(names):
        mine = sorted((o for o in diagnosis.predicted if o.algorithm == name), key=lambda o: o.K)
        rounds = [None if o.rounds is None else float(o.rounds) or 0.5 for o in mine]
        looks = (kind(name).colour, DASHES[j % len(DASHES)])
        lines.append(Line(f"p{j}", named(name), *looks, [float(o.K) for o in mine], rounds))
    aim = f"rounds to f - f* = {diagnosis.eps:.2g}"
    chart = line_chart(lines, "local steps K", aim, x_log=True, y_log=True)
    rows = [
        [
            escape(named(one.algorithm)) + (" (advised)" if _is_advised(diagnosis, one) else ""),
            str(one.K),
            f"{one.ran}+" if one.rounds is None else str(one.rounds),
            "-" if one.eta is None else f"{one.eta:.3g}",
        ]
        for one in diagnosis.predicted
    ]
    numbers = html_table(["algorithm", "K", "rounds", "step size"], rows, aim)
    note = "On the quadratic model, the step size tuned for each K; 'n+': not there in n rounds."
    drawn = legend([(o.key, o.label, o.colour, o.dash) for o in lines]) + _figure(aim, chart)
    return f'{drawn}<p class="small">{escape(note)}</p>{behind(numbers)}'


def _is_advised(diagnosis: Diagnosis, one: Predicted) -> bool:
    return (one.algorithm, one.K) == (diagnosis.algorithm, diagnosis.K)


def _bias(diagnosis: Diagnosis) -> str:
    """Return how far from the optimum FedAvg stops at the step size that is advised."""
    rows = [row for row in diagnosis.bias_by_K if row.K != 1 and row.heterogeneity > 0]
    if not rows or diagnosis.eta_l is None:
        return ""
    K = [float(row.K) for row in rows]
    colour = kind(FEDAVG).colour
    limits = [row.limit if row.limit is not None and row.limit > 0 else None for row in rows]
    lines = [
        Line("b0", "FedAvg", colour, DASHES[0], K, limits),
        Line("b1", "FedAvg, 1st order", colour, DASHES[1], K, [row.heterogeneity for row in rows]),
    ]
    noise = diagnosis.bias.scaffold
    if noise:
        looks = (kind(SCAFFOLD).colour, DASHES[2])
        lines.append(Line("b2", "Scaffold (noise)", *looks, K, [noise] * len(K)))
    chart = line_chart(lines, "local steps K", "|x - x*|", x_log=True, y_log=True)
    cells = [[str(row.K), _cell(row.limit), _cell(row.heterogeneity)] for row in rows]
    numbers = html_table(["K", "FedAvg stops at", "to first order"], cells, "Bias by K")
    said = f"|x - x*| at eta_l = {diagnosis.eta_l:.3g}, by the number of local steps."
    return _figure(said, chart) + behind(numbers)


def _figure(said: str, chart: str) -> str:
    """Return a chart below a sentence, in a box that scrolls where it is too small."""
    caption = f"<figcaption>{escape(said)}</figcaption>"
    return f'<figure class="wide" tabindex="0">{caption}{chart}</figure>'


def _measured(diagnosis: Diagnosis) -> str:
    rows = [[escape(cell) for cell in row] for row in text.scalars(diagnosis)]
    where = f"At the {diagnosis.where}; {LEVEL:.0%} intervals in brackets."
    found = html_table(["number", "value", "what it is"], rows, "Measured numbers", "facts stacked")
    return f"<p>{escape(where)}</p>{found}{_points(diagnosis)}"


def _points(diagnosis: Diagnosis) -> str:
    heads = ["point", "f", "zeta", "|grad f|", "B", "L", "delta"]
    names = ("loss", "zeta", "gradient", "B", "L", "delta")
    rows = [
        [
            escape(row.where),
            *(escape(str(row.intervals.get(n, _cell(getattr(row, n))))) for n in names),
        ]
        for row in diagnosis.points
    ]
    return f"<h3>Points</h3>{html_table(heads, rows, 'Points')}" if rows else ""


def _theory(diagnosis: Diagnosis) -> str:
    rows = [
        [escape(named(name)), escape(str(diagnosis.intervals[f"rounds {name}"])), dominating(rate)]
        for name, rate in diagnosis.rates.items()
    ]
    aim = f"with K = {diagnosis.K or 1} to f - f* = {diagnosis.eps:.3g}"
    said = f"Rounds {aim}, up to constants ({diagnosis.convexity})."
    rates = html_table(["algorithm", "rounds, relative", "most for"], rows, "Rates") if rows else ""
    lines: Sequence[str] = text.stationary(diagnosis)
    more = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (f"<p>{escape(said)}</p>{rates}" if rates else "") + (f"<ul>{more}</ul>" if more else "")


def _settings(diagnosis: Diagnosis, command: str) -> str:
    facts = {
        "clients N": str(diagnosis.N),
        "parameters d": f"{diagnosis.d:,}",
        "clients a round S": str(diagnosis.S),
        "f - f* that is wanted": f"{diagnosis.eps:.3g}",
        "clients come once and keep nothing": "yes" if diagnosis.cross_device else "no",
        "Hessians one by one": f"of {diagnosis.measured_on} of {diagnosis.N} clients",
        "time": format_seconds(diagnosis.seconds),
    }
    rows = [[escape(name), escape(value)] for name, value in facts.items()]
    made = html_table(["setting", "value"], rows, "Settings", "facts")
    again = f"<p>To make it again:</p><pre>{escape(command)}</pre>" if command else ""
    link = '<p>All numbers: <a href="diagnosis.json">diagnosis.json</a>.</p>' if command else ""
    return made + again + link


def _cell(value: float | None) -> str:
    return "-" if value is None or not isfinite(value) else f"{value:.3g}"
