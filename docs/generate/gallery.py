"""The gallery: examples with their code and output, which tests compare; notebooks are run."""

import ast
import hashlib
import json
from html import escape
from pathlib import Path
from typing import Any

from docs.generate.links import ROOT, rewritten

EXAMPLES = ROOT / "examples"
# In the order of the page: what each shows, in a few words.
SHOWS = {
    "own_data": "your own tensors, weights and metric",
    "hospitals": "four hospitals: alone and together",
    "groups": "regression with clients as groups of a table",
    "own_algorithm": "an algorithm of your own, and the contract that accepts or refuses it",
    "own_loop": "SCAFFOLD in a training loop that you have",
    "flower": "SCAFFOLD in an app of Flower",
    "lora": "LoRA on a small language model",
    "td_learning": "TD learning, which is the gradient of no loss",
    "no_better": "three reasons why SCAFFOLD may be no better than FedAvg",
    "table3_small": "Table 3 of the SCAFFOLD paper in small",
    "data_to_advice": "from your tables to advice (notebook)",
    "scaffold_and_mime": "stragglers: SCAFFOLD against Mime with unequal clients (notebook)",
}
OUTPUTS = ROOT / "build" / "notebooks"  # what notebooks printed, by the digest of their cells


def pages() -> dict[str, str]:
    """Return the text of each page by its path on the site."""
    found = {name: _page(path) for name, path in _paths().items()}
    rows = [f"| [{_title(text)}]({name}.md) | {SHOWS[name]} |" for name, text in found.items()]
    said = "Each runs as it is shown; the tests run it, and hold its output."
    table = "\n".join(["| example | shows |", "|---|---|", *rows])
    index = f"# Gallery\n\n{said}\n\n{table}\n"
    return {"gallery/index.md": index} | {f"gallery/{n}.md": text for n, text in found.items()}


def _paths() -> dict[str, Path]:
    kinds = ("{}.py", "notebooks/{}.ipynb", "{}")
    places = {name: [EXAMPLES / kind.format(name) for kind in kinds] for name in SHOWS}
    return {name: next(p for p in paths if p.exists()) for name, paths in places.items()}


def _title(text: str) -> str:
    return text.removeprefix("# ").partition("\n")[0]


def _page(path: Path) -> str:
    page = f"gallery/{path.stem}.md"
    source = str(path.relative_to(ROOT))
    if path.is_dir():
        return _app(path)
    if path.suffix == ".ipynb":
        return rewritten(_notebook(path), source, page)
    return _script(path)


def _app(folder: Path) -> str:
    """Return the page of an app; the docstring of its package says what it does."""
    (package,) = folder.glob("*/__init__.py")
    title, _, rest = (ast.get_docstring(ast.parse(package.read_text("utf-8"))) or "").partition(
        "\n"
    )
    parts = [
        f"# {title.rstrip(chr(46))}",
        f"`{folder.relative_to(ROOT)}`",
        _fenced(rest.strip("\n")),
    ]
    for path in sorted(set(folder.glob("*/*.py")) - {package}):
        name = path.relative_to(folder)
        parts.append(f"## {name}\n\n```python\n{path.read_text('utf-8')}```")
    return "\n\n".join(parts) + "\n"


def _script(path: Path) -> str:
    text = path.read_text("utf-8")
    documentation = ast.get_docstring(ast.parse(text), clean=False) or ""
    title, _, rest = documentation.partition("\n")
    code = text.removeprefix(f'"""{documentation}"""').strip("\n")
    said = _fenced(rest.strip("\n"))
    where = f"`python examples/{path.name}`"
    return f"# {title.strip().rstrip('.')}\n\n{where}\n\n{said}\n\n```python\n{code}\n```\n"


def _fenced(text: str) -> str:
    """Return a docstring with its indented blocks, commands and output, between fences."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        indented = line.startswith("    ") or (inside and not line)
        if indented != inside:
            lines.append("```text" if indented else "```")
            if not indented and line:
                lines.append("")
        inside = indented
        lines.append(line.removeprefix("    ") if indented else line)
    return "\n".join([*lines, "```"] if inside else lines)


def _notebook(path: Path) -> str:
    cells = _run(path)
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        code = cell["cell_type"] == "code"
        parts.append(f"```python\n{text}\n```" if code else text)
        outputs = cell.get("outputs", ())
        shown = [one for one in outputs if one["output_type"] != "stream"]
        # What a cell shows first is progress, which its result replaces.
        parts += [_output(one) for one in outputs if one not in shown[:-1]]
    first, *rest = parts
    title, _, more = first.partition("\n")
    where = f"`{path.relative_to(ROOT)}`"
    return "\n\n".join(part for part in (title, where, more.strip(), *rest) if part) + "\n"


def _run(path: Path) -> list[dict[str, Any]]:
    """Return the cells with their outputs; without nbclient, which the extra dev has, without."""
    notebook = json.loads(path.read_text("utf-8"))
    digest = hashlib.sha256(json.dumps(notebook["cells"]).encode()).hexdigest()[:16]
    kept = OUTPUTS / f"{path.stem}-{digest}.json"
    if not kept.exists():
        try:
            import nbclient
            import nbformat
        except ImportError:
            return notebook["cells"]
        read = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(read, timeout=300).execute()
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(read["cells"]), "utf-8")
    return json.loads(kept.read_text("utf-8"))


def _output(output: dict[str, Any]) -> str:
    """Return what a cell printed or showed."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output.get("data", {})
    if "text/html" not in data:
        return f"```text\n{''.join(data.get('text/plain', ''))}\n```"
    # A frame of its own, so that styles of the output and of the page do not meet.
    shown = escape("".join(data["text/html"]), quote=True).replace("\n", "&#10;")
    return f'<iframe class="output" title="Output of the cell above" srcdoc="{shown}"></iframe>'
