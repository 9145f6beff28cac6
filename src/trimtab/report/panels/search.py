"""What was searched: the metric against step size, K and eta_g, and where the best lies."""

from collections.abc import Callable, Sequence
from html import escape

from trimtab.report.charts.dots import Dot, Kind, dot_chart
from trimtab.report.charts.scales import extent
from trimtab.report.curves import colour_of
from trimtab.report.sources import Page, Source
from trimtab.report.style import behind, html_table, section
from trimtab.studies.entry import Candidate, Entry, settings_of_text

FAR = 4.0  # the worst quarter is left outside if it makes the axis > 4 times as long
_AXES: dict[str, Callable[[Candidate], float | None]] = {
    "step size": lambda c: c.step,
    "local steps K": lambda c: c.K,
    "server step eta_g": lambda c: c.eta_g,
    "momentum beta": lambda c: c.beta,
}
_HEADS = ["step size", "K", "eta_g", "beta", "outcome", "best"]


def search(page: Page) -> str:
    """Show what was tried for each algorithm, and how it went."""
    several = len(page.sources) > 1
    found = [
        (source, entry, entry.shown + (f" ({source.name})" if several else ""))
        for source in page.sources
        for entry in source.result.entries
        if len(_tried(entry)) > 1
    ]
    if not found:
        return ""
    charts = [_charts(source, entry, title) for source, entry, title in found]
    alone = [chart for each in charts if len(each) == 1 for chart in each]
    charts = [alone, *(each for each in charts if len(each) > 1)]
    grids = "".join(f'<div class="several">{"".join(each)}</div>' for each in charts)
    tables = "".join(
        behind(_table(_tried(entry), title), f"{title}: {len(_tried(entry))} candidates")
        for _, entry, title in found
    )
    searching = any(_goes_on(source, entry) for source, entry, _ in found)
    return section("Search", grids + _note(searching) + tables)


def _note(searching: bool) -> str:
    ring = "a ring is who is ahead so far" if searching else "a ring or diamond is the winner"
    return (
        '<p class="small">Each dot is a candidate, at the best value that it saw; the worse ones '
        f"were stopped early. The line joins the best at each setting, {ring}, a cross a run that "
        "diverged, a hollow dot at the edge one that is far worse.</p>"
    )


def _goes_on(source: Source, entry: Entry) -> bool:
    """Tell whether another candidate may still win: until then no run has another seed."""
    return source.underway and not entry.runs


def _tried(entry: Entry) -> Sequence[Candidate]:
    return entry.searched


def _charts(source: Source, entry: Entry, title: str) -> list[str]:
    """Return a chart for each setting of which more than one was tried."""
    tried, higher = _tried(entry), source.result.goal.metric.higher
    goes_on = _goes_on(source, entry)
    values = [c.best for c in tried if c.diverged_at is None and c.best is not None]
    y_log = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
    charts = []
    for name, setting in _AXES.items():
        dots = [
            Dot(at, c.best if c.diverged_at is None else None, _kind(entry, c, goes_on), _says(c))
            for c in tried
            if (at := setting(c)) is not None
        ]
        if len({dot.x for dot in dots}) > 1:
            chart = dot_chart(
                dots,
                name,
                source.result.metric,
                colour_of(entry),
                higher=higher,
                x_log=min(dot.x for dot in dots) > 0,
                y_log=y_log,
                y_range=_range(values, y_log, higher),
                title=title,
            )
            caption = f"<figcaption><b>{escape(title)}</b>: {escape(name)}</figcaption>"
            charts.append(f"<figure>{caption}{chart}</figure>")
    return charts


def _range(values: list[float], log: bool, higher: bool) -> tuple[float, float]:
    """Return the ends of the vertical axis; a few values far from the others are left outside."""
    order = sorted(values, reverse=higher)
    usual = order[: max(2, len(order) * 3 // 4)]
    far = len(order) > 3 and abs(order[-1] - order[0]) > FAR * abs(usual[-1] - order[0])
    return extent(usual if far and not log else order, log)


def _kind(entry: Entry, candidate: Candidate, goes_on: bool) -> Kind:
    if candidate.diverged_at is not None or candidate.best is None:
        return "diverged"
    settings = entry.settings
    same = settings.get(entry.step) == candidate.step and all(
        value is None or settings.get(name) == value
        for name, value in (("K", candidate.K), ("eta_g", candidate.eta_g))
    )
    base = settings_of_text(str(settings.get("base", "")))
    beta = candidate.beta is None or base.get("beta") == candidate.beta
    if not (same and beta):
        return "run"
    if goes_on:
        return "leader"
    return "fragile" if entry.fragile else "winner"


def _says(candidate: Candidate) -> str:
    parts = [f"step size {_number(candidate.step)}"]
    for name in ("K", "eta_g", "beta"):
        value = getattr(candidate, name)
        parts += [] if value is None else [f"{name} {value:g}"]
    return f"{', '.join(parts)}: {_outcome(candidate)}, best {_number(candidate.best)}"


def _table(tried: Sequence[Candidate], title: str) -> str:
    order = sorted(tried, key=lambda c: (c.K or 0, c.eta_g or 0.0, c.beta or 0.0, c.step or 0.0))
    rows = [
        [
            *(_number(value) for value in (c.step, c.K, c.eta_g, c.beta)),
            escape(_outcome(c)),
            _number(c.best),
        ]
        for c in order
    ]
    kept = [j for j in range(len(_HEADS)) if any(row[j] != "-" for row in rows)]
    heads = [_HEADS[j] for j in kept]
    return html_table(heads, [[row[j] for j in kept] for row in rows], f"Candidates of {title}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _outcome(candidate: Candidate) -> str:
    if candidate.diverged_at:
        return f"diverged at round {candidate.diverged_at}"
    if candidate.rounds:
        return f"target met at round {candidate.rounds}"
    return f"stopped after {candidate.ran} rounds"
