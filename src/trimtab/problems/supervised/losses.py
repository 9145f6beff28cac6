"""What is known of PyTorch's own losses: what each is a mean over, and which shapes it takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.problems.supervised.untouched import nothing_global, untouched

Loss = Callable[[Any, Any], Tensor]

# These compare an output with a target of the same shape, number by number.
_ELEMENTWISE = {
    "mse_loss": nn.MSELoss,
    "l1_loss": nn.L1Loss,
    "smooth_l1_loss": nn.SmoothL1Loss,
    "huber_loss": nn.HuberLoss,
    "binary_cross_entropy": nn.BCELoss,
    "binary_cross_entropy_with_logits": nn.BCEWithLogitsLoss,
    "kl_div": nn.KLDivLoss,
    "poisson_nll_loss": nn.PoissonNLLLoss,
    "gaussian_nll_loss": nn.GaussianNLLLoss,
    "soft_margin_loss": nn.SoftMarginLoss,
    "hinge_embedding_loss": nn.HingeEmbeddingLoss,
}
# These may weigh samples by their labels.
_LABELS = {"cross_entropy": nn.CrossEntropyLoss, "nll_loss": nn.NLLLoss}
# These are means over samples, each of which counts once.
_ROWS = {
    "multi_margin_loss": nn.MultiMarginLoss,
    "multilabel_margin_loss": nn.MultiLabelMarginLoss,
    "multilabel_soft_margin_loss": nn.MultiLabelSoftMarginLoss,
}
_CLASSES: dict[str, type[nn.Module]] = {**_ELEMENTWISE, **_LABELS, **_ROWS}
_FUNCTIONS = {getattr(F, name): name for name in _CLASSES}
_NAMES = {cls: name for name, cls in _CLASSES.items()}
_FORWARDS: dict[type, Callable[..., Any]] = {cls: cls.forward for cls in _NAMES}
_ARGUMENTS = (
    *("weight", "pos_weight", "ignore_index", "reduction", "label_smoothing"),
    *("delta", "beta"),
)
_BENDS = {"huber_loss": "delta", "smooth_l1_loss": "beta"}  # beyond which they are linear


@dataclass(frozen=True)
class TorchLoss:
    """One of PyTorch's own losses, with the arguments it is called with."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def reduction(self) -> str:
        """What is made of the losses of the samples: mean, sum, none or batchmean."""
        if self.arguments.get("reduce") is False:
            return "none"
        if self.arguments.get("size_average") is False:
            return "sum"
        return str(self.arguments.get("reduction", "mean"))

    @property
    def elementwise(self) -> bool:
        """Whether outputs and targets must have one shape."""
        return self.name in _ELEMENTWISE

    @property
    def takes_labels(self) -> bool:
        """Whether targets may be the numbers of classes."""
        return self.name in _LABELS

    @property
    def ignore_index(self) -> int:
        """The label that does not count."""
        return int(self.arguments.get("ignore_index", -100))

    @cached_property
    def plain(self) -> bool:
        """Whether this is a mean of all alike: no weights, no smoothing, no ignored label."""
        a = self.arguments
        return (
            a.get("weight") is None
            and a.get("pos_weight") is None
            and not a.get("label_smoothing", 0.0)
            and self.ignore_index == -100
            and self.reduction == "mean"
        )

    @cached_property
    def bend(self) -> float:
        """How far an output is from its target where a Huber or smooth L1 loss becomes linear."""
        bend = self.arguments.get(_BENDS.get(self.name, ""), 1.0)
        return float(bend) if isinstance(bend, int | float) else 0.0

    def each(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the losses of samples, or of their numbers, of which a `plain` one is the mean."""
        bend = {_BENDS[self.name]: self.bend} if self.name in _BENDS else {}
        losses: Tensor = getattr(F, self.name)(output, y, reduction="none", **bend)
        return losses

    def count(self, y: Tensor) -> float | None:
        """Return how much these targets count in a mean over them and others; None: not known.

        >>> weighted = recognise(nn.CrossEntropyLoss(weight=Tensor([1.0, 3.0])))
        >>> weighted.count(Tensor([0, 1, 1, -100]).long())
        7.0
        """
        if self.reduction not in ("mean", "batchmean"):
            return None
        weight = self.arguments.get("weight")
        if self.name in _LABELS and not y.is_floating_point():
            counted = y[y != self.ignore_index]
            return float(
                counted.numel() if weight is None else weight[counted].cpu().double().sum()
            )
        tensors = [v for v in self.arguments.values() if isinstance(v, Tensor)]
        if self.elementwise and any(t.dim() >= y.dim() and t.numel() > 1 for t in tensors):
            return None  # There is a weight for each sample.
        return float(len(y))


_WITHOUT_ARGUMENTS = {function: TorchLoss(name, {}) for function, name in _FUNCTIONS.items()}


def recognise(loss: object) -> TorchLoss | None:
    """Return what is known of a loss; None for one that is not PyTorch's, or has been changed.

    >>> recognise(partial(F.cross_entropy, reduction="sum")).reduction
    'sum'
    >>> recognise(lambda output, y: F.cross_entropy(output, y)) is None
    True
    """
    if isinstance(loss, partial):
        known = None if loss.args else recognise(loss.func)
        return None if known is None else TorchLoss(known.name, loss.keywords)
    if not isinstance(loss, nn.Module):
        return _WITHOUT_ARGUMENTS.get(loss) if isinstance(loss, FunctionType) else None
    name = _NAMES.get(type(loss))
    if name is None or _FUNCTIONS.get(getattr(F, name)) != name:
        return None
    if not (nothing_global() and untouched(loss, _FORWARDS[type(loss)])):
        return None
    return TorchLoss(name, {a: getattr(loss, a) for a in _ARGUMENTS if hasattr(loss, a)})


def shares(loss: object, targets: Sequence[Tensor]) -> list[float] | None:
    """Return by what to weigh the losses of pieces so that they add up to the loss of the whole.

    None where that is not known.
    """
    known = recognise(loss)
    counts = [None if known is None else known.count(y) for y in targets]
    total = sum(count or 0.0 for count in counts)
    if None in counts or not total:
        return None
    return [(count or 0.0) / total for count in counts]


def check_loss(loss: Any) -> None:
    """Refuse a loss that is no function of outputs and targets, or no mean over samples."""
    if isinstance(loss, type):
        raise ValueError(f"loss={loss.__name__} is a class; pass an instance, {loss.__name__}().")
    if not callable(loss):
        raise ValueError(
            f"loss={loss!r} cannot be called; pass a function of outputs and targets, such as "
            "torch.nn.functional.cross_entropy."
        )
    known = recognise(loss)
    if known is not None and known.reduction in ("sum", "none"):
        raise ValueError(
            f"loss: {known.name} has reduction='{known.reduction}', but f_i is a mean over "
            "samples; pass reduction='mean'."
        )


def correct(loss: object, output: Tensor, y: Tensor) -> Tensor | None:
    """Return which predictions are right, or None where that means nothing."""
    known = recognise(loss)
    binary = known is not None and known.name == "binary_cross_entropy_with_logits"
    if binary or isinstance(loss, nn.BCEWithLogitsLoss):
        return (output > 0) == (y > 0.5)
    if y.is_floating_point() or output.dim() < 2 or output.shape[1] < 2:
        return None
    predicted = output.argmax(1)
    if predicted.shape != y.shape:
        return None
    return (predicted == y)[y != ignored_label(loss)]


def ignored_label(loss: object) -> int:
    """Return the label that a loss ignores, -100 unless it says otherwise."""
    known = recognise(loss)
    label = getattr(loss, "ignore_index", -100) if known is None else known.ignore_index
    return label if isinstance(label, int) else -100
