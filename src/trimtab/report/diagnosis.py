"""The page of a diagnosis: its sections with figures."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import isfinite
from pathlib import Path

from trimtab._files import write_file
from trimtab.algorithms.registry import kind
from trimtab.core.display import format_seconds
from trimtab.core.sections import Section, Table
from trimtab.diagnosis import Diagnosis, sections
from trimtab.diagnosis.differences import Difference, Differences, FirstFacts
from trimtab.diagnosis.rules import FEDAVG, SCAFFOLD, named
from trimtab.report.charts.bars import Bar, bar_chart, spectrum_chart
from trimtab.report.charts.lines import Line, line_chart
from trimtab.report.charts.strips import Cell, CellRow, cell_chart
from trimtab.report.charts.svg import DASHES, legend
from trimtab.report.page import document

BARS = 30  # More clients leave no room for bars.
SPECTRA = 6  # clients with a spectrum, those that differ most
CELLS, LABELS = 40, 30  # clients and labels with cells; more leave no room
GRADIENTS, HESSIANS = "#00798c", "#8a5a00"
SHARES, FOUND, CHANCE = "#00798c", "#d1495b", "#777777"


def write_diagnosis(diagnosis: Diagnosis, path: Path, command: str = "") -> Path:
    """Write the page, and return its path; command: the one that repeats it."""
    what = "and what to do" if diagnosis.algorithm is not None else "and why there is no advice"
    parts = (
        sections.answer(diagnosis),
        sections.why(diagnosis),
        sections.runs(diagnosis),
        _how(diagnosis.differences),
        _clients(diagnosis),
        _expected(diagnosis),
        _bias(diagnosis),
        sections.measured(diagnosis),
        sections.theory(diagnosis),
        _settings(diagnosis, command),
    )
    title = f"{diagnosis.name}: how its clients differ, {what}"
    write_file(path, document(title, parts))
    return path


CONTINUES = "The diagnosis continues, and this page is replaced when it ends."
STOPPED = (
    "The diagnosis ended before it had advice to give. Its finished stages are kept, and it can be "
    "resumed after them."
)


def write_first_facts(facts: FirstFacts, name: str, path: Path, then: str = CONTINUES) -> Path:
    """Write the first page, which the whole one replaces, and return its path."""
    write_file(path, first_facts_page(facts, name, then))
    return path


def first_facts_page(facts: FirstFacts, name: str, then: str = CONTINUES) -> str:
    """Return the first page; then: what follows these facts."""
    sections = (
        Section(sentences=[f"So far ({facts.seconds:.0f} seconds).", then], kind="answer"),
        Section(sentences=facts.sentences, kind="list"),
        _how(facts.differences),
    )
    return document(f"{name}: first facts about its clients", sections)


def _expected(diagnosis: Diagnosis) -> Section:
    """Return the rounds on the quadratic model against K, with a chart."""
    names = list(dict.fromkeys(one.algorithm for one in diagnosis.predicted))
    if not names:
        return Section()
    lines = []
    for j, name in enumerate(names):
        mine = sorted((o for o in diagnosis.predicted if o.algorithm == name), key=lambda o: o.K)
        rounds = [None if o.rounds is None else float(o.rounds) or 0.5 for o in mine]
        looks = (kind(name).colour, DASHES[j % len(DASHES)])
        lines.append(Line(f"p{j}", named(name), *looks, [float(o.K) for o in mine], rounds))
    aim = f"rounds to f - f* = {diagnosis.eps:.2g}"
    chart = line_chart(lines, "local steps K", aim, x_log=True, y_log=True)
    section = sections.expected(diagnosis)
    assert section.table is not None
    table = replace(section.table, folded="The numbers")
    return replace(section, table=table, figure=_legend(lines) + _figure(aim, chart))


def _bias(diagnosis: Diagnosis) -> Section:
    """Return the distance from the optimum at which FedAvg stops with the advised step size."""
    rows = [row for row in diagnosis.bias_by_K if row.K != 1 and row.heterogeneity > 0]
    if not rows or diagnosis.eta_l is None:
        return Section()
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
    cells = [
        [str(row.K), sections.cell(row.limit), sections.cell(row.heterogeneity)] for row in rows
    ]
    table = Table(["K", "FedAvg stops at", "to first order"], cells, folded="The numbers")
    caption = f"|x - x*| at eta_l = {diagnosis.eta_l:.3g}, by the number of local steps."
    figure = _legend(lines) + _figure(caption, chart)
    return Section("Where runs would stop", table=table, figure=figure)


def _legend(lines: Sequence[Line]) -> str:
    return legend([(o.key, o.label, o.colour, o.dash) for o in lines]) if len(lines) > 1 else ""


def _figure(caption: str, chart: str) -> str:
    """Return a chart below a caption, in a box that scrolls where it is too small."""
    head = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="wide" tabindex="0">{head}{chart}</figure>'


def _settings(diagnosis: Diagnosis, command: str) -> Section:
    facts = {
        "clients N": str(diagnosis.N),
        "parameters d": f"{diagnosis.d:,}",
        "clients per round S": str(diagnosis.S),
        "target f - f*": f"{diagnosis.eps:.3g}",
        "clients come once and keep nothing": "yes" if diagnosis.cross_device else "no",
        "Hessians one by one": f"of {diagnosis.measured_on} of {diagnosis.N} clients",
        "time": format_seconds(diagnosis.seconds),
    }
    table = Table(["setting", "value"], list(facts.items()), kind="facts")
    again = f"<p>To repeat it:</p><pre>{escape(command)}</pre>" if command else ""
    link = '<p>All numbers: <a href="diagnosis.json">diagnosis.json</a>.</p>' if command else ""
    return Section("Settings", table=table, parts=[Section(figure=again + link)])


# -- how clients differ


def _clients(diagnosis: Diagnosis) -> Section:
    """Return the distance of each client, and the spectra of those that differ most."""
    rows = diagnosis.clients[:BARS]
    if not rows:
        return Section()
    gradients = [Bar(str(row.client), row.gradient) for row in rows]
    known = [row for row in rows if isfinite(row.hessian)]
    hessians = [Bar(str(row.client), row.hessian, row.measured) for row in known]
    charts = [bar_chart(gradients, "|grad f_i - grad f|", "client", GRADIENTS, "Gradients")]
    if hessians:
        charts.append(bar_chart(hessians, "|Hess_i - Hess|", "client", HESSIANS, "Hessians"))
    spectra = [
        (f"client {row.client}", diagnosis.spectra[row.client])
        for row in diagnosis.clients
        if row.client in diagnosis.spectra
    ][:SPECTRA]
    note = "Those that differ most come first; a hollow bar is an estimate from random vectors."
    if spectra:
        edge = diagnosis.delta if isfinite(diagnosis.delta) else None
        charts.append(spectrum_chart(spectra, edge, "eigenvalues of Hess_i - Hess"))
        note += " Dashed lines are plus and minus delta."
    section = sections.clients(diagnosis, BARS)
    assert section.table is not None
    distances = replace(section.table, folded="How far clients are apart")
    values = [[name, ", ".join(f"{value:.3g}" for value in own)] for name, own in spectra]
    eigenvalues = Table(["client", "eigenvalues"], values, folded="Eigenvalues", kind="facts")
    figures = "".join(f"<figure>{chart}</figure>" for chart in charts)
    return replace(
        section,
        table=distances,
        notes=[note],
        figure=f'<div class="pair">{figures}</div>',
        parts=[Section(table=eigenvalues)],
    )


def _how(differences: Differences) -> Section:
    """Return how the clients' data differ, as cells and as numbers."""
    drawn = difference_chart(differences)
    table = _difference_table(differences) if drawn else None
    figure = _figure("", drawn) if drawn else ""
    return Section("How the clients differ", [differences.sentence], table, figure=figure)


