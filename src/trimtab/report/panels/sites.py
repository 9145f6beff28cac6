"""The sites of a federation: who took part, what each sent, and why some sat out."""

from html import escape

from trimtab.core.display import format_bytes, format_seconds
from trimtab.report.sources import Page, Source
from trimtab.report.style import html_table, section


def sites(page: Page) -> str:
    """Show what each site did, and what it measured last."""
    several = len(page.sources) > 1
    return section("Sites", "".join(_of(source, several) for source in page.sources))


def _of(source: Source, several: bool) -> str:
    if not source.sites:
        return ""
    metrics = list(dict.fromkeys(name for site in source.sites for name in site.last))
    heads = ["site", "weight", "rounds", "sat out", "sent", "own work", *metrics, "why it sat out"]
    rows = [
        [
            *(escape(site.name), f"{site.weight:.4g}", str(site.rounds), str(site.absent)),
            *(format_bytes(site.bytes_up), format_seconds(site.seconds)),
            *(_number(site.last.get(name)) for name in metrics),
            escape(site.why) or "-",
        ]
        for site in source.sites
    ]
    head = f"<h3>{escape(source.name)}</h3>" if several else ""
    said = "The metrics are those of the model that each site was sent last."
    table = html_table(heads, rows, f"Sites of {source.name}", "remarks")
    return f'{head}{table}<p class="small">{said}</p>'


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
