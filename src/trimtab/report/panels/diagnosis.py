"""The diagnosis, where a folder has one: its advice, how sure it is, and why."""

from html import escape
from typing import Any

from trimtab.report.sources import Page
from trimtab.report.style import behind, html_table, section


def diagnosis(page: Page) -> str:
    """Show what `diagnosis.json` says, of each folder that has one."""
    known = {s.name: s.diagnosis for s in page.sources if s.diagnosis is not None}
    return section("Diagnosis", "".join(_of(n, d) for n, d in (known | page.diagnoses).items()))


def _of(name: str, found: dict[str, Any]) -> str:
    doubts = [*found.get("doubts", ()), *found.get("cut", ())]
    reasons = " ".join([*found.get("reasons", ()), found.get("about_K") or ""]).strip()
    sure = found.get("sure") or ""
    items = "".join(f"<li>{escape(str(doubt))}</li>" for doubt in doubts)
    numbers = [
        [escape(key), escape(f"{value:.4g}" if isinstance(value, float) else str(value))]
        for key, value in found.items()
        if isinstance(value, int | float | str) and key not in ("advice", "sure", "about_K", "page")
    ]
    return (
        f'<h3>{escape(name)}</h3><div class="advice"><p><b>{escape(found.get("advice", ""))}</b>'
        f"</p><p>{escape(reasons)}</p>{f'<p>How sure: {escape(sure)}</p>' if sure else ''}</div>"
        f"{f'<ul>{items}</ul>' if items else ''}"
        f"{behind(html_table(['number', 'value'], numbers, f'Numbers of {name}', 'facts'))}"
    )
