"""Encode tables of pandas: numbers are standardised, categories become columns of 0 and 1."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy
import torch
from torch import Tensor, nn

from trimtab.problems.partition import by_column
from trimtab.problems.supervised.hugging_face import Fields, from_datasets
from trimtab.problems.supervised.losses import Loss, loss_kind
from trimtab.problems.supervised.reading import Collate

# Different texts in a column of categories; a column with more holds names or free text.
_MOST = 256


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The encoding of the columns of a table, which all clients share.

    The order is that of the module's inputs. A site of a federation cannot see the others' tables,
    so that its problem file spells this out as `columns`; `Columns.of` reads it off a table.

    numbers: columns by name, with the number that is subtracted and the one that divides.
    categories: columns by name, with the values that become a column of 0 and 1 each.
    target: the column to predict, or several.
    classes: the values of the target, numbered from 0; None if it is a number.

    >>> columns = Columns(numbers={"age": (50.0, 10.0)}, categories={"sex": ("f", "m")}, target="y")
    >>> columns.width, str(columns)
    (3, 'age is (age - 50) / 10; sex is f, m; the target is y')
    """

    numbers: Mapping[str, tuple[float, float]]
    categories: Mapping[str, Sequence[Any]]
    target: str | Sequence[str]
    classes: Sequence[Any] | None = None

    @property
    def width(self) -> int:
        """The number of inputs of the module."""
        return len(self.numbers) + sum(map(len, self.categories.values()))

    @classmethod
    def of(
        cls,
        frame: Any,
        *,
        target: str | Sequence[str],
        without: Sequence[str] = (),
        standardise: bool = True,
    ) -> "Columns":
        """Return the encoding of a table: numbers standardised, other columns as categories.

        frame: a pandas DataFrame without missing values.
        target: the column to predict, or several columns of numbers.
        without: columns to leave out; none by default.
        standardise: whether numbers get mean 0 and deviation 1; default True.
        """
        targets = [target] if isinstance(target, str) else list(target)
        numbers, categories = dict[str, tuple[float, float]](), dict[str, tuple[Any, ...]]()
        for name in frame.columns:
            if name in (*targets, *without):
                continue
            column = _column(frame, name, "the table")
            values = _categories(name, column)
            if values is not None:
                categories[name] = values
            else:
                numbers[name] = _scale(column) if standardise else (0.0, 1.0)
        if not numbers and not categories:
            raise ValueError(
                f"the table has no column except {', '.join([*targets, *without])}; give it some "
                "to learn from."
            )
        classes = None
        for name in targets:
            column = _column(frame, name, "the table")
            classes = (False, True) if _is_boolean(column) else _categories(name, column)
            if classes is not None and len(targets) > 1:
                raise ValueError(
                    f"target column {name!r} holds no numbers; pass one target column, or several "
                    "of numbers."
                )
        return cls(numbers=numbers, categories=categories, target=target, classes=classes)

    def read(self, frame: Any, loss: Loss, what: str = "the table") -> tuple[Tensor, Tensor]:
        """Return the inputs (n, width) and the targets of a table, in the default precision.

        For losses such as mse_loss or binary_cross_entropy_with_logits, which compare number by
        number, targets are (n, 1), or (n, k) if there are k columns; else labels, or numbers, (n,).
        """
        real = torch.get_default_dtype()
        parts = [
            torch.tensor((_column(frame, name, what).to_numpy(dtype=float) - mean) / deviation)
            for name, (mean, deviation) in self.numbers.items()
        ]
        for name, values in self.categories.items():
            codes = _codes(_column(frame, name, what), name, values, what)
            parts += [codes == place for place in range(len(values))]
        X = torch.stack([part.to(real) for part in parts], 1)
        several = not isinstance(self.target, str)
        names = list(self.target) if several else [self.target]
        y = torch.stack([self._target(frame, str(name), what) for name in names], 1)
        known = loss_kind(loss)
        if known is not None and known.elementwise:
            return X, y.to(real)
        # A column of labels may hold whole numbers as floats.
        whole = known is not None and known.takes_labels and bool((y == y.long()).all())
        y = y if several else y[:, 0]
        return X, y.long() if whole else y.to(real) if y.is_floating_point() else y

    def _target(self, frame: Any, name: str, what: str) -> Tensor:
        column = _column(frame, name, what)
        if self.classes is not None:
            return _codes(column, name, self.classes, what)
        if _categories(name, column) is not None:
            raise ValueError(
                f"target column {name!r} of {what} holds {column.dtype}; name its values in order, "
                "classes=(…)."
            )
        array = column.to_numpy()
        whole = array.dtype.kind in "iub" or str(column.dtype).lower().startswith(("int", "uint"))
        return torch.tensor(column.to_numpy(dtype=numpy.int64 if whole else float))

    def __str__(self) -> str:
        parts = [
            f"{name} is ({name} - {mean:.4g}) / {deviation:.4g}"
            if (mean, deviation) != (0.0, 1.0)
            else f"{name} is as it is"
            for name, (mean, deviation) in self.numbers.items()
        ]
        parts += [f"{n} is {', '.join(map(str, values))}" for n, values in self.categories.items()]
        target = self.target if isinstance(self.target, str) else ", ".join(self.target)
        named = enumerate(self.classes or ())
        classes = ", ".join(f"{value} = {place}" for place, value in named)
        return "; ".join([*parts, f"the target is {target}" + (f", {classes}" if classes else "")])


