"""Shakespeare by speaker: each speaker is a client, and the task is to predict the next character.

The clients of LEAF (Caldas et al., 2018) and FedProx, here from the 1.1 MB of plays that
Karpathy's char-rnn comes with (public domain), where speakers of one name in two plays are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.problems.data.files import Folder, Source, damaged, fetch
from trimtab.problems.partition import Pair

SHAKESPEARE = Source(
    "shakespeare",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ("tinyshakespeare-input.txt",),
    most=1_115_394,
    # tensorflow/datasets, tensorflow_datasets/url_checksums/tiny_shakespeare.txt
    digest="sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)


class Windows(Sequence[Any]):
    """One pair (X, y) per speaker: y is a character, its row of X the `length` before it.

    Nothing is copied: a pair is a view of the speaker's text.
    """

    def __init__(self, texts: Sequence[Tensor], length: int) -> None:
        self.texts, self.length = texts, length

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return Windows(self.texts[i], self.length)
        text = self.texts[i]
        return text.unfold(0, self.length, 1)[:-1], text[self.length :]


@dataclass(frozen=True)
class Plays:
    """The speakers, the one with most text first, and their text; token t is characters[t]."""

    speakers: list[str]
    characters: str
    train: Windows
    test: Windows


def shakespeare(data: Folder = None, length: int = 80) -> Plays:
    """Return the speakers and their text, whose last fifth is for the test.

    Speakers with fewer than `length` + 1 characters in that fifth are left out.

    data: a folder with the file; None searches TRIMTAB_DATA and the cache.
    length: the characters before the one to predict.
    """
    path = fetch(SHAKESPEARE, SHAKESPEARE.files[0], data)
    try:
        words = _by_speaker(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, SHAKESPEARE, error) from None
    characters = "".join(sorted(set("".join(words.values()))))
    token = {character: number for number, character in enumerate(characters)}
    long = {name: text for name, text in words.items() if len(text) - _train_length(text) > length}
    speakers = sorted(long, key=lambda name: -len(long[name]))
    texts = [torch.tensor([token[c] for c in long[name]]) for name in speakers]
    train = Windows([text[: _train_length(text)] for text in texts], length)
    test = Windows([text[_train_length(text) :] for text in texts], length)
    return Plays(speakers, characters, train, test)


def joined(windows: Windows, every: int = 1) -> Pair:
    """Return the windows of all speakers in one pair; of each speaker every `every`-th window."""
    pairs = [(X[::every], y[::every]) for X, y in windows]
    return torch.cat([X for X, _ in pairs]), torch.cat([y for _, y in pairs])


def _by_speaker(plays: str) -> dict[str, str]:
    """Join the speeches of each speaker; a speech is a line 'NAME:', lines, and an empty line."""
    words: dict[str, list[str]] = {}
    for speech in plays.split("\n\n"):
        name, _, text = speech.strip("\n").partition("\n")
        if not name.endswith(":"):
            raise ValueError(f"{name[:40]!r} is not a speaker's name")
        if text:
            words.setdefault(name.removesuffix(":"), []).append(text + "\n")
    return {name: "".join(speeches) for name, speeches in words.items()}


def _train_length(text: Any) -> int:
    return len(text) * 4 // 5
