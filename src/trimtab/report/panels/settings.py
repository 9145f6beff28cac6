"""How the results were made, how to make them again, and where their files are."""

from html import escape
from typing import Any

from trimtab.core.display import format_number
from trimtab.problems.clients import ClientSummary
from trimtab.report.sources import Page, Source
from trimtab.report.style import html_table, section


def made(page: Page) -> str:
    """Show what a reader must know of the numbers."""
    facts = [f for source in page.sources if not source.underway for f in _notes(source)]
    notes = dict.fromkeys(facts)
    return section(
        "How it was made", "".join(f'<p class="small">{escape(note)}</p>' for note in notes)
    )


def _notes(source: Source) -> list[str]:
    about, facts = source.result.about, []
    if about.split == "given":
        facts.append("Tuned, stopped and compared on the validation data that were given.")
    elif about.split != "none":
        facts.append(
            f"Tuned, stopped and compared on {100 * float(about.split):g} % of each client's "
            f"samples, which were held out; the {about.tested_on} data were looked at once, at the "
            "chosen round."
        )
    if len(about.seeds) > 1:
        seeds = ", ".join(map(str, about.seeds))
        facts.append(f"Seeds {seeds}; the search had one of its own.")
    if about.budget is not None:
        facts.append(
            f"Each algorithm's search had {format_number(about.budget).strip()} sample gradients; "
            f"with the budget {about.budget:g} it can be repeated anywhere."
        )
    facts += [f"{note[:1].upper()}{note[1:]}" for note in about.notes]
    for entry in source.result.entries:
        facts += [f"{entry.shown}: not run: {'; '.join(entry.not_run)}."] if entry.not_run else []
    return facts


def settings(page: Page) -> str:
    """Show the exact settings, the versions, and the command; of several folders side by side."""
    facts = [_facts(source) for source in page.sources]
    names = dict.fromkeys(name for each in facts for name in each)
    heads = ["", *(source.name for source in page.sources)]
    rows = [
        [escape(name), *(escape(each.get(name, "-")) for each in facts)]
        for name in names
        if any(each.get(name) for each in facts)
    ]
    commands = {s.name: s.record["command"] for s in page.sources if s.record.get("command")}
    shown = "".join(
        f"<p>To make {escape(name)} again:</p><pre>{escape(command)}</pre>"
        for name, command in commands.items()
    )
    table = html_table(heads, rows, "Settings", "facts") if rows else ""
    return section("Settings", table + shown)


def _facts(source: Source) -> dict[str, str]:
    result, record = source.result, source.record
    given: dict[str, Any] = record.get("settings", {})
    facts = {"problem": result.problem, "metric": _metric(source)}
    if result.population is not None:
        facts |= _about_clients(result.population)
    facts["clients a round S"] = _text(given.get("S"))
    facts["seed"] = _text(given.get("seed"))
    facts["seeds reported"] = ", ".join(map(str, result.about.seeds))
    facts["held out"] = _text(result.about.split)
    for entry in result.entries:
        facts[f"{entry.shown} ({entry.label})"] = ", ".join(
            f"{name} = {value}" for name, value in entry.settings.items()
        )
    shown = ("problem", "S", "seed", "algorithms", "fingerprint", "split", "metric", "algorithm")
    facts |= {name: _text(value) for name, value in given.items() if name not in shown}
    executors = record.get("executors") or record.get("executor")
    facts["executor"] = _text(executors)
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


def data(page: Page) -> str:
    """Link the records and models beside the page, and offer its curves as a download."""
    several = len(page.sources) > 1
    items = "".join(
        f'<li><a href="{escape(where)}">'
        f"{escape((f'{source.name}: ' if several else '') + what)}</a></li>"
        for source in page.sources
        for what, where in page.files(source)
    )
    buttons = "".join(
        f'<button type="button" data-download="{kind}" hidden>Curves as {kind.upper()}</button>'
        for kind in ("csv", "json")
    )
    offered = f'<p class="downloads">{buttons}</p>' if page.curves else ""
    folders = [s.result.folder for s in page.sources if s.result.folder is not None]
    if page.path is None and folders:
        places = ", ".join(f"<code>{escape(str(folder))}</code>" for folder in folders)
        offered += f"<p>Records and models are in {places}.</p>"
    return section("Data and models", offered + (f"<ul>{items}</ul>" if items else ""))
