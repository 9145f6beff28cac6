"""The question, the answer in one sentence, and how sure it is."""

from html import escape

from trimtab.report.sources import Page, Source
from trimtab.report.table import wanted
from trimtab.studies.entry import listed
from trimtab.studies.goal import UNIT_TITLES


def answer(page: Page) -> str:
    """Show what was asked, what to use, and how sure that is."""
    return "".join(_of(source, len(page.sources) > 1) for source in page.sources)


def _of(source: Source, several: bool) -> str:
    name = f"<h3>{escape(source.name)}</h3>" if several else ""
    sure = f"<p>How sure: {escape(_how_sure(source))}</p>"
    return f"""{name}<div class="advice"><p class="question">{escape(_question(source))}</p>
<p><b>{escape(source.result.advice)}</b></p>{sure}</div>"""


def _question(source: Source) -> str:
    result = source.result
    names = [entry.shown for entry in result.entries if not entry.baseline]
    if not names:
        return f"Which algorithm is best on {result.problem}?"
    if len(names) == 1:
        return f"How does {names[0]} do on {result.problem}?"
    words = UNIT_TITLES[result.goal.unit]
    aim = wanted(result)
    return f"Which of {listed(names)} gets to {aim} on {result.problem} with the fewest {words}?"


def _how_sure(source: Source) -> str:
    """Say what the numbers rest on, and what was not looked at."""
    if source.underway:
        return "not at all yet, for it goes on; this page follows it."
    result, about = source.result, source.result.about
    seeds = max((len(entry.runs) for entry in result.entries), default=0)
    said = [
        f"{seeds} seeds that the search had not seen"
        if seeds > 1
        else "one seed, so that chance is not measured"
    ]
    if about.split == "none":
        said.append("nothing was held out to choose by")
    elif about.split == "given":
        said.append(f"chosen by validation data, scored on {about.tested_on} data")
    else:
        said.append(f"chosen by {100 * float(about.split):g} % of the rows, which were held out")
    if not about.complete:
        said.append("the search ran out of time")
    if any("budget" in what for entry in result.entries for what in entry.not_run):
        said.append("parts of the search were left out for lack of budget")
    fragile, firm = ([e.shown for e in result.entries if e.fragile is is_] for is_ in (True, False))
    if fragile:
        said.append(f"fragile where the start moves by a millionth: {listed(fragile)}")
    if firm:
        said.append(f"the same where the start moves by a millionth: {listed(firm)}")
    return "; ".join(said) + "."
