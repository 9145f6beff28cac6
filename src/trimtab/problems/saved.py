"""Write trained models: runs, comparisons and federations leave them in one format.

*.safetensors   the tensors: the module's state_dict, or x where there is no module
model.json      what the module is, what goes into it and comes out of it, and its card
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from trimtab._files import atomic_write, plain, write_json
from trimtab._version import environment
from trimtab.core import Vector
from trimtab.problems.clients import summarise_clients
from trimtab.problems.origin import origin_of
from trimtab.problems.problem import Problem
from trimtab.problems.supervised.hugging_face import Fields
from trimtab.problems.supervised.losses import Loss, loss_kind
from trimtab.problems.supervised.problem import Supervised
from trimtab.problems.supervised.tables import Columns

FORMAT = 1
MODEL = "model.json"
# What the outputs of a module are, by the loss it was trained with.
_OUTPUTS = {
    "cross_entropy": "logits",
    "nll_loss": "log-probabilities",
    "binary_cross_entropy_with_logits": "binary logits",
    "binary_cross_entropy": "binary probabilities",
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """The data of a model, how it was trained, and how good it is.

    data: the name of the problem.
    algorithm, settings: the algorithm and its hyper-parameters.
    seed: of the run; None for a federation.
    round: the round after which this was the model.
    metrics: its metrics.
    measured_on: the data of these metrics: test data, validation data or training data.
    notes: what a reader must know of the data and the metrics.
    clients, samples, d: how many there are; `save_model` counts them. None: unknown.
    versions: of trimtab, Python, torch and NumPy.
    """

    data: str
    algorithm: str
    settings: Mapping[str, object]
    seed: int | None
    round: int
    metrics: Mapping[str, float | None]
    measured_on: str
    notes: tuple[str, ...] = ()
    clients: int | None = None
    samples: int | None = None
    d: int | None = None
    versions: Mapping[str, str] = field(default_factory=environment)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields: dict[str, Any] = plain(asdict(self))
        return fields


@dataclass(frozen=True, kw_only=True)
class Description:
    """What model.json holds.

    spec, options: the problem by its name or `file.py:function`, as for `load_problem`, or the
        function `model` of a problem file; None if the module was passed from Python.
    kind: the class of the problem, of which only Supervised has a module.
    weights: the file with the tensors.
    columns: the encoding of a table; None for other data.
    fields: the columns of a Hugging Face dataset; None for other data.
    shape: of one input; None if it is unknown or differs from input to input.
    whole: whether inputs are whole numbers, such as the codes of characters.
    outputs: what `_OUTPUTS` says of the loss; "scores" if the largest output is the predicted
        class, but probabilities are unknown; "numbers" for anything else.
    """

    spec: str | None
    options: Mapping[str, object]
    kind: str
    weights: str
    columns: Columns | None
    fields: Fields | None
    shape: tuple[int, ...] | None
    whole: bool
    outputs: str
    card: Card

    def to_json(self) -> dict[str, Any]:
        """Return what model.json holds."""
        columns = None if self.columns is None else self.columns.to_json()
        fields = None if self.fields is None else vars(self.fields)
        own = {"columns": columns, "fields": fields, "card": self.card.to_json()}
        return plain({"format": FORMAT, **vars(self), **own})  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Description":
        """Read what `to_json` wrote."""
        given = {name: value for name, value in content.items() if name != "format"}
        columns, fields, shape = given["columns"], given["fields"], given["shape"]
        card = given["card"] | {"notes": tuple(given["card"]["notes"])}
        return cls(
            **given
            | {
                "columns": None if columns is None else Columns.from_json(columns),
                "fields": None if fields is None else Fields(**fields),
                "shape": None if shape is None else tuple(shape),
                "card": Card(**card),
            }
        )


def save_model(
    folder: Path,
    problem: Problem,
    x: Vector,
    card: Card,
    *,
    weights: str = "model.safetensors",
    about: str = MODEL,
    spec: str | None = None,
) -> None:
    """Write the model x of a problem and what `load` needs to use it.

    folder: where to write; a model of the same names is replaced.
    card: with the counts of clients and samples left out, unless the problem does not know them.
    weights, about: the names of the two files.
    spec: where the module comes from; by default the origin of the problem.
    """
    origin = origin_of(problem)
    if origin is not None and spec is None:
        spec = origin.spec
    state = {name: tensor.contiguous() for name, tensor in problem.unflatten(x).items()}
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / weights) as part:
        save_file(state, part, metadata={"r": str(card.round)})
    kind, columns, loss, shape, whole = type(problem).__name__, None, None, None, False
    if isinstance(problem, Supervised):
        kind, columns, loss = "Supervised", problem.columns, problem.loss_function
        shape, whole = _inputs_of(problem)
    described = Description(
        spec=spec,
        options={} if origin is None else origin.options,
        kind=kind,
        weights=weights,
        columns=columns if isinstance(columns, Columns) else None,
        fields=columns if isinstance(columns, Fields) else None,
        shape=shape,
        whole=whole,
        outputs=_outputs_of(loss, card),
        card=_counted(card, problem),
    )
    write_json(folder / about, described.to_json())


def recommend(folder: Path, label: str) -> None:
    """Make the model in a subfolder the one that `load` returns for a folder."""
    write_json(folder / MODEL, {"format": FORMAT, "recommended": label})


def _inputs_of(problem: Supervised) -> tuple[tuple[int, ...] | None, bool]:
    """Return the shape of an input, and whether inputs are whole numbers."""
    try:
        data = problem.clients[0]
    except ValueError:  # The server of a federation has no data.
        return None, False
    if data.samples is not None or not isinstance(data.X, Tensor):
        return None, False
    return tuple(data.X.shape[1:]), not data.X.is_floating_point()


def _outputs_of(loss: Loss | None, card: Card) -> str:
    known = loss_kind(loss)
    if known is not None and known.name in _OUTPUTS:
        return _OUTPUTS[known.name]
    if known is not None and known.elementwise:
        return "numbers"
    # A subclass is not a known loss, but its outputs are logits as well.
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return "binary logits"
    return "scores" if "accuracy" in card.metrics else "numbers"


def _counted(card: Card, problem: Problem) -> Card:
    if card.clients is not None:
        return card
    found = summarise_clients(problem)
    samples = sum(found.sizes) if found.sizes else None
    return replace(card, clients=found.N, samples=samples, d=found.d)
