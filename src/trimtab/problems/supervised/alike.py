"""All clients have samples of one structure: what was read first says which."""

from typing import Any

from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.flat import describe


class Alike:
    """Remembers a sample of what was read first, and refuses samples that are made otherwise."""

    def __init__(self) -> None:
        self._first: tuple[Any, Data] | None = None  # the form of samples, and one of them

    def check(self, who: str, data: Data) -> None:
        """Refuse data of another form than those that are kept."""
        if self._first is None or data.form == self._first[0]:
            return
        first = self._first[1]
        own, others = (describe(each.cut(0, 1).X) for each in (data, first))
        if own == others:
            raise ValueError(
                f"{who} has samples {describe(data.cut(0, 1).batch)}, others "
                f"{describe(first.batch)}; give all clients samples of the same parts."
            )
        raise ValueError(
            f"{who} has inputs of shape {own}, others of {others}; give all clients the same "
            "features."
        )

    def keep(self, data: Data) -> None:
        """Remember the form of the first data that were found good."""
        self._first = self._first or (data.form, data.cut(0, 1).copy())
