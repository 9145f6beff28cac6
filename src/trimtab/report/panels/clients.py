"""The clients: how much data of which labels each has, and how the models serve them."""

from collections.abc import Sequence
from html import escape

from trimtab.problems.clients import ClientSummary
from trimtab.report.charts.holdings import holdings_chart
from trimtab.report.charts.scales import extent
from trimtab.report.charts.strips import Served, gain_chart, strip_chart
from trimtab.report.curves import colour_of
from trimtab.report.sources import Page, Source
from trimtab.report.style import behind, html_table, section
from trimtab.studies.entry import Entry

REFERENCE = "fedavg"  # what others are compared with, if it is there
SAME = 1e-12  # a client gains or loses if it differs by more than 1e-12
ROWS = 200  # <= 200 clients are in the table behind a chart


def clients(page: Page) -> str:
    """Show how many samples each client has, and of which labels."""
    shown: dict[ClientSummary, list[str]] = {}
    for source in page.sources:
        if source.result.population is not None and source.result.population.sizes:
            shown.setdefault(source.result.population, []).append(source.name)
    several = len(page.sources) > 1
    return section("Clients", "".join(_held(p, n if several else []) for p, n in shown.items()))


def _held(population: ClientSummary, names: list[str]) -> str:
    sizes, labels = population.sizes, population.labels
    who = "One client" if population.N == 1 else f"{population.N} clients"
    said = f"{who} with {_span(min(sizes), max(sizes))} samples"
    if labels is not None:
        held = sorted(sum(count > 0 for count in row) for row in labels)
        said += f", {_span(held[0], held[-1])} of {len(labels[0])} labels each"
    head = f"<h3>{escape(', '.join(names))}</h3>" if names else ""
    chart = holdings_chart(sizes, labels)
    heads = ["client", "samples", *(f"label {j}" for j in range(len(labels[0]) if labels else 0))]
    rows = [
        [str(i), str(size), *(map(str, labels[i]) if labels else ())]
        for i, size in enumerate(sizes[:ROWS])
    ]
    table = html_table(heads, rows, "Samples of each client")
    return (
        f'{head}<p>{escape(said)}.</p><figure class="wide" tabindex="0">{chart}</figure>'
        f"{behind(table)}"
    )


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def served(page: Page) -> str:
    """Show how the chosen models serve the clients: who is served worst, who gains, who loses."""
    several = len(page.sources) > 1
    return section(
        "How each client is served", "".join(_served(source, several) for source in page.sources)
    )


def _served(source: Source, several: bool) -> str:
    result = source.result
    found = [(e, e.per_client) for e in result.entries if e.per_client]
    if not found:
        return ""
    heads = ["algorithm", "mean", "worst tenth", "worst", "client", "spread"]
    numbers = ("mean", "worst_tenth", "worst", "worst_client", "spread")
    rows = [[escape(e.shown), *(_number(p.get(name)) for name in numbers)] for e, p in found]
    head = f"<h3>{escape(source.name)}</h3>" if several else ""
    on = found[0][1].get("on")
    said = f"{result.metric} of the chosen models" + (f", on the clients' {on}" if on else "")
    table = html_table(heads, rows, f"{result.metric} by client")
    strips = [
        Served(e.shown, colour_of(e), values) for e, p in found if (values := p.get("values"))
    ]
    if not strips:
        return f"{head}<p>{escape(said)}.</p>{table}"
    chart = strip_chart(strips, result.metric)
    by_client = html_table(
        ["client", *(one.label for one in strips)],
        [
            [str(i), *(_number(one.values[i]) for one in strips)]
            for i in range(min(ROWS, len(strips[0].values)))
        ],
        f"{result.metric} of each client",
    )
    return (
        f"{head}<p>{escape(said)}: a stroke a client, a diamond at their mean.</p>"
        f'<figure class="wide" tabindex="0">{chart}</figure>{table}{behind(by_client)}'
        f"{_gains([e for e, p in found if p.get('values')], strips, source)}"
    )


def _gains(entries: Sequence[Entry], strips: Sequence[Served], source: Source) -> str:
    """Show who is served better, and who worse, than by the reference."""
    if len(strips) < 2:
        return ""
    base = next((j for j, e in enumerate(entries) if e.name == REFERENCE), 0)
    reference, better = strips[base], 1 if source.result.goal.metric.higher else -1
    others = [
        (
            one,
            [
                (i, better * (mine - theirs))
                for i, (mine, theirs) in enumerate(zip(one.values, reference.values, strict=True))
                if mine is not None and theirs is not None
            ],
        )
        for one in strips
        if one is not reference
    ]
    y_range = extent([0.0, *(gain for _, gains in others for _, gain in gains)])
    figures = []
    for one, gains in others:
        if not any(abs(gain) > SAME for _, gain in gains):
            figures.append(f"<p>{escape(one.label)}: every client is served alike.</p>")
            continue
        title = f"{one.label} against {reference.label}"
        chart = gain_chart(gains, one.colour, f"gain in {source.result.metric}", title, y_range)
        said = f"<figcaption>{escape(_sentence(one.label, gains))}</figcaption>"
        figures.append(f"<figure>{chart}{said}</figure>")
    title = f"Who gains and who loses, against {reference.label}"
    return f'<h3>{escape(title)}</h3><div class="several">{"".join(figures)}</div>'


def _sentence(label: str, gains: Sequence[tuple[int, float]]) -> str:
    """Say how many gain and lose, and who most."""
    up, down = ([g for g in gains if sign * g[1] > SAME] for sign in (1, -1))
    said = f"{label}: {len(up)} of {len(gains)} clients gain"
    if up:
        most = max(up, key=lambda gain: gain[1])
        said += f" (client {most[0]} most, {most[1]:+.3g})"
    said += f", {len(down)} lose"
    if down:
        least = min(down, key=lambda gain: gain[1])
        said += f" (client {least[0]} most, {least[1]:+.3g})"
    return said + "."


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
