"""A comparison's table in other people's formats."""

import csv
from html import escape
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from trimtab.studies.columns import bold, columns

if TYPE_CHECKING:
    from trimtab.studies.comparison import Comparison

_SPECIAL = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}
_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


def rows(result: "Comparison") -> list[dict[str, Any]]:
    """Return one row an algorithm: whole numbers and labels, nothing shortened."""
    made = []
    for entry in result.entries:
        low, high = entry.interval or (None, None)
        made.append(
            {
                "algorithm": entry.name,
                "label": entry.label,
                **{name: entry.settings.get(name) for name in ("K", "eta_g")},
                "step": entry.settings.get(entry.step),
                **{n: getattr(entry, n) for n in ("rounds", "exchanges", "bytes", "work")},
                **{"rounds_low": low, "rounds_high": high, "seconds": entry.seconds},
                **{"reached": entry.reached, "seeds": len(entry.runs), "best": entry.best},
                **{"test": entry.test, "diverged_at": entry.diverged_at, "fragile": entry.fragile},
            }
        )
    return made


def to_csv(result: "Comparison") -> str:
    """Return the rows as CSV, with a head."""
    text = StringIO()
    made = rows(result)
    writer = csv.DictWriter(text, list(made[0]) if made else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


def to_pandas(result: "Comparison") -> Any:
    """Return the rows as a DataFrame."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ValueError(
            "to_pandas needs pandas, which is not installed; run pip install pandas, or use to_csv."
        ) from None
    return pandas.DataFrame(rows(result))


def to_latex(result: "Comparison") -> str:
    """Return the table for a paper: booktabs, the best of each column bold."""
    heads = columns(result)
    best = bold(result)
    form = "l" + "r" * (len(heads) - 1)
    lines = [rf"\begin{{tabular}}{{{form}}}", r"\toprule"]
    lines += [" & ".join(escaped(column.title) for column in heads) + r" \\", r"\midrule"]
    for row, entry in enumerate(result.entries):
        cells = [escaped(column.text(entry).strip()) for column in heads]
        marked = [
            rf"\textbf{{{cell}}}" if row in best.get(place, ()) else cell
            for place, cell in enumerate(cells)
        ]
        lines.append(" & ".join(marked) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def to_html(result: "Comparison") -> str:
    """Return advice and table for a notebook: the best of each column bold, every text escaped."""
    shown, best = columns(result), bold(result)
    head = "".join(f"<th>{escape(column.title)}</th>" for column in shown)
    rows = []
    for j, entry in enumerate(result.entries):
        texts = [escape(column.text(entry)) for column in shown]
        cells = [f"<b>{t}</b>" if j in best.get(place, ()) else t for place, t in enumerate(texts)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div><p><b>{escape(result.advice)}</b></p>{table}</div>"


def escaped(text: str) -> str:
    r"""Return text that LaTeX shows as it is.

    >>> escaped("90 % of a_b")
    '90 \\% of a\\_b'
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text).replace("…", r"\ldots{}")
