"""Where a file of the repository stands on the site, and links from one page to another."""

import os
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = re.compile(r"\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")
# The address of files that have no page; a workflow knows it, and elsewhere they are not linked.
REPOSITORY = os.environ.get("TRIMTAB_REPOSITORY", "")
AT_TOP = {  # pages beside docs/
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "RELEASING.md": "releasing.md",
    "GOVERNANCE.md": "governance.md",
    "CITATION.cff": "citation.md",
    "examples": "gallery/index.md",
    "docs/decisions": "design.md",
    "examples/flower": "gallery/flower.md",
    "examples/cifar10_federation": "cifar10-federation.md",
    "examples/cifar10_federation/README.md": "cifar10-federation.md",
    "benchmarks/README.md": "benchmarks.md",
}


def page_of(path: str) -> str | None:
    """Return the site's page or file for a path of the repository; None if it has none.

    >>> page_of("docs/design.md"), page_of("src/trimtab/algorithms/sgd.py"), page_of("setup.py")
    ('design.md', 'algorithms/sgd.md', None)
    """
    if path in AT_TOP:
        return AT_TOP[path]
    if found := re.fullmatch(r"src/trimtab/algorithms/(\w+)\.py", path):
        page = ROOT / path
        return f"algorithms/{found[1]}.md" if page.exists() and is_algorithm(found[1]) else None
    if found := re.fullmatch(r"examples/(?:notebooks/)?(\w+)\.(?:py|ipynb)", path):
        from docs.generate.gallery import SHOWS

        return f"gallery/{found[1]}.md" if found[1] in SHOWS else None
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return None


def is_algorithm(name: str) -> bool:
    """Return whether a module of trimtab.algorithms is an algorithm of the registry."""
    from trimtab.algorithms.registry import NAMES

    return name in NAMES


def rewritten(text: str, source: str, page: str) -> str:
    """Return a text of the repository with its links as they are on the site.

    source: its path in the repository.
    page: its path on the site.
    """

    def link(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else ""
        found = page_of(there)
        if found is None:
            return f"]({REPOSITORY}/{there})" if REPOSITORY else "]()"
        return f"]({relative(found, page)}{anchor})"

    text = TARGET.sub(link, text)
    # A link without a target would lead to the page itself.
    return re.sub(r"(?<!!)\[([^\]]*)\]\(\)", r"\1", text)


def relative(target: str, page: str) -> str:
    """Return the way from one page to another.

    >>> relative("design.md", "algorithms/sgd.md")
    '../design.md'
    """
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
