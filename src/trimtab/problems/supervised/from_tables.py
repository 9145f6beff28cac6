"""Problems of tables: who the clients are, and what columns become, is read off a table."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from torch import nn

from trimtab.problems.supervised.frames import Columns, from_frame
from trimtab.problems.supervised.hugging_face import Fields, from_datasets
from trimtab.problems.supervised.losses import Loss
from trimtab.problems.supervised.reading import Collate


class FromTables:
    """What makes a problem of a table, and remembers what became of it."""

    columns: Columns | Fields | None = None  # what became of the columns of a table
    names: list[Any] | None = None  # of the clients of a table, in the order of their i

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        target: str | Sequence[str],
        module: nn.Module | Callable[..., nn.Module],
        loss: Loss,
        test: Any = None,
        validation: Any = None,
        standardise: bool = True,
        **settings: Any,
    ) -> Self:
        """Return the problem of a table of pandas: a client for each value of the column `client`.

        Numbers are standardised by mean and deviation over all rows of `frame`, unless that is
        declined; text and categories become a column of 0 and 1 for each value. `columns` says so,
        and `names` who the clients are. module: also a function of the number of inputs.
        """
        given, columns, names = from_frame(
            frame,
            client=client,
            target=target,
            module=module,
            loss=loss,
            standardise=standardise,
            unseen={"test": test, "validation": validation},
        )
        return cls(**given, **settings)._of_table(columns, names)

    @classmethod
    def from_datasets(
        cls,
        dataset: Any,
        *,
        client: str,
        target: str | None = None,
        inputs: str | Sequence[str] | None = None,
        module: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        test: Any = None,
        validation: Any = None,
        collate: Collate | None = None,
        **settings: Any,
    ) -> Self:
        """Return the problem of a Hugging Face data set: a client for each value of `client`.

        inputs: one column, a tensor, or several, a dict by name; all others by default. collate
        gets rows as dicts, and returns a dict with these columns. A loss of module and batch,
        OnBatch(f), needs no target: its batch is a dict.
        """
        given, fields, names = from_datasets(
            dataset,
            client=client,
            inputs=inputs,
            target=target,
            loss=loss,
            collate=collate,
            unseen={"test": test, "validation": validation},
        )
        return cls(**{"module": module} | given, **settings)._of_table(fields, names)

    def _of_table(self, columns: Columns | Fields | None, names: list[Any] | None) -> Self:
        self.columns, self.names = columns, names
        return self
