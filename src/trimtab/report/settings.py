"""The settings of results, the command that repeats them, and the files beside the page."""

from collections.abc import Mapping, Sequence
from html import escape
from os.path import relpath
from pathlib import Path
from typing import Any

from trimtab.core.sections import Section, Table
from trimtab.problems.clients import ClientSummary
from trimtab.report.sources import Source
from trimtab.studies.record import SELECTION
from trimtab.studies.sections import seeds_text

_FILES = {  # that may be in a folder, or in that of an algorithm
    "model.safetensors": "model after the last round",
    "best.safetensors": "model after the best round",
    "rounds.jsonl": "rounds",
    "run.json": "record",
    "compare.json": "record",
    "diagnosis.json": "diagnosis",
}

# -- settings


def settings_section(sources: Sequence[Source]) -> Section:
    """Return the settings, the versions and the command; of several results side by side."""
    facts = [_facts(source) for source in sources]
    names = dict.fromkeys(name for each in facts for name in each)
    rows = [
        [name, *(each.get(name, "-") for each in facts)]
        for name in names
        if any(each.get(name) for each in facts)
    ]
    table = Table(["", *(source.name for source in sources)], rows, kind="facts") if rows else None
    commands = {s.name: s.record["command"] for s in sources if s.record.get("command")}
    figure = "".join(
        f"<p>To repeat {escape(name)}:</p><pre>{escape(command)}</pre>"
        for name, command in commands.items()
    )
    return Section("Settings", table=table, parts=[Section(figure=figure)])


def _facts(source: Source) -> dict[str, str]:
    result, record = source.result, source.record
    given: dict[str, Any] = record.get("settings", {})
    facts = {"problem": result.problem, "metric": _metric(source)}
    facts["target from"] = result.about.target_from
    if result.population is not None:
        facts |= _about_clients(result.population)
    facts["clients per round S"] = _text(given.get("S"))
    facts["seed"] = _text(given.get("seed"))
    facts["report seeds"] = seeds_text(result.about.seeds)
    facts["held out"] = _text(result.about.split)
    facts["budget of each algorithm"] = _text(result.about.budget)
    facts["cost of a round besides its own"] = _text(result.about.round_cost or None)
    for entry in result.entries:
        facts[f"{entry.shown} ({entry.label})"] = ", ".join(
            f"{name} = {value}" for name, value in entry.settings.items()
        )
    shown = ("problem", "S", "seed", "algorithms", "fingerprint", "split", "metric", "algorithm")
    facts |= {name: _text(value) for name, value in given.items() if name not in shown}
    facts["executor"] = _text(record.get("executors") or record.get("executor"))
    facts["threads"] = _text(record.get("threads"))
    facts |= {name: _text(value) for name, value in record.get("versions", {}).items()}
    facts["started"] = _text(record.get("started"))
    return facts


def _metric(source: Source) -> str:
    goal = source.result.goal
    way = "more" if goal.metric.higher else "less"
    target = "" if goal.target is None else f", target {goal.target:g}"
    return f"{goal.name} ({way} is better){target}"


def _about_clients(population: ClientSummary) -> dict[str, str]:
    batches, weights = population.batches, population.weights
    facts = {"clients N": str(population.N), "parameters d": f"{population.d:,}"}
    if batches:
        facts["mini-batch"] = _span(min(batches), max(batches)) + " samples"
    if weights:
        facts["weights p_i"] = _span(min(weights), max(weights))
        facts["weights p_i"] += f" ({population.weighing})" if population.weighing else ""
    return facts


def _span(low: float, high: float) -> str:
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        if len(set(map(str, value.values()))) == 1:
            return str(next(iter(value.values())))
        return ", ".join(f"{name}: {one}" for name, one in value.items())
    return str(value)


# -- files


def files_section(sources: Sequence[Source], path: Path | None, with_curves: bool) -> Section:
    """Return links to records and models, and buttons that download the curves.

    path: the file of the page; None if it is not written.
    """
    several = len(sources) > 1
    items = "".join(
        f'<li><a href="{escape(where)}">'
        f"{escape((f'{source.name}: ' if several else '') + what)}</a></li>"
        for source in sources
        for what, where in _files(source, path)
    )
    buttons = "".join(
        f'<button type="button" data-download="{kind}" hidden>Curves as {kind.upper()}</button>'
        for kind in ("csv", "json")
    )
    offered = f'<p class="downloads">{buttons}</p>' if with_curves else ""
    return Section("Data and models", figure=offered + (f"<ul>{items}</ul>" if items else ""))


def _files(source: Source, path: Path | None) -> list[tuple[str, str]]:
    """Return the files of a result: what each is, and its address on the page."""
    folder = source.result.folder
    if folder is None or path is None:
        return []
    places = [(folder, "")]
    places += [(folder / entry.label, f"{entry.shown}: ") for entry in source.result.entries]
    return [
        (
            whose + what + _selection(source, name),
            Path(relpath(place / name, path.parent)).as_posix(),
        )
        for place, whose in places
        for name, what in _FILES.items()
        if (place / name).exists()
    ]


def _selection(source: Source, name: str) -> str:
    """Return on which data the model was chosen, for the file of the best round.

    A model that was chosen on the test data looks better there than it is.
    """
    if name != "best.safetensors":
        return ""
    about, on = source.result.about, source.record.get("selected_on")
    if on is None:
        on = about.tested_on if about.split == "none" else "validation"
    return f", {SELECTION[on]}" if on in SELECTION else ""


# -- the diagnosis beside a result


def diagnosis_sections(diagnoses: Mapping[str, dict[str, Any]]) -> list[Section]:
    """Return the contents of `diagnosis.json`, by the name of the folder."""
    return [Section("Diagnosis", parts=[_diagnosis(n, d) for n, d in diagnoses.items()])]


def _diagnosis(name: str, found: dict[str, Any]) -> Section:
    reasons = " ".join(found.get("reasons", ()))
    sure = found.get("sure") or ""
    rows = [
        [key, f"{value:.4g}" if isinstance(value, float) else str(value)]
        for key, value in found.items()
        if isinstance(value, int | float | str) and key not in ("advice", "sure", "saving", "page")
    ]
    said = [found.get("advice", ""), reasons, f"How sure: {sure}" if sure else ""]
    doubts = [str(doubt) for doubt in (*found.get("doubts", ()), *found.get("cut", ()))]
    table = Table(["number", "value"], rows, folded="The numbers", kind="facts")
    parts = [Section(sentences=doubts, kind="list"), Section(table=table)]
    return Section(name, [sentence for sentence in said if sentence], parts=parts, kind="answer")