def from_frame(
    frame: Any,
    *,
    client: str,
    target: str | Sequence[str],
    module: nn.Module | Callable[..., nn.Module],
    loss: Loss,
    standardise: bool,
    held_out: Mapping[str, Any],
) -> tuple[dict[str, Any], Columns, list[Any]]:
    """Return the arguments of Supervised for a table, its encoding, and the clients' names."""
    if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
        raise ValueError(
            f"from_frame got a {type(frame).__name__}; pass a DataFrame of pandas, or clients as "
            "pairs (X, y) to Supervised itself."
        )
    if not frame.columns.is_unique:
        raise ValueError("the table has two columns of one name; rename one of them.")
    owner = _column(frame, client, "the table")
    columns = Columns.of(frame, target=target, without=[client], standardise=standardise)
    X, y = columns.read(frame, loss)
    rows = by_column(owner.tolist())
    arguments: dict[str, Any] = {
        "module": _sized(module, columns.width),
        "loss": loss,
        "clients": [(X[part], y[part]) for part in rows.values()],
    }
    for name, table in held_out.items():
        if table is not None:
            arguments[name] = columns.read(table, loss, f"the {name} table")
    return arguments, columns, list(rows)


def _sized(module: nn.Module | Callable[..., nn.Module], width: int) -> Any:
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


def _column(frame: Any, name: str, what: str) -> Any:
    """Return a column without missing values."""
    if name not in frame.columns:
        raise ValueError(
            f"{what} has no column {name!r}; pass one of {', '.join(map(str, frame.columns))}."
        )
    column = frame[name]
    missing = column.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"column {name!r} of {what} has {missing.sum()} missing values (first in row "
            f"{int(missing.argmax())}); drop or fill in such rows."
        )
    return column


def _is_boolean(column: Any) -> bool:
    # NumPy's type, or that of pandas, which can hold missing values.
    return bool(column.dtype == bool) or str(column.dtype) == "boolean"


def _scale(column: Any) -> tuple[float, float]:
    """Return the number to subtract from a column and the one to divide by."""
    if _is_boolean(column):
        return 0.0, 1.0
    array = column.to_numpy(dtype=float)
    # The deviation of a constant column is 0, or a rounding above it.
    constant = array.min() == array.max()
    return float(array.mean()), 1.0 if constant else float(array.std())


def _categories(name: str, column: Any) -> tuple[Any, ...] | None:
    """Return the values of a column of categories or text, in order; None for one of numbers."""
    if hasattr(column, "cat"):
        return tuple(column.cat.categories)
    if str(column.dtype) == "boolean" or getattr(column.dtype, "kind", "O") in "biuf":
        return None
    values = list(column.unique())
    if not all(isinstance(value, str) for value in values):
        raise ValueError(
            f"column {name!r} holds {column.dtype}, neither numbers nor text; make it one of them, "
            "or drop it."
        )
    if len(values) > _MOST:
        raise ValueError(
            f"column {name!r} has {len(values)} different texts, too many for categories; drop it, "
            "or make numbers of it."
        )
    return tuple(sorted(values))


def _codes(column: Any, name: str, values: Sequence[Any], what: str) -> Tensor:
    """Return the place of each row's value among some values."""
    place = {value: j for j, value in enumerate(values)}
    found = [place.get(value, -1) for value in column.tolist()]
    if -1 in found:
        odd = column.tolist()[found.index(-1)]
        raise ValueError(
            f"column {name!r} of {what} has {odd!r}, which is not among "
            f"{', '.join(map(str, values))}; leave such rows out, or name all values."
        )
    return torch.tensor(found)


class TableConstructors:
    """Constructors of Supervised from a pandas DataFrame or a Hugging Face dataset."""

    columns: Columns | Fields | None = None  # how the columns of the table are encoded
    names: list[Any] | None = None  # of the clients, in the order of their numbers

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
            True.
        settings: further arguments of Supervised.
        """
        given, columns, names = from_frame(
            frame,
            client=client,
            target=target,
            module=module,
            loss=loss,
            standardise=standardise,
            held_out={"test": test, "validation": validation},
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
        """Return the problem of a Hugging Face dataset.

        client: the column whose values are the clients.
        target: the column to predict; None for a loss of module and batch, OnBatch(f), whose
            batch is a dict of columns.
        inputs: one column, which becomes a tensor, or several, which become a dict by name; by
            default all other columns.
        module, loss: as for Supervised.
        test, validation: datasets with the same columns, default None.
        collate: makes a dict with these columns of a list of rows, which are dicts.
        settings: further arguments of Supervised.
        """
        given, fields, names = from_datasets(
            dataset,
            client=client,
            inputs=inputs,
            target=target,
            loss=loss,
            collate=collate,
            held_out={"test": test, "validation": validation},
        )
        return cls(**{"module": module} | given, **settings)._of_table(fields, names)

    def _of_table(self, columns: Columns | Fields | None, names: list[Any] | None) -> Self:
        self.columns, self.names = columns, names
        return self
