"""Load a trained model, and predict with it: `trimtab.load`."""

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from trimtab._files import atomic_write, read_json, write_json
from trimtab.errors import BadArgument
from trimtab.problems.loading import load_module
from trimtab.problems.saved import FORMAT, MODEL, Card, Description
from trimtab.problems.supervised.arguments import module_of
from trimtab.problems.supervised.flat import Tree, first_line, map_tree, takes_parts
from trimtab.problems.supervised.from_tables import sized
from trimtab.problems.supervised.hugging_face import Fields
from trimtab.problems.supervised.reading import as_tensor, as_tree, rows_of

_AT_ONCE = 1024  # rows of a tensor per call of the module; it bounds the memory of its layers
_RECORDS = ("run.json", "compare.json")
_PROBABILITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "logits": lambda output: output.softmax(1),
    "log-probabilities": torch.exp,
    "binary logits": torch.sigmoid,
    "binary probabilities": lambda output: output,
}


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model.

    module: the user's module with the trained weights, in evaluation mode.
    description: what goes into it and comes out of it.
    """

    module: nn.Module
    description: Description

    @property
    def card(self) -> Card:
        """The data of the model, how it was trained, and how good it is."""
        return self.description.card

    @property
    def classes(self) -> list[Any] | None:
        """The names of the classes in the order of the outputs; None if they have none."""
        columns = self.description.columns
        return None if columns is None or columns.classes is None else list(columns.classes)

    def predict(self, data: Any) -> numpy.ndarray[Any, Any]:
        """Return the class of each row, by its name if it has one; for a regression the number.

        data: a DataFrame with the columns of the training table, in any order; further columns are
            ignored. For a model of other data, inputs as those of the clients: an array, a tensor,
            a dict or a tuple of them, or a Hugging Face dataset.
        """
        outputs, kind = self._outputs(data), self.description.outputs
        if kind == "numbers":
            return _flat(outputs).numpy()
        if kind.startswith("binary"):
            codes = (_flat(outputs) > (0.5 if kind == "binary probabilities" else 0.0)).long()
        else:
            codes = outputs.argmax(1)
        if self.classes is None:
            return codes.numpy()
        # An array of several types would turn all of them into text.
        several = len({type(value) for value in self.classes}) > 1
        names = numpy.array(self.classes, dtype=object if several else None)
        predicted: numpy.ndarray[Any, Any] = names[codes.numpy()]
        return predicted

    def predict_proba(self, data: Any) -> numpy.ndarray[Any, Any]:
        """Return the probability of each class, (n, classes), in the order of `classes`.

        With several columns of 0 and 1 as targets, the probability of 1 in each.

        data: as for `predict`.
        """
        kind = self.description.outputs
        if kind not in _PROBABILITIES:
            raise ValueError(
                "this model gives no probabilities, since it was not trained with one of torch's "
                "cross-entropies; call predict, or its module."
            )
        p = _PROBABILITIES[kind](self._outputs(data))
        if kind.startswith("binary") and _flat(p).dim() == 1:
            p = torch.stack([1 - _flat(p), _flat(p)], 1)
        return p.numpy()

    def to_onnx(self, folder: str | Path) -> list[Path]:
        """Write model.onnx and onnx.json into a folder, and return their paths.

        The graph takes `inputs`, a row for each sample, and gives `outputs`: probabilities where
        `predict_proba` gives them, numbers in the units of the target for a regression. For a table
        it takes the numbers as they are in the table, in float64, and scales them; a category is
        a column of 0 or 1 for each of its values. onnx.json says their order.
        """
        columns, shape = self.description.columns, self.description.shape
        if columns is None and shape is None:
            raise ValueError(
                "the inputs of this model have several parts or shapes, which onnx.json cannot "
                "describe; pass model.module to torch.onnx.export."
            )
        graph = _Graph(deepcopy(self.module).cpu(), self.description)
        dtype = torch.int64 if self.description.whole else graph.dtype
        width = (columns.width,) if columns is not None else shape or ()
        example = torch.zeros(2, *width, dtype=torch.float64 if columns is not None else dtype)
        kind = self.description.outputs
        facts = {
            "inputs": None if columns is None else columns.describe_inputs(),
            "shape": ["rows", *width],
            "dtype": str(example.dtype).removeprefix("torch."),
            "outputs": "probabilities" if kind in _PROBABILITIES else kind,
            "target": None if columns is None else columns.target,
            "classes": self.classes,
        }
        paths = [Path(folder) / "model.onnx", Path(folder) / "onnx.json"]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(paths[0]) as part:
            _export(graph.eval(), example, part)
        write_json(paths[1], facts)
        return paths

    def __repr__(self) -> str:
        card = self.card
        found = [f"{name} {value:.4g}" for name, value in card.metrics.items() if value is not None]
        return (
            f"TrainedModel({type(self.module).__name__}, {card.algorithm} on {card.data}, round "
            f"{card.round}, {card.measured_on}: {', '.join(found)})"
        )

    def _outputs(self, data: Any) -> Tensor:
        """Return what the module makes of inputs, in the units of the target."""
        X = self._inputs(data)
        parts = torch.split(X, _AT_ONCE) if isinstance(X, Tensor) else [X]
        try:
            with torch.inference_mode():
                made = [_called(self.module, part) for part in parts]
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"the module does not take these inputs ({first_line(error)}); pass them as those "
                "of the clients."
            ) from error
        found = [each.get("logits") if isinstance(each, Mapping) else each for each in made]
        tensors = [each for each in found if isinstance(each, Tensor)]
        if len(tensors) < len(made):
            raise ValueError(
                f"the module returns a {type(made[0]).__name__}, of which predict knows no part; "
                "call model.module."
            )
        outputs, columns = torch.cat(tensors).cpu(), self.description.columns
        return (
            outputs if not columns or not columns.target_scale else columns.in_target_units(outputs)
        )

    def _inputs(self, data: Any) -> Tree:
        """Return inputs as tensors in the precision and on the device of the module."""
        first = next(self.module.parameters())
        columns, fields = self.description.columns, self.description.fields
        if columns is not None:
            if not (hasattr(data, "iloc") and hasattr(data, "columns")):
                raise ValueError(
                    f"the model takes a table, but predict got a {type(data).__name__}; pass a "
                    f"DataFrame with {', '.join(map(str, columns.taken))}."
                )
            return columns.inputs(data, dtype=first.dtype).to(first.device)
        if fields is not None and hasattr(data, "column_names"):
            found = Fields(inputs=fields.inputs).read(data.with_format(None))
            data = found if len(fields.inputs) > 1 else next(iter(found.values()))
        data = data.to_numpy() if hasattr(data, "iloc") else data
        if isinstance(data, Mapping | tuple):
            X = as_tree("the inputs", data, rows_of(data))
            return map_tree(lambda t: t.to(first) if t.is_floating_point() else t, X)
        X = as_tensor("the inputs", data)
        self._check(X)
        return X.to(first.device) if self.description.whole else X.to(first)

    def _check(self, X: Tensor) -> None:
        """Raise ValueError for inputs of another shape or kind than those of the clients."""
        shape = self.description.shape
        if shape is not None and (X.dim() == 0 or X.shape[1:] != shape):
            wanted = ", ".join(map(str, ("n", *shape)))
            raise ValueError(
                f"predict got inputs of shape {tuple(X.shape)}, but the module takes ({wanted}); "
                "pass a row for each sample."
            )
        if X.is_floating_point() and not bool(X.isfinite().all()):
            row = int((~X.isfinite().reshape(len(X), -1).all(1)).nonzero()[0])
            raise ValueError(
                f"predict got NaN or infinity (first in row {row}); drop or fill in such rows."
            )
        if self.description.whole and X.is_floating_point():
            raise ValueError(
                f"predict got inputs of {X.dtype}, but the module takes whole numbers, such as "
                "codes of characters; pass integers."
            )


def load(folder: str | Path, *, algorithm: str | None = None, module: Any = None) -> TrainedModel:
    """Return the model that a run, a comparison or `trimtab federate model` wrote.

    folder: the folder of one of them, or the file NAME.safetensors of a federation's model.
    algorithm: the name of an algorithm of a comparison; by default the recommended one.
    module: the module, or the function that builds it, where it was passed from Python; also where
        the problem's file or data are not at hand. By default the problem is loaded again.

    >>> from tempfile import TemporaryDirectory
    >>> import torch, trimtab
    >>> with TemporaryDirectory() as folder:
    ...     few = {"K": 5, "R": 4, "seeds": 1, "budget": 2e4, "out": f"{folder}/study"}
    ...     found = trimtab.compare("digits", ["fedavg"], **few)
    ...     model = trimtab.load(f"{folder}/study")
    >>> model.predict(torch.zeros(3, 64)).shape
    (3,)
    """
    if not isinstance(folder, str | Path):
        raise ValueError(
            f"load got a {type(folder).__name__}; pass the folder of a run, a comparison or a "
            "federation's model."
        )
    path = Path(folder)
    if algorithm is not None:
        path = _of_algorithm(path, algorithm)
    about = path.with_suffix(".json") if path.suffix == ".safetensors" else path / MODEL
    if not about.is_file():
        raise _no_model(path, about)
    content = read_json(about)
    try:
        if content["format"] > FORMAT:
            raise ValueError(
                f"{about} was written by a newer trimtab in format {content['format']}, of which "
                f"this one reads up to {FORMAT}; update trimtab."
            )
        if "recommended" in content:
            return load(path / content["recommended"], module=module)
        described = Description.from_json(content)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{about} does not describe a model ({type(error).__name__}: {error}); write it again."
        ) from error
    weights = about.with_name(described.weights)
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{weights} cannot be read ({first_line(error)}); restore it beside {about.name}."
        ) from error
    return TrainedModel(_trained(_module(path, described, module), tensors, weights), described)


def _of_algorithm(folder: Path, name: str) -> Path:
    # The folder of scaffold is scaffold-K5 in a comparison that was given K.
    names = {read_json(path)["card"]["algorithm"]: path for path in folder.glob(f"*/{MODEL}")}
    if name in names:
        return names[name].parent
    if not (folder / MODEL).is_file():
        raise _no_model(folder, folder / MODEL)
    if not names:
        raise BadArgument("algorithm", "{folder} has one model; drop {algorithm}.", folder=folder)
    sentence = "{folder} has no model of {_name}; pass {algorithm} as one of {_names}."
    raise BadArgument(
        "algorithm", sentence, folder=folder, _name=repr(name), _names=", ".join(sorted(names))
    )


def _no_model(folder: Path, about: Path) -> ValueError:
    if not folder.exists():
        return ValueError(
            f"{folder}: there is no such folder; pass that of a run, a comparison or a "
            "federation's model."
        )
    records = [read_json(path) for path in folder.glob("*.json") if path.name in _RECORDS]
    if any(not _is_finished(record) for record in records):
        return BadArgument(
            "resume",
            "{folder} is not finished; repeat its command with {resume:True} first.",
            folder=folder,
        )
    return ValueError(
        f"{folder} has no {about.name}; pass the folder of a run or a comparison that did not "
        "diverge, or what `trimtab federate model` wrote."
    )


def _is_finished(record: Mapping[str, Any]) -> bool:
    about = record.get("outcome", {}).get("about", {})
    # The record of a federation's operator has no settings, and says nothing of a model.
    return "settings" not in record or "diverged" in record or about.get("finished", bool(about))


def _module(folder: Path, described: Description, given: Any) -> nn.Module:
    """Return the module, which has not its trained weights yet."""
    if given is not None:
        width = 0 if described.columns is None else described.columns.width
        return module_of(sized(given, width) if width else given)
    if described.kind != "Supervised":
        raise ValueError(
            f"{folder} holds the x of a {described.kind}, which has no module; read "
            f"{described.weights} with safetensors."
        )
    if described.spec is None:
        raise ValueError(
            f"{folder} was trained with a module that was passed from Python; pass it again, "
            "trimtab.load(folder, module=…)."
        )
    try:
        return load_module(described.spec, described.options)
    except ValueError as error:
        raise ValueError(
            f"the module of {folder} cannot be made ({str(error).rstrip('.')}); restore what it "
            "needs, or pass the module, trimtab.load(folder, module=…)."
        ) from error


def _trained(module: nn.Module, tensors: dict[str, Tensor], weights: Path) -> nn.Module:
    """Return a copy of a module with these weights, in their precision and in evaluation mode."""
    module = deepcopy(module).cpu()
    try:
        module.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip(" .\t")
        raise ValueError(
            f"the module does not fit {weights} ({reason}); pass the one that was trained."
        ) from error
    return module.eval()


class _Graph(nn.Module):
    """A module between the scaling of its inputs and that of its target, for export."""

    def __init__(self, module: nn.Module, description: Description) -> None:
        super().__init__()
        self.module, self.kind = module, description.outputs
        self.dtype = next(module.parameters()).dtype
        self.columns = description.columns
        numbers = {} if self.columns is None else self.columns.numbers
        # A category has columns of 0 and 1, which stay as they are.
        ones = 0 if self.columns is None else self.columns.width - len(numbers)
        pairs = [*numbers.values(), *[(0.0, 1.0)] * ones]
        self.scale = torch.tensor(pairs, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.columns is not None:
            inputs = ((inputs - self.scale[:, 0]) / self.scale[:, 1]).to(self.dtype)
        made = self.module(inputs)
        outputs: Tensor = made["logits"] if isinstance(made, Mapping) else made
        if self.columns is not None and self.columns.target_scale:
            return self.columns.in_target_units(outputs)
        return _PROBABILITIES[self.kind](outputs) if self.kind in _PROBABILITIES else outputs


def _export(graph: nn.Module, example: Tensor, path: Path) -> None:
    """Write a graph that takes any number of rows."""
    try:
        import onnxscript  # noqa: F401 (torch needs it, and names it only when the export fails)
    except ImportError:
        raise ValueError("ONNX is not installed; run `pip install 'trimtab[onnx]'`.") from None
    logger = getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(ERROR)  # It warns that torchvision is missing, which no module needs here.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's exporter uses names that it deprecates.
            torch.onnx.export(
                graph,
                (example,),
                path,
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # The exporter raises what the module's operations raise.
        raise ValueError(
            f"the module cannot be written as ONNX ({first_line(error)}); write its operations "
            "in a form that torch.export takes."
        ) from error
    finally:
        logger.setLevel(level)


def _called(module: nn.Module, X: Tree) -> Any:
    """Return the output for a tensor; for a dict or tuple as `Supervised` calls the module."""
    if isinstance(X, Tensor) or not X or not takes_parts(module.forward, X):
        return module(X)
    return module(**X) if isinstance(X, Mapping) else module(*X)


def _flat(outputs: Tensor) -> Tensor:
    """Return (n,) for outputs (n, 1), and others as they are."""
    return outputs[:, 0] if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs
