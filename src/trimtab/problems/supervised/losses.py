"""PyTorch's own losses and layers: recognise them, and find out whether they were changed.

The checks run in every round. They take a microsecond per module, because they read only the
attributes that Python reads in a call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import inf
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as _module

# The functions that the kernel replaces; users and libraries may patch any of them.
_OWNERS: tuple[tuple[Any, str], ...] = (
    *((nn.Module, name) for name in ("__call__", "_call_impl", "_wrapped_call_impl")),
    *((layer, "forward") for layer in (nn.Linear, nn.LayerNorm, nn.Flatten, nn.Sequential)),
    *((layer, "forward") for layer in (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU)),
    *((F, name) for name in ("linear", "layer_norm", "relu", "silu", "gelu")),
    *((torch, name) for name in ("tanh", "sigmoid")),
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ORIGINALS = tuple((owner, name, getattr(owner, name)) for owner, name in _OWNERS)


def no_global_hooks() -> bool:
    """Return whether no global hook is set and none of PyTorch's own functions is replaced.

    >>> no_global_hooks()
    True
    """
    hooks = (
        _module._global_forward_hooks
        or _module._global_forward_pre_hooks
        or _module._global_backward_hooks
        or _module._global_backward_pre_hooks
    )
    if hooks:
        return False
    for owner, name, original in _ORIGINALS:  # noqa: SIM110 (a loop takes half the time of all())
        if getattr(owner, name) is not original:
            return False
    return True


def is_unpatched(module: nn.Module, forward: Callable[..., Any]) -> bool:
    """Return whether a module has no hooks, and the `forward` of its class.

    >>> layer = nn.Linear(2, 1)
    >>> is_unpatched(layer, nn.Linear.forward)
    True
    >>> layer.forward = lambda X: X
    >>> is_unpatched(layer, nn.Linear.forward)
    False
    """
    own = vars(module)
    cls: Any = type(module)
    hooks = (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
    )
    return not hooks and cls.forward is forward and own.keys().isdisjoint(_attributes(cls))


def hooked(module: nn.Module) -> str:
    """Return the layer or parameter of a module that has a hook; empty if none has.

    >>> net = nn.Sequential(nn.Linear(2, 1))
    >>> handle = net[0].register_forward_hook(print)
    >>> hooked(net)
    "layer '0'"
    """
    if not no_global_hooks():
        return "all modules"
    for name, layer in module.named_modules():
        own = vars(layer)
        if any(own[hooks] for hooks in _HOOKS):
            return f"layer '{name}'"
        for inner, parameter in layer._parameters.items():
            if parameter is not None and parameter._backward_hooks:
                return f"parameter '{f'{name}.{inner}' if name else inner}'"
    return ""


def is_plain_parameter(parameter: Tensor) -> bool:
    """Return whether a parameter is trained, not of a subclass, and without hooks."""
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and not parameter._backward_hooks
    )


@cache
def _attributes(cls: Any) -> frozenset[str]:
    return frozenset(dir(cls))


@dataclass(frozen=True)
class OnBatch:
    """A function of (module, batch), for `Supervised(loss=…)` and for its metrics.

    The batch is (X, y) if samples are pairs, a dict of tensors if they are dicts, or the result of
    `collate`.

    function: takes the module, which it may call several times, and the batch. As a loss it
        returns the mean over samples, a tensor; as a metric it returns a number.

    >>> import torch
    >>> from trimtab import Supervised
    >>> rows = {"a": torch.ones(4, 2), "b": torch.zeros(4, 1)}
    >>> loss = OnBatch(lambda module, batch: (module(batch["a"]) - batch["b"]).square().mean())
    >>> sorted(Supervised(nn.Linear(2, 1), loss, [rows]).evaluate(torch.zeros(3)).items())
    [('loss', 0.0)]
    """

    function: Callable[[nn.Module, Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ValueError(
                f"OnBatch({self.function!r}) has no function; pass one of (module, batch)."
            )

    def __call__(self, module: nn.Module, batch: Any) -> Any:
        """Return the function's value."""
        return self.function(module, batch)


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
_REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
# These may weigh samples by their labels.
_LABELS = {"cross_entropy": nn.CrossEntropyLoss, "nll_loss": nn.NLLLoss}
# These are means over samples, each of which counts once.
_ROWS = {
    "multi_margin_loss": nn.MultiMarginLoss,
    "multilabel_margin_loss": nn.MultiLabelMarginLoss,
    "multilabel_soft_margin_loss": nn.MultiLabelSoftMarginLoss,
}
_NOT_NEGATIVE = {
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
}
_CLASSES: dict[str, type[nn.Module]] = {**_ELEMENTWISE, **_LABELS, **_ROWS}
_FUNCTIONS = {getattr(F, name): name for name in _CLASSES}
_NAMES = {cls: name for name, cls in _CLASSES.items()}
_FORWARDS: dict[type, Callable[..., Any]] = {cls: cls.forward for cls in _NAMES}
_ARGUMENTS = (
    *("weight", "pos_weight", "ignore_index", "reduction", "label_smoothing"),
    *("delta", "beta"),
)
_HUBER_DELTAS = {"huber_loss": "delta", "smooth_l1_loss": "beta"}  # beyond which they are linear


