"""The clients: their samples and labels, the models' metric on each; the sites of a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from trimtab.core.display import format_bytes, format_seconds
from trimtab.core.sections import Section, Table
from trimtab.problems.clients import ClientSummary
from trimtab.report.charts.bars import Bar, bar_chart
from trimtab.report.charts.scales import axis_ends
from trimtab.report.charts.strips import ClientMetric, label_chart, strip_chart
from trimtab.report.curves import colour_of
from trimtab.studies.comparison import Comparison

REFERENCE = "fedavg"  # the algorithm that others are compared with, if it is there
SAME = 1e-12  # smaller differences are rounding, and no gain or loss
ROWS = 200  # clients or sites in a table; more would make pages large

# -- samples and labels


def client_sections(results: Sequence[tuple[str, Comparison]]) -> list[Section]:
    """Return how many samples each client has, and of which labels.

    results: the results with their names.
    """
    known: dict[ClientSummary, list[str]] = {}
    for name, result in results:
        if result.population is not None and result.population.sizes:
            known.setdefault(result.population, []).append(name)
    several = len(results) > 1
    parts = [_samples(p, ", ".join(names) if several else "") for p, names in known.items()]
    return [Section("Clients", parts=parts)]


def _samples(population: ClientSummary, title: str) -> Section:
    sizes, labels = population.sizes, population.labels
    who = "One client" if population.N == 1 else f"{population.N} clients"
    sentence = f"{who} with {_span(min(sizes), max(sizes))} samples"
    if labels is not None:
        held = sorted(sum(count > 0 for count in row) for row in labels)
        sentence += f", {_span(held[0], held[-1])} of {len(labels[0])} labels each"
    heads = ["client", "samples", *(f"label {j}" for j in range(len(labels[0]) if labels else 0))]
    rows = [
        [str(i), str(size), *(map(str, labels[i]) if labels else ())]
        for i, size in enumerate(sizes[:ROWS])
    ]
    chart = f'<figure class="wide" tabindex="0">{label_chart(sizes, labels)}</figure>'
    table = Table(heads, rows, folded="The samples of each client")
    return Section(title, [f"{sentence}."], table, figure=chart)


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


# -- the metric on each client


def client_metric_sections(results: Sequence[tuple[str, Comparison]]) -> list[Section]:
    """Return the metric of the chosen models on each client: the worst, the gains and losses.

    results: the results with their names.
    """
    several = len(results) > 1
    parts = [part for name, r in results for part in _client_metric(r, name if several else "")]
    return [Section("The metric on each client", parts=parts)]


def _client_metric(result: Comparison, title: str) -> list[Section]:
    found = [(entry, entry.per_client) for entry in result.entries if entry.per_client]
    if not found:
        return []
    both = any(own.get("own_mean") is not None for _, own in found)
    mean = "mean (pooled / own statistics)" if both else "mean"
    heads = ["algorithm", mean, "worst tenth", "worst", "client", "spread"]
    names = ("worst_tenth", "worst", "worst_client", "spread")
    rows = [
        [entry.shown, _means(own), *(_number(own.get(name)) for name in names)]
        for entry, own in found
    ]
    on = found[0][1].get("on")
    sentence = f"{result.metric} of the chosen models" + (f", on the clients' {on}" if on else "")
    values = [(entry, own["values"]) for entry, own in found if own.get("values")]
    if not values:
        return [Section(title, [f"{sentence}."], Table(heads, rows))]
    models = [ClientMetric(entry.shown, colour_of(entry), own) for entry, own in values]
    by_client = [
        [str(i), *(_number(model.values[i]) for model in models)]
        for i in range(min(ROWS, len(models[0].values)))
    ]
    folded = Table(
        ["client", *(model.label for model in models)],
        by_client,
        folded=f"{result.metric} of each client",
    )
    chart = strip_chart(models, result.metric)
    figure = f'<figure class="wide" tabindex="0">{chart}</figure>'
    sentence += ": a stroke per client, a diamond at their mean."
    base = next((j for j, (entry, _) in enumerate(values) if entry.name == REFERENCE), 0)
    parts = [Section(table=folded), *_gains(models, base, result)]
    return [Section(title, [sentence], Table(heads, rows), figure=figure, parts=parts)]


def _means(own: Mapping[str, Any]) -> str:
    """Return the mean, and the one with each client's own statistics of BatchNorm if it differs."""
    mean, other = _number(own.get("mean")), own.get("own_mean")
    return mean if other is None else f"{mean} / {_number(other)}"