def difference_chart(differences: Differences) -> str:
    """Return an <svg> with a column for each client: shares of labels, then a row for each kind.

    A star marks clients that stand out; a row says whether its differences exceed chance.
    """
    clients = _columns(differences)
    if not clients:
        return ""
    shares, labels = differences.shares or {}, _labels(differences, clients)
    rows = [
        CellRow(
            str(label),
            SHARES,
            [
                Cell(column, shares[i][label], f"client {i}, label {label}")
                for column, i in enumerate(clients)
                if i in shares
            ],
            heading="shares of the labels" if j == 0 else "",
        )
        for j, label in enumerate(labels)
    ]
    kinds = [_row(kind, clients) for kind in differences.kinds]
    return cell_chart([*rows, *kinds], clients)


def _row(difference: Difference, clients: list[int]) -> CellRow:
    most = max(difference.values.values(), default=0.0) or 1.0
    cells = []
    for column, i in enumerate(clients):
        value = difference.values.get(i)
        if value is not None:
            stands_out = i in difference.outliers
            about = f"client {i}: {value:.2g} {difference.unit}"
            about += ", stands out" if stands_out else ""
            cells.append(Cell(column, value / most, about, stands_out))
    verdict = "differ" if difference.found else "by chance"
    return CellRow(f"{difference.what}: {verdict}", FOUND if difference.found else CHANCE, cells)


def _difference_table(differences: Differences) -> Table:
    clients = _columns(differences)
    shares, labels = differences.shares or {}, _labels(differences, clients)
    heads = ["client", *(f"{kind.what} ({kind.unit})" for kind in differences.kinds)]
    heads += [f"label {label}" for label in labels]
    rows = [
        [
            str(i),
            *(_value(kind, i) for kind in differences.kinds),
            *(f"{shares[i][label]:.2g}" if i in shares else "-" for label in labels),
        ]
        for i in clients
    ]
    return Table(heads, rows, folded="How clients differ, in numbers")


def _labels(differences: Differences, clients: list[int]) -> range:
    """Return the labels that are shown: all, or none if they are too many."""
    shares = differences.shares or {}
    classes = max((len(shares[i]) for i in clients if i in shares), default=0)
    return range(classes if classes <= LABELS else 0)


def _value(difference: Difference, client: int) -> str:
    value = difference.values.get(client)
    mark = " *" if client in difference.outliers else ""
    return "-" if value is None else f"{value:.3g}{mark}"


def _columns(differences: Differences) -> list[int]:
    """Return the clients that are shown: if there are many, those that stand out first."""
    all_clients = list(differences.kinds[0].values) if differences.kinds else []
    if len(all_clients) <= CELLS:
        return all_clients
    first = [i for kind in differences.kinds for i in kind.outliers]
    return sorted(list(dict.fromkeys([*first, *all_clients]))[:CELLS])
