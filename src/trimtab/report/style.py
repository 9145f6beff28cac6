"""How pages look: the frame of a page and its tables."""

from functools import cache
from html import escape
from importlib.resources import files

from trimtab._version import environment


def document(title: str, body: str, end: str = "") -> str:
    """Return a self-contained page: a title, what it holds, and the versions it was made with.

    end: what follows the body, such as data and the script that reads them.
    """
    facts = ", ".join(f"{name} {version}" for name, version in environment().items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{asset("page.css")}</style></head><body><main>
<h1>{escape(title)}</h1>
{body}
</main><footer><p class="small">Page written by {escape(facts)}.</p></footer>
{end}</body></html>
"""


@cache
def asset(name: str) -> str:
    """Return the style or the script of pages."""
    return files("trimtab.report").joinpath(name).read_text("utf-8")


def html_table(heads: list[str], rows: list[list[str]], name: str = "Table", kind: str = "") -> str:
    """Return a table that scrolls in its own box; the cells are HTML already, the heads are not."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{c}</td>" for c in row[1:]) + "</tr>"
        for row in rows
        if row
    )
    style = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">'
        f"<table{style}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def section(title: str, body: str) -> str:
    """Return a part of a page under its heading; nothing if it has nothing to show."""
    return f"<section><h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def behind(table: str, words: str = "The numbers") -> str:
    """Return a table that is opened when it is wanted."""
    return f"<details><summary>{escape(words)}</summary>{table}</details>"