def _gains(models: Sequence[ClientMetric], base: int, result: Comparison) -> list[Section]:
    """Return how much better or worse each client fares than with the reference."""
    if len(models) < 2:
        return []
    reference, better = models[base], 1 if result.goal.metric.higher else -1
    others = [
        (
            model,
            [
                (i, better * (mine - theirs))
                for i, (mine, theirs) in enumerate(zip(model.values, reference.values, strict=True))
                if mine is not None and theirs is not None
            ],
        )
        for j, model in enumerate(models)
        if j != base
    ]
    ends = axis_ends([0.0, *(gain for _, gains in others for _, gain in gains)])
    figures, alike = [], []
    for model, gains in others:
        if not any(abs(gain) > SAME for _, gain in gains):
            alike.append(f"{model.label}: the metric of every client is the same.")
            continue
        bars = [Bar(str(i), gain) for i, gain in sorted(gains, key=lambda one: -one[1])]
        what, title = f"gain in {result.metric}", f"{model.label} against {reference.label}"
        chart = bar_chart(bars, what, "clients, by their gain", model.colour, title, ends, 330)
        caption = f"<figcaption>{escape(_sentence(model.label, gains))}</figcaption>"
        figures.append(f"<figure>{chart}{caption}</figure>")
    grid = f'<div class="several">{"".join(figures)}</div>' if figures else ""
    return [Section(f"Gains and losses against {reference.label}", alike, figure=grid)]


def _sentence(label: str, gains: Sequence[tuple[int, float]]) -> str:
    up, down = ([g for g in gains if sign * g[1] > SAME] for sign in (1, -1))
    text = f"{label}: {len(up)} of {len(gains)} clients gain"
    if up:
        most = max(up, key=lambda gain: gain[1])
        text += f" (client {most[0]} most, {most[1]:+.3g})"
    text += f", {len(down)} lose"
    if down:
        least = min(down, key=lambda gain: gain[1])
        text += f" (client {least[0]} most, {least[1]:+.3g})"
    return f"{text}."


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# -- the sites of a federation


@dataclass(frozen=True)
class SiteFacts:
    """What the server knows of a site at the end: its weight and its part in the rounds."""

    name: str
    weight: float
    rounds: int = 0  # in which it took part
    bytes_up: int = 0
    seconds: float = 0.0  # of its own work
    last: dict[str, float | None] | None = None  # its metrics in its last round
    absent: int = 0  # rounds in which it did not take part
    why: str = ""  # why it did not in the last of them


def site_section(name: str, sites: Sequence[SiteFacts]) -> Section:
    """Return a table of the sites of a federation; name: the title of the section."""
    metrics = list(dict.fromkeys(key for site in sites for key in site.last or ()))
    heads = ["site", "weight", "rounds", "absent", "sent", "own work", *metrics, "why absent"]
    rows = [
        [
            *(site.name, f"{site.weight:.4g}", str(site.rounds), str(site.absent)),
            *(format_bytes(site.bytes_up), format_seconds(site.seconds)),
            *(_number((site.last or {}).get(key)) for key in metrics),
            site.why or "-",
        ]
        for site in sites[:ROWS]
    ]
    note = "The metrics are those of the last model that the site received."
    return Section(name, table=Table(heads, rows, kind="remarks"), notes=[note])
