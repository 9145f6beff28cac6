"""Equations: an indented block of a page, as readers of the source see it, becomes MathML.

A block has one equation a line, in the notation of the code (`x <- x + eta_g mean (y - x)`), and
notes to the right of three or more spaces. Greek names, subscripts and arrows become symbols;
any other word of two letters or more stays a word.
"""

import re
from html import escape

from latex2mathml.converter import convert

_GREEK = ("alpha", "beta", "delta", "gamma", "mu", "sigma", "tau", "zeta")
_SYMBOLS = {
    **{name: rf"\{name} " for name in _GREEK},
    "eta": r"\eta ",
    "eta_l": r"\eta_l ",
    "eta_g": r"\eta_g ",
    "eps": r"\varepsilon ",
    "b1": r"\beta_1 ",
    "b2": r"\beta_2 ",
    "xp": r"x_p ",
    "cp": r"c_p ",
    "Delta": r"\Delta ",
    "grad": r"\nabla ",
    "sum_i": r"\sum_i ",
    "sum": r"\sum ",
    "x_inf": r"x_\infty ",
    "inf": r"\infty ",
    "dx": r"\Delta x ",
    "dc": r"\Delta c ",
    **{name: rf"\operatorname{{{name}}} " for name in ("mean", "share", "min", "max", "sign")},
    "Hess": r"\operatorname{Hess} ",
    "norm": r"\operatorname{norm} ",
    "I": r"\text{ I }",  # the number of an option
}
_TOKEN = re.compile(
    r"(?P<arrow><-)|(?P<leq><=)|(?P<geq>>=)|(?P<root>sqrt\s+)|(?P<hat>[mv]\^(?![\w(\-{]))"
    r"|(?P<power>\^-?\w+'?)|(?P<star>\\?\*)|(?P<word>mean(?= of)|[a-z]{2,}-[a-z]{2,})"
    r"|(?P<name>[A-Za-z]\w*'?)|(?P<rest>.)"
)


def blocks_as_mathml(text: str) -> str:
    """Return a page with its indented blocks as MathML; what is between fences stays as it is.

    >>> page = "Moves:" + chr(10) * 2 + "    x <- x + eta_g dx" + chr(10) * 2 + "and so on"
    >>> "&#x003B7;</mi>" in blocks_as_mathml(page)
    True
    """
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    block = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
    return "".join(
        part if part.startswith("```") else block.sub(lambda m: _block(m[0]), part)
        for part in parts
    )


def _block(source: str) -> str:
    rows = [_cells(line[4:]) for line in source.rstrip("\n").split("\n") if line.strip()]
    columns = sorted({column for row in rows for column in row})
    body = r" \\ ".join(" & ".join(row.get(c, "{}") for c in columns) for row in rows)
    left = "l" * len(columns)
    made = convert(rf"\begin{{array}}{{{left}}}{body}\end{{array}}", display="block")
    label = escape(" ".join(source.split()), quote=True)
    # A phone scrolls the block sideways, so the keyboard must reach it.
    head = f'<div class="equation" tabindex="0" role="region" aria-label="Equations: {label}">'
    return f"{head}{made}</div>\n\n"


def _cells(line: str) -> dict[int, str]:
    """Return the LaTeX of a line by the columns where its parts begin.

    A continued equation, which is indented further, begins in the first column after a space.
    """
    line = re.sub(r";   +", "; ", line)
    parts = list(re.finditer(r"\S(?:.*?\S)??(?=\s{3,}|$)", line))
    space = r"\quad\quad " if parts[0].start() else ""
    return {0: space + latex(parts[0][0])} | {m.start(): latex(m[0]) for m in parts[1:]}


def latex(text: str) -> str:
    r"""Return the LaTeX of an equation in the notation of the code; words become text.

    >>> latex("y <- y - eta_l (g_i(y, k) - c_i + c)")
    'y \\leftarrow y - \\eta_l (g_i(y, k) - c_i + c)'
    >>> latex("c_i_new = mean of the raw gradients")
    'c_i^+ = \\text{ mean of the raw gradients}'
    """
    out, pending = [], ""
    for match in _TOKEN.finditer(text):
        token, kind = match[0], match.lastgroup
        if kind == "root":
            pending = "root"
            continue
        made = _one(token, kind or "rest")
        if pending and token.strip():
            made, pending = rf"\sqrt{{{made}}}", ""
        out.append(made)
    joined = re.sub(r"\s*}\s*\\text{\s*", " ", "".join(out))  # words that follow each other
    joined = re.sub(r"^\\text{ |(?<=[(-])\\text{ ", r"\\text{", joined)
    return re.sub(r" +", " ", re.sub(r" }(?=[,)]|$)", "}", joined)).strip()


def _one(token: str, kind: str) -> str:
    match kind:
        case "arrow":
            return r"\leftarrow "
        case "leq" | "geq":
            return r"\leq " if kind == "leq" else r"\geq "
        case "hat":
            return rf"\hat{{{token[0]}}}"
        case "power":
            return f"^{{{_one(token[1:], 'name') if token[1:2].isalpha() else token[1:]}}}"
        case "star":
            return r"^\star "
        case "word":
            return rf"\text{{ {token} }}"
        case "name":
            return _name(token)
    return {"…": r"\ldots ", ";": r";\quad ", "&": r"\& ", "%": r"\% ", "_": r"\_"}.get(
        token, token
    )


def _name(token: str) -> str:
    if token in _SYMBOLS:
        return _SYMBOLS[token]
    prime = "'" if token.endswith("'") else ""
    base, *rest = token.removesuffix("'").split("_")
    if base in _SYMBOLS or len(base) == 1:
        symbol = _SYMBOLS.get(base, base).strip()
        below = f"_{{{rest[0]}}}" if len(rest) == 1 and rest[0] != "i" else "_i" if rest else ""
        if rest == ["i", "new"]:
            below = "_i^+"
        return f"{symbol}{below}{prime}" + (" " if symbol.startswith("\\") else "")
    return rf"\text{{ {token.replace('_', ' ')} }}"
