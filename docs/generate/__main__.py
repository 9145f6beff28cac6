"""Write the source of the documentation site: the pages of docs/, and those made from the code.

python -m docs.generate [FOLDER], by default build/docs, in the folder of the project. `make docs`
does it before `mkdocs build`, so that the site needs no plugin for it.
"""

import re
import shutil
import sys
from pathlib import Path

from docs.generate import algorithms, gallery, reference, suite
from docs.generate.equations import blocks_as_mathml
from docs.generate.links import AT_TOP, ROOT, page_of, rewritten


def write(folder: Path) -> None:
    """Write all pages into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    texts = pages()
    for path, text in {**texts, "llms.txt": for_machines(texts)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    for file in (ROOT / "docs").rglob("*"):
        if file.suffix in (".svg", ".css", ".js", ".yaml", ".sh"):
            there = folder / file.relative_to(ROOT / "docs")
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, there)


def pages() -> dict[str, str]:
    """Return the text of every page by its path on the site."""
    written = [path for path in AT_TOP if path.endswith(".md")]
    written += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))]
    copied = {page_of(path): path for path in written}
    return {
        **{page: _copied(path, page) for page, path in copied.items() if page},
        **algorithms.pages(),
        **reference.pages(),
        **gallery.pages(),
        **suite.pages(),
        "citation.md": _citation(),
    }


def for_machines(texts: dict[str, str]) -> str:
    """Return llms.txt: every page with its address, title and first sentence."""
    lines = ["# trimtab", "", "> Federated optimisation that does not drift.", ""]
    for path, text in texts.items():
        title, _, rest = text.partition("\n")
        first = next((p for p in rest.split("\n\n") if re.match(r"\s*[A-Z*`][^`]", p)), "")
        said = re.split(r"(?<=[.:])\s", " ".join(first.replace("**Decided.**", "").split()))[0]
        said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", said)
        lines.append(f"- [{title.lstrip('# ')}]({path.removesuffix('.md')}.html): {said}")
    return "\n".join(lines) + "\n"


def _copied(path: str, page: str) -> str:
    return blocks_as_mathml(rewritten((ROOT / path).read_text("utf-8"), path, page))


def _citation() -> str:
    said = "Please cite trimtab, and the papers of the algorithms that you use."
    content = (ROOT / "CITATION.cff").read_text("utf-8")
    return f"# Citing trimtab\n\n{said}\n\n```yaml\n{content}```\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
