"""Constructors of Supervised from a pandas DataFrame or a Hugging Face dataset."""

import inspect
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from trimtab.problems.partition import by_column
from trimtab.problems.supervised.hugging_face import (
    Fields,
    clients_of,
    datasets_of,
    fields_of,
    without_format,
)
from trimtab.problems.supervised.losses import Loss, loss_kind
from trimtab.problems.supervised.reading import Collate
from trimtab.problems.supervised.tables import Columns, column_of


def _check_names(client: Any, target: Any) -> None:
    """Raise ValueError unless client and targets are the names of different columns."""
    if not isinstance(client, Hashable):
        raise ValueError(f"client={client!r}; pass the name of one column.")
    targets = [target] if isinstance(target, str) else target
    if not isinstance(targets, Sequence) or not targets or len({*targets}) < len(targets):
        raise ValueError(f"target={target!r}; pass the name of a column, or a list of several.")
    if client in targets:
        raise ValueError(f"client and target are both {client!r}; pass two different columns.")


def sized(module: nn.Module | Callable[..., nn.Module], width: int) -> Any:
    """Return a module, or a builder with the number of inputs filled in, if it takes that."""
    if isinstance(module, nn.Module) or not callable(module):
        return module
    try:
        parameters = inspect.signature(module).parameters.values()
    except (TypeError, ValueError):
        return module
    # Only a parameter without a default can be the number of inputs.
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return partial(module, width) if len(needed) == 1 else module


class TableConstructors:
    """Constructors of Supervised from a pandas DataFrame or a Hugging Face dataset."""

    columns: Columns | Fields | None = None  # how the columns of the table are encoded
    names: list[Any] | None = None  # of the clients, in the order of their numbers

    @property
    def in_target_units(self) -> Callable[[Tensor], Tensor] | None:
        """Puts outputs or targets into the units of the table; None where they are in them."""
        columns = self.columns
        if not isinstance(columns, Columns) or not columns.target_scale:
            return None
        return columns.in_target_units

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
        """Return the problem of a pandas DataFrame.

        Text and categories become a column of 0 and 1 for each value. The attribute `columns` has
        the encoding, `names` the clients' names.

        client: the column whose values are the clients.
        target: the column to predict, or several columns of numbers.
        module: a module, or a function that builds one, also of the number of inputs.
        loss: as for Supervised.
        test, validation: DataFrames with the same columns, default None.
        standardise: whether numbers are standardised by mean and deviation over `frame`, default
            True; for a regression by one of torch's losses also the target.
        settings: further arguments of Supervised.
        """
        if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
            raise ValueError(
                f"from_frame got a {type(frame).__name__}; pass a DataFrame of pandas, or clients "
                "as pairs (X, y) to Supervised itself."
            )
        if not frame.columns.is_unique:
            raise ValueError("the table has two columns of one name; rename one of them.")
        _check_names(client, target)
        if not len(frame):
            raise ValueError("the table has no rows; pass one with some.")
        owner, known = column_of(frame, client, "the table"), loss_kind(loss)
        columns = Columns.of(
            frame,
            target=target,
            without=[client],
            standardise=standardise,
            scale_target=standardise and known is not None and known.is_regression,
        )
        X, y = columns.read(frame, loss)
        rows = by_column(owner.tolist())
        for name, table in {"test": test, "validation": validation}.items():
            if table is not None:
                settings[name] = columns.read(table, loss, f"the {name} table")
        clients = [(X[part], y[part]) for part in rows.values()]
        given = {"module": sized(module, columns.width), "loss": loss, "clients": clients}
        return cls(**given, **settings)._of_table(columns, list(rows))

    @classmethod
    def from_datasets(
        cls,
        dataset: Any,
        *,
        client: str | None = None,
        target: str | None = None,
        inputs: str | Sequence[str] | None = None,
        module: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        test: Any = None,
        validation: Any = None,
        collate: Collate | None = None,
        **settings: Any,
    ) -> Self:
        """Return the problem of a Hugging Face dataset.

        dataset: one with the rows of all clients, or a list with one for each client, such as
            `[fds.load_partition(i) for i in range(N)]` of flwr-datasets.
        client: the column whose values are the clients; None, the default, for a list.
        target: the column to predict; None for a loss of module and batch, OnBatch(f), whose
            batch is a dict of columns.
        inputs: one column, which becomes a tensor, or several, which become a dict by name; by
            default all other columns.
        module, loss: as for Supervised.
        test, validation: datasets with the same columns, default None.
        collate: makes a dict with these columns of a list of rows, which are dicts.
        settings: further arguments of Supervised.
        """
        parts = datasets_of(dataset, client)
        fields = fields_of(parts, client, inputs, target, loss)
        read = partial(fields.read, as_samples=collate is not None)
        clients, names = clients_of(parts, client, read)
        if collate is not None:
            settings["collate"] = fields.after(collate)
        for name, other in {"test": test, "validation": validation}.items():
            if other is not None:
                settings[name] = read(without_format(other))
        given = {"module": module, "loss": loss, "clients": clients}
        return cls(**given, **settings)._of_table(fields, names)

    def _of_table(self, columns: Columns | Fields | None, names: list[Any] | None) -> Self:
        self.columns, self.names = columns, names
        return self
