"""Encode tables of pandas: numbers are standardised, categories become columns of 0 and 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy
import torch
from torch import Tensor

from trimtab._files import plain
from trimtab.problems.supervised.losses import Loss, loss_kind

# Different texts in a column of categories; a column with more holds names or free text.
_MOST = 256
# Columns that a note lists one by one; of more it gives the number.
_LISTED = 12
_BY_NAME = ("numbers", "categories", "target_scale")  # the fields of Columns with names as keys


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The encoding of the columns of a table, which all clients share.

    The order is that of the module's inputs. A site of a federation cannot see the others' tables,
    so that its problem file spells this out as `columns`; `Columns.of` reads it off a table.

    numbers: columns by name, with the number that is subtracted and the one that divides.
    categories: columns by name, with the values that become a column of 0 and 1 each.
    target: the column to predict, or several.
    classes: the values of the target, numbered from 0; None if it is a number.
    target_scale: target columns by name, with the number that is subtracted and the one that
        divides; none by default. The loss is then in these units; metrics and predictions are in
        those of the table.

    >>> columns = Columns(numbers={"age": (50.0, 10.0)}, categories={"sex": ("f", "m")}, target="y")
    >>> columns.width, str(columns)
    (3, 'age is (age - 50) / 10; sex is f, m; the target is y')
    """

    numbers: Mapping[str, tuple[float, float]]
    categories: Mapping[str, Sequence[Any]]
    target: str | Sequence[str]
    classes: Sequence[Any] | None = None
    target_scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_inputs()
        odd = [name for name in self.target_scale if name not in self.targets]
        if odd or (self.target_scale and self.classes is not None):
            raise ValueError(
                f"target_scale names {odd[0] if odd else self.target!r}, which is no target of "
                "numbers; pass a mean and a deviation for targets without classes."
            )

    def _check_inputs(self) -> None:
        for name, (mean, deviation) in {**self.numbers, **self.target_scale}.items():
            if not isfinite(mean) or not 0 < deviation < inf:
                raise ValueError(
                    f"Columns: {name!r} has mean {mean} and deviation {deviation}; pass a finite "
                    "mean and a positive deviation."
                )
        for name, values in self.categories.items():
            if isinstance(values, str) or len(set(values)) < len(values):
                raise ValueError(
                    f"Columns: {name!r} has the values {values!r}; pass a list without duplicates."
                )
        for name in self.taken:
            if name in self.targets:
                raise ValueError(f"Columns: {name!r} is an input and a target; pass it once.")

    @property
    def targets(self) -> list[str]:
        """The names of the target columns."""
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def taken(self) -> list[str]:
        """The names of the columns that the module takes."""
        return [*self.numbers, *self.categories]

    def describe_inputs(self) -> list[dict[str, Any]]:
        """Return the column, and for a category the value, that each input of the module is."""
        numbers = [{"column": name} for name in self.numbers]
        categories = [
            {"column": name, "value": value}
            for name, values in self.categories.items()
            for value in values
        ]
        return [*numbers, *categories]

    @property
    def scale_of_targets(self) -> Tensor:
        """A row with mean and deviation for each target column, in float64."""
        pairs = [self.target_scale.get(name, (0.0, 1.0)) for name in self.targets]
        return torch.tensor(pairs, dtype=torch.float64)

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
        scale_target: bool = False,
    ) -> "Columns":
        """Return the encoding of a table: numbers standardised, other columns as categories.

        frame: a pandas DataFrame without missing values.
        target: the column to predict, or several columns of numbers.
        without: columns to leave out; none by default.
        standardise: whether numbers get mean 0 and deviation 1; default True.
        scale_target: whether a target of numbers gets them too, for a regression; default False.
        """
        targets = [target] if isinstance(target, str) else list(target)
        numbers, categories = dict[str, tuple[float, float]](), dict[str, tuple[Any, ...]]()
        for name in frame.columns:
            if name in (*targets, *without):
                continue
            column = column_of(frame, name, "the table")
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
            column = column_of(frame, name, "the table")
            classes = (False, True) if _is_boolean(column) else _categories(name, column)
            if classes is not None and len(targets) > 1:
                raise ValueError(
                    f"target column {name!r} holds no numbers; pass one target column, or several "
                    "of numbers."
                )
        scaled = targets if scale_target and classes is None else []
        scale = {name: _scale(column_of(frame, name, "the table")) for name in scaled}
        return cls(
            numbers=numbers,
            categories=categories,
            target=target,
            classes=classes,
            target_scale=scale,
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Columns":
        """Read what `to_json` wrote."""
        scales = {
            part: {name: (mean, deviation) for name, (mean, deviation) in content[part]}
            for part in ("numbers", "target_scale")
        }
        categories = {name: tuple(values) for name, values in content["categories"]}
        classes = None if content["classes"] is None else tuple(content["classes"])
        return cls(**{**content, **scales, "categories": categories, "classes": classes})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; values of categories that JSON lacks become text."""
        # Pairs, since the names of columns may be numbers, which JSON has not as keys.
        pairs = {name: list(getattr(self, name).items()) for name in _BY_NAME}
        fields: dict[str, Any] = plain({**vars(self), **pairs})
        return fields

    def read(self, frame: Any, loss: Loss, what: str = "the table") -> tuple[Tensor, Tensor]:
        """Return the inputs (n, width) and the targets of a table, in the default precision.

        For losses such as mse_loss or binary_cross_entropy_with_logits, which compare number by
        number, targets are (n, 1), or (n, k) if there are k columns; else labels, or numbers, (n,).
        """
        real = torch.get_default_dtype()
        X = self.inputs(frame, what)
        several = not isinstance(self.target, str)
        y = torch.stack([self._target(frame, str(name), what) for name in self.targets], 1)
        known = loss_kind(loss)
        if known is not None and known.elementwise:
            return X, y.to(real)
        # A column of labels may hold whole numbers as floats.
        whole = known is not None and known.takes_labels and bool((y == y.long()).all())
        y = y if several else y[:, 0]
        return X, y.long() if whole else y.to(real) if y.is_floating_point() else y

    def inputs(
        self, frame: Any, what: str = "the table", dtype: torch.dtype | None = None
    ) -> Tensor:
        """Return the inputs (n, width) of a table, which needs no target."""
        lacks = [name for name in self.taken if name not in frame.columns]
        if lacks:
            raise ValueError(
                f"{what} has no column {', '.join(map(repr, lacks))}, which the module takes; add "
                "it under this name."
            )
        real = dtype or torch.get_default_dtype()
        scaled = [
            (_numbers(column_of(frame, name, what), name, what) - mean) / deviation
            for name, (mean, deviation) in self.numbers.items()
        ]
        parts = [torch.tensor(column) for column in scaled]
        for name, values in self.categories.items():
            codes = _codes(column_of(frame, name, what), name, values, what)
            parts += [codes == place for place in range(len(values))]
        return torch.stack([part.to(real) for part in parts], 1)

    def in_target_units(self, t: Tensor) -> Tensor:
        """Return targets, or predictions of them, in the units of the table, in float64."""
        scale = self.scale_of_targets.to(t.device)
        return t.double() * scale[:, 1] + scale[:, 0]

    def _target(self, frame: Any, name: str, what: str) -> Tensor:
        column = column_of(frame, name, what)
        if self.classes is not None:
            return _codes(column, name, self.classes, what)
        if _categories(name, column) is not None:
            raise ValueError(
                f"target column {name!r} of {what} holds {column.dtype}; name its values in order, "
                "classes=(…)."
            )
        if name in self.target_scale:
            mean, deviation = self.target_scale[name]
            return torch.tensor((_numbers(column, name, what) - mean) / deviation)
        array = column.to_numpy()
        whole = array.dtype.kind in "iub" or str(column.dtype).lower().startswith(("int", "uint"))
        return torch.tensor(column.to_numpy(dtype=numpy.int64 if whole else float))

    def __str__(self) -> str:
        parts = [
            f"{name} is {_scaled(name, *scale)}" if scale != (0.0, 1.0) else f"{name} is as it is"
            for name, scale in self.numbers.items()
        ]
        parts += [f"{n} is {', '.join(map(str, values))}" for n, values in self.categories.items()]
        if len(parts) > _LISTED:
            parts = [f"{len(self.numbers)} of numbers and {len(self.categories)} of categories"]
        scales = [(name, self.target_scale.get(name)) for name in self.targets]
        target = ", ".join(_scaled(n, *scale) if scale else n for n, scale in scales)
        named = enumerate(self.classes or ())
        classes = ", ".join(f"{value} = {place}" for place, value in named)
        return "; ".join([*parts, f"the target is {target}" + (f", {classes}" if classes else "")])


def column_of(frame: Any, name: str, what: str) -> Any:
    """Return a column without missing values."""
    if name not in frame.columns:
        raise ValueError(
            f"{what} has no column {name!r}; pass one of {', '.join(map(str, frame.columns))}."
        )
    column = frame[name]
    if hasattr(column, "columns"):
        raise ValueError(f"{what} has {column.shape[1]} columns {name!r}; rename or drop one.")
    if isinstance(column.dtype, numpy.dtype) and column.dtype.kind == "f":
        infinite = numpy.isinf(column.to_numpy())
        if infinite.any():
            raise ValueError(
                f"column {name!r} of {what} has infinity (first in row {int(infinite.argmax())}); "
                "drop such rows."
            )
    missing = column.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"column {name!r} of {what} has {missing.sum()} missing values (first in row "
            f"{int(missing.argmax())}); drop or fill in such rows."
        )
    return column


def _numbers(column: Any, name: str, what: str) -> Any:
    try:
        return column.to_numpy(dtype=float)
    except (TypeError, ValueError):
        raise ValueError(
            f"column {name!r} of {what} holds {column.dtype}, not numbers; make numbers of it."
        ) from None


def _scaled(name: str, mean: float, deviation: float) -> str:
    return f"({name} - {mean:.4g}) / {deviation:.4g}"


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
    if not all(isinstance(value, str) for value in column):
        raise ValueError(
            f"column {name!r} holds {column.dtype}, neither numbers nor text; make it one of them, "
            "or drop it."
        )
    values = list(column.unique())
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
