"""The search of each algorithm: its candidates against step size, K, eta_g and momentum."""

from collections.abc import Callable, Sequence
from html import escape

from trimtab.core.sections import Section, Table
from trimtab.report.charts.bars import Dot, DotKind, dot_chart
from trimtab.report.charts.scales import axis_ends
from trimtab.report.curves import colour_of
from trimtab.studies.comparison import Comparison
from trimtab.studies.entry import Candidate, Entry, all_settings

# The worst quarter of the values is left outside if it makes the axis more than 4 times as long.
FAR = 4.0
_AXES: dict[str, Callable[[Candidate], float | None]] = {
    "step size": lambda c: c.step,
    "local steps K": lambda c: c.K,
    "server step eta_g": lambda c: c.eta_g,
    "momentum beta": lambda c: c.beta,
}
_HEADS = ("step size", "K", "eta_g", "beta", "outcome", "best")


def search_sections(results: Sequence[tuple[str, Comparison]]) -> list[Section]:
    """Return charts and tables of the candidates.

    results: the results with their names.
    """
    found = [
        (result, entry, entry.shown + (f" ({name})" if len(results) > 1 else ""))
        for name, result in results
        for entry in result.entries
        if len(_tried(entry)) > 1
    ]
    if not found:
        return []
    charts = [_charts(result, entry, title) for result, entry, title in found]
    # Algorithms with a single chart share a row; the charts of the others stay together.
    single = [chart for each in charts if len(each) == 1 for chart in each]
    rows = [single, *(each for each in charts if len(each) > 1)]
    figure = "".join(f'<div class="several">{"".join(row)}</div>' for row in rows)
    tables = [Section(table=_table(_tried(entry), title)) for _, entry, title in found]
    searching = any(_is_searching(result, entry) for result, entry, _ in found)
    return [Section("Search", figure=figure, notes=[_note(searching)], parts=tables)]


def _note(searching: bool) -> str:
    ring = "a ring is the best so far" if searching else "a ring or diamond is the winner"
    return (
        "Each dot is a candidate, at the best value that it reached; the worse ones were stopped "
        f"early. The line joins the best of each setting, {ring}, a cross a run that diverged, a "
        "hollow dot at the edge one that is far worse."
    )


def _is_searching(result: Comparison, entry: Entry) -> bool:
    """Return whether another candidate may still win: report seeds run for the winner only."""
    return not result.about.finished and not entry.runs


def _tried(entry: Entry) -> list[Candidate]:
    """Return the candidates that have run; the time of others ran out."""
    return [candidate for candidate in entry.searched if candidate.ran]


def _charts(result: Comparison, entry: Entry, title: str) -> list[str]:
    """Return a chart for each setting that was searched."""
    higher, searching = result.goal.metric.higher, _is_searching(result, entry)
    tried = _tried(entry)
    values = [c.best for c in tried if c.diverged_at is None and c.best is not None]
    y_log = bool(values) and min(values) > 0 and max(values) > 10 * min(values)
    charts = []
    for name, setting in _AXES.items():
        dots = [
            Dot(
                at,
                c.best if c.diverged_at is None else None,
                dot_kind(entry, c, searching),
                _description(c),
            )
            for c in tried
            if (at := setting(c)) is not None
        ]
        if len({dot.x for dot in dots}) > 1:
            chart = dot_chart(
                dots,
                name,
                result.metric,
                colour_of(entry),
                higher=higher,
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
    return axis_ends(usual if far and not log else order, log)


def dot_kind(entry: Entry, candidate: Candidate, searching: bool) -> DotKind:
    """Return what a candidate is; searching: whether another one may still win."""
    if candidate.diverged_at is not None or candidate.best is None:
        return "diverged"
    settings = all_settings(entry)
    searched = {name: getattr(candidate, name) for name in ("K", "eta_g", "beta")}
    if settings.get(entry.step) != candidate.step or any(
        value is not None and settings.get(name) != value for name, value in searched.items()
    ):
        return "run"
    if searching:
        return "leader"
    return "fragile" if entry.fragile else "winner"


def _description(candidate: Candidate) -> str:
    parts = [f"step size {_number(candidate.step)}"]
    for name in ("K", "eta_g", "beta"):
        value = getattr(candidate, name)
        parts += [] if value is None else [f"{name} {value:g}"]
    return f"{', '.join(parts)}: {_outcome(candidate)}, best {_number(candidate.best)}"


def _table(tried: Sequence[Candidate], title: str) -> Table:
    order = sorted(tried, key=lambda c: (c.K or 0, c.eta_g or 0.0, c.beta or 0.0, c.step or 0.0))
    rows = [
        [*map(_number, (c.step, c.K, c.eta_g, c.beta)), _outcome(c), _number(c.best)] for c in order
    ]
    kept = [j for j in range(len(_HEADS)) if any(row[j] != "-" for row in rows)]
    cells = [[row[j] for j in kept] for row in rows]
    return Table([_HEADS[j] for j in kept], cells, folded=f"{title}: {len(tried)} candidates")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _outcome(candidate: Candidate) -> str:
    if candidate.diverged_at:
        return f"diverged at round {candidate.diverged_at}"
    if candidate.rounds:
        return f"target met at round {candidate.rounds}"
    return f"stopped after {candidate.ran} rounds"
