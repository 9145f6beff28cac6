"""The gallery: every example with its code, and its output, which a test compares."""

import ast
import json
from pathlib import Path

from docs.generate.links import ROOT, rewritten

EXAMPLES = ROOT / "examples"
# In the order of the page: what each shows, in a few words.
SHOWS = {
    "quickstart": "SCAFFOLD against FedAvg in twenty lines",
    "drift": "client drift in the plane, from a real run",
    "no_better": "three reasons why SCAFFOLD may be no better than FedAvg",
    "own_data": "your own tensors, weights and metric",
    "own_algorithm": "an algorithm of your own, and the contract that accepts or refuses it",
    "own_loop": "SCAFFOLD in a training loop that you have",
    "flower": "SCAFFOLD in an app of Flower",
    "fine_tuning": "adapters across clients, the backbone frozen",
    "lora": "LoRA on a small language model",
    "schedule": "step sizes that change, and a run that resumes bit for bit",
    "paper_table": "from data to a table in LaTeX",
    "client_drift": "what client drift is, small enough to check by hand (notebook)",
    "data_to_advice": "from your tables to advice (notebook)",
    "scaffold_and_mime": "SCAFFOLD against Mime with unequal clients (notebook)",
    "cifar10_federation": "ResNet-20 with BatchNorm on CIFAR-10 over a server and four clients",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path on the site."""
    paths = {path.stem: path for path in EXAMPLES.glob("*.py")}
    paths |= {path.stem: path for path in EXAMPLES.glob("notebooks/*.ipynb")}
    paths["cifar10_federation"] = EXAMPLES / "cifar10_federation" / "README.md"
    paths["flower"] = EXAMPLES / "flower"
    names = [*(name for name in SHOWS if name in paths), *sorted(paths.keys() - SHOWS.keys())]
    found = {f"gallery/{name}.md": _page(paths[name]) for name in names}
    rows = [
        f"| [{_title(text)}]({path.rpartition('/')[2]}) | {SHOWS.get(name, '')} |"
        for name, (path, text) in zip(names, found.items(), strict=True)
    ]
    said = "Each runs as it is shown; the tests run it, and hold its output."
    table = "\n".join(["| example | shows |", "|---|---|", *rows])
    return {"gallery/index.md": f"# Gallery\n\n{said}\n\n{table}\n", **found}


def _title(text: str) -> str:
    return text.removeprefix("# ").partition("\n")[0]


def _page(path: Path) -> str:
    page = f"gallery/{path.stem}.md"
    source = str(path.relative_to(ROOT))
    if path.is_dir():
        return _app(path)
    if path.suffix == ".md":
        return rewritten(path.read_text("utf-8"), source, "gallery/cifar10_federation.md")
    if path.suffix == ".ipynb":
        return rewritten(_notebook(path), source, page)
    return _script(path)


def _app(folder: Path) -> str:
    """Return the page of an app of several files."""
    files = [path for path in sorted(folder.glob("*/*.py")) if path.name != "__init__.py"]
    parts = [f"# {SHOWS[folder.name]}", f"`{folder.relative_to(ROOT)}`"]
    for path in files:
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
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"]) for cell in cells]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in texts]
    first, *rest = parts
    title, _, more = first.partition("\n")
    return "\n\n".join([title, f"`{path.relative_to(ROOT)}`", more.strip(), *rest]) + "\n"