@dataclass(frozen=True)
class TorchLoss:
    """One of PyTorch's own losses, with the arguments it is called with."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def reduction(self) -> str:
        """How the losses of samples are combined: mean, sum, none or batchmean."""
        # `reduce` and `size_average` are deprecated, but functions still take them.
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
    def is_regression(self) -> bool:
        """Whether targets are numbers on a scale, which may be shifted and divided."""
        return self.name in _REGRESSION

    @property
    def takes_labels(self) -> bool:
        """Whether targets may be the numbers of classes."""
        return self.name in _LABELS

    @property
    def ignore_index(self) -> int:
        """The label whose samples are ignored; PyTorch's default is -100."""
        return int(self.arguments.get("ignore_index", -100))

    @cached_property
    def plain(self) -> bool:
        """Whether this is an unweighted mean: no weights, no smoothing, no ignored label."""
        a = self.arguments
        return (
            a.get("weight") is None
            and a.get("pos_weight") is None
            and not a.get("label_smoothing", 0.0)
            and self.ignore_index == -100
            and self.reduction == "mean"
        )

    @cached_property
    def huber_delta(self) -> float:
        """The distance from the target beyond which a Huber or smooth L1 loss is linear."""
        huber_delta = self.arguments.get(_HUBER_DELTAS.get(self.name, ""), 1.0)
        return float(huber_delta) if isinstance(huber_delta, int | float) else 0.0

    def each(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the losses of samples, or of their elements; a `plain` loss is their mean."""
        huber_delta = (
            {_HUBER_DELTAS[self.name]: self.huber_delta} if self.name in _HUBER_DELTAS else {}
        )
        losses: Tensor = getattr(F, self.name)(output, y, reduction="none", **huber_delta)
        return losses

    def count(self, y: Tensor) -> float | None:
        """Return the weight of these targets in a mean over them and others; None if unknown.

        >>> weighted = loss_kind(nn.CrossEntropyLoss(weight=Tensor([1.0, 3.0])))
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
            # There is a weight for each sample, and the weights of a piece are not known.
            return None
        return float(len(y))


_WITHOUT_ARGUMENTS = {function: TorchLoss(name, {}) for function, name in _FUNCTIONS.items()}


def least_value(loss: object) -> float:
    """Return a lower bound of a loss: 0 for some of PyTorch's own, -inf for any other.

    >>> least_value(F.cross_entropy), least_value(nn.GaussianNLLLoss())
    (0.0, -inf)
    """
    known = loss_kind(loss)
    return 0.0 if known is not None and known.name in _NOT_NEGATIVE else -inf


def loss_kind(loss: object) -> TorchLoss | None:
    """Return the loss of PyTorch that a function or module is; None for others, or if changed.

    loss: a function of torch.nn.functional, a partial of one, or a module such as nn.MSELoss().

    >>> loss_kind(partial(F.cross_entropy, reduction="sum")).reduction
    'sum'
    >>> loss_kind(lambda output, y: F.cross_entropy(output, y)) is None
    True
    """
    if isinstance(loss, partial):
        known = None if loss.args else loss_kind(loss.func)
        return None if known is None else TorchLoss(known.name, loss.keywords)
    if not isinstance(loss, nn.Module):
        return _WITHOUT_ARGUMENTS.get(loss) if isinstance(loss, FunctionType) else None
    name = _NAMES.get(type(loss))
    # A module calls its function by name, which may be patched.
    if name is None or _FUNCTIONS.get(getattr(F, name)) != name:
        return None
    if not (no_global_hooks() and is_unpatched(loss, _FORWARDS[type(loss)])):
        return None
    return TorchLoss(name, {a: getattr(loss, a) for a in _ARGUMENTS if hasattr(loss, a)})


def shares(loss: object, targets: Sequence[Tensor]) -> list[float] | None:
    """Return the weights with which the losses of pieces add up to the loss of all samples.

    None if they are unknown.
    """
    known = loss_kind(loss)
    counts = [None if known is None else known.count(y) for y in targets]
    total = sum(count or 0.0 for count in counts)
    if None in counts or not total:
        return None
    return [(count or 0.0) / total for count in counts]


def check_loss(loss: Any) -> None:
    """Raise ValueError unless a loss is callable and, if known, a mean over samples."""
    if isinstance(loss, type):
        raise ValueError(f"loss={loss.__name__} is a class; pass an instance, {loss.__name__}().")
    if not callable(loss):
        raise ValueError(
            f"loss={loss!r} cannot be called; pass a function of outputs and targets, such as "
            "torch.nn.functional.cross_entropy."
        )
    known = loss_kind(loss)
    if known is not None and known.reduction in ("sum", "none"):
        raise ValueError(
            f"loss: {known.name} has reduction='{known.reduction}', but f_i is a mean over "
            "samples; pass reduction='mean'."
        )


def correct(loss: object, output: Tensor, y: Tensor) -> Tensor | None:
    """Return whether each prediction is right; None if outputs are not scores of classes."""
    known = loss_kind(loss)
    # A subclass is not a known loss, but its outputs are logits as well.
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
    """Return the label that a loss ignores; by default -100, as in PyTorch."""
    known = loss_kind(loss)
    label = getattr(loss, "ignore_index", -100) if known is None else known.ignore_index
    return label if isinstance(label, int) else -100
