"""How pages and plots look. No plotting library is needed to know it."""

from html import escape
from typing import Any

from trimtab._version import environment

CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto;
       padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.advice { background: #e9f4f5; border-left: 4px solid #00798c; padding: .7rem 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto; white-space: nowrap }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #e5e5e5 }
th:first-child, td:first-child { text-align: left } th { font-weight: 600; color: #555 }
.plot svg { width: 100%; height: auto } .small { color: #666; font-size: .85rem }
details { margin: .3rem 0 } summary { cursor: pointer }
"""
PLOTS: dict[Any, Any] = {  # matplotlib's settings
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "trimtab",
}


def document(title: str, body: str) -> str:
    """Return a self-contained page: a title, what it holds, and the versions it was made with."""
    facts = ", ".join(f"{name} {version}" for name, version in environment().items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{CSS}</style></head><body>
<h1>{escape(title)}</h1>
{body}
<p class="small">{escape(facts)}</p>
</body></html>
"""


def html_table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table; the cells are HTML already."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
