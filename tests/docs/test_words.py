"""Plain English: words and phrases that readers stumble over do not come back.

Folders that are still to be rewritten are not covered; each joins the list when it is.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *(
        "algorithms",
        "cli",
        "cluster",
        "compute",
        "core",
        "diagnosis",
        "flower",
        "problems",
        "report",
        "simulation",
        "studies",
        "testing",
        "torch",
    ),
)
COVERED = [
    *(ROOT / "src" / "trimtab").glob("*.py"),
    *(p for folder in FOLDERS for p in (ROOT / "src" / "trimtab" / folder).rglob("*.[pch]*")),
    *(
        p
        for folder in ("papers/src", "benchmarks", "examples")
        for p in (ROOT / folder).rglob("*.py")
    ),
    *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
    *(ROOT / "docs").rglob("*.md"),
]
COVERED = [path for path in COVERED if path.suffix in (".py", ".c", ".h", ".md")]
# Each with the words to use instead.
WORDS = {
    r"anew": "again",
    r"upon": "on",
    r"mend(s|ed|ing)?": "fix",
    r"whoever|somebody|nobody|everybody|anybody": "the client, the site, the process",
    r"(is|are|was|were|be|been) told": "receives, is passed",
    r"[Tt]ells? whether": "return whether",
    r"for ever": "forever, without end",
    r"once more": "again",
    r"for lack of": "because ... ran out",
}


@pytest.mark.parametrize("path", COVERED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_uses_plain_words(path):
    text = path.read_text()
    for words, instead in WORDS.items():
        found = re.search(rf"\b({words})\b", text)
        if found:
            line = text.count("\n", 0, found.start()) + 1
            pytest.fail(f"{path}:{line}: {found.group()!r}; write {instead!r}")
