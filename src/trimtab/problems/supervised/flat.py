"""An nn.Module seen as a function of one flat vector of its trainable parameters; trees of data.

Batches and outputs are trees: a tensor, or tuples, lists and dicts of trees. Unlike the states of
algorithms (`core.tree`) they may be dicts, with other leaves than tensors, as a language model's.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from trimtab.core import Vector
from trimtab.problems.supervised.buffers import norms_of

Tree = Any
"""A tensor, or a tuple, list or dict of trees; None where there is nothing."""


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree in order, without its other leaves.

    >>> [t.item() for t in leaves({"a": torch.tensor(1), "b": (torch.tensor(2), None)})]
    [1, 2]
    """
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for _, part in parts(tree) for leaf in leaves(part)]


def parts(tree: Tree) -> list[tuple[Any, Tree]]:
    """Return the items of a tuple, list or dict with their keys or places; of a leaf, none."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    return list(enumerate(tree)) if isinstance(tree, tuple | list) else []


def map_tree(f: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply f to each leaf but None; keep the structure and its classes.

    >>> map_tree(len, {"a": "four", "b": ("three", None)})
    {'a': 4, 'b': (5, None)}
    """
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return _like(tree, {key: map_tree(f, part) for key, part in tree.items()})
    if isinstance(tree, tuple | list):
        return _like(tree, [map_tree(f, part) for part in tree])
    return f(tree)


def join(trees: Sequence[Tree]) -> Tree:
    """Concatenate the rows of trees of one structure.

    >>> join([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(1, 3)}])["a"].shape
    torch.Size([3, 3])
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if first is None:
        return None
    if isinstance(first, Mapping):
        return _like(first, {key: join([tree[key] for tree in trees]) for key in first})
    if isinstance(first, tuple | list):
        return _like(first, [join(together) for together in zip(*trees, strict=True)])
    raise TypeError(f"a {type(first).__name__} has no rows")


def map_rows(f: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply f to tensors that have rows; keep leaves of the whole batch, such as one number.

    >>> map_rows(lambda t: t[:1], {"scores": torch.zeros(5), "penalty": 0.1})
    {'scores': tensor([0.]), 'penalty': 0.1}
    """
    return map_tree(lambda part: f(part) if isinstance(part, Tensor) and part.dim() else part, tree)


def describe(tree: Tree) -> str:
    """Return the structure of a tree as text, with the shapes of one sample.

    >>> describe({"a": torch.zeros(5, 3), "b": torch.zeros(5)})
    "{'a': (3,), 'b': ()}"
    """
    if isinstance(tree, Tensor):
        return str(tuple(tree.shape[1:]))
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(part)}" for key, part in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(describe(part) for part in tree) + ("," * (len(tree) == 1)) + ")"
    return "nothing" if tree is None else type(tree).__name__


def form(tree: Tree) -> Any:
    """Return the structure of a tree, equal for trees that differ in shapes alone.

    >>> form({"a": torch.zeros(5, 3)}) == form({"a": torch.zeros(2, 7)})
    True
    """
    if isinstance(tree, Tensor):
        return "tensor"
    if isinstance(tree, Mapping):
        return frozenset((key, form(part)) for key, part in tree.items())
    return tuple(form(part) for _, part in parts(tree))


def _like(tree: Tree, contents: Any) -> Tree:
    """Return contents in the class of a tree, also a named tuple or an output of transformers."""
    if isinstance(tree, Mapping):
        return contents if type(tree) is dict else type(tree)(**contents)
    return type(tree)(*contents) if hasattr(tree, "_fields") else type(tree)(contents)


# Layers whose batched second derivatives are reliable; `hessian_products` uses them.
_SIMPLE = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Flatten, nn.Identity)
# Hessian-vector products per call of autograd, which holds the intermediate results of all of them.
_ROWS = 64


class FlatModule:
    """A copy of a module whose trainable parameters are views of one vector; the rest stays inside.

    >>> flat = FlatModule(nn.Linear(2, 1))
    >>> flat.d, flat(torch.zeros(3), torch.ones(5, 2)).shape
    (3, torch.Size([5, 1]))
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        norms = norms_of(module)
        self.module = _copy(module).to(device=device)
        if dtype is not None:
            # Module.to(dtype) would drop the imaginary parts of complex buffers.
            self.module._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)  # type: ignore[no-untyped-call]
        self._spread: bool | None = None  # whether parts of inputs are arguments of its forward
        self.names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        self.trainable = [p for p in self.module.parameters() if p.requires_grad]
        if not self.trainable:
            raise ValueError(f"{_name(module)} has no trainable parameters; unfreeze some of them.")
        if len({(p.dtype, p.device) for p in self.trainable}) > 1:
            raise ValueError(
                f"{_name(module)} mixes dtypes or devices; move it with module.to(…) first."
            )
        self.start = self.vector_of(self.module)
        self.d, self.dtype, self.device = len(self.start), self.start.dtype, self.start.device
        self.draws = False  # whether forward or loss draws random numbers; `checks` finds out
        self.needs_two = False  # whether BatchNorm refuses a single sample; `MeanLoss` finds out
        self._set_norms(list(norms))
        self._as_given = [(m, m.training) for m in self.module.modules()]
        self._training: bool | None = None  # the mode it was last put in
        self._vector = self.start.clone()  # what the parameters are views of
        parts = torch.split(self._vector, [p.numel() for p in self.trainable])
        for parameter, part in zip(self.trainable, parts, strict=True):
            parameter.data = part.view(parameter.shape)

    def copy_for_thread(self) -> "FlatModule":
        """Return a copy with separate parameters, for another thread."""
        copied = FlatModule(self.module)
        copied.start, copied.draws = self.start, self.draws
        flags = [flag for _, flag in self._as_given]
        copied._as_given = list(zip(copied.module.modules(), flags, strict=True))
        copied._set_norms(list(self.norms))
        return copied

    def _set_norms(self, names: Sequence[str]) -> None:
        """Let these layers of BatchNorm neither read nor change their buffers in training."""
        layers: dict[str, Any] = dict(self.module.named_modules())
        self.norms, self._buffers = {name: layers[name] for name in names}, dict[str, Tensor]()
        self._used: Mapping[str, Tensor] | None = None
        for name, layer in self.norms.items():
            layer.track_running_stats = False
            self._buffers |= dict(layer.named_buffers(prefix=name))
        self._initial = {name: t.clone() for name, t in self._buffers.items()}

    def use(self, statistics: Mapping[str, Tensor]) -> None:
        """Normalise by these statistics in evaluation mode."""
        if statistics is self._used:
            return
        for name, t in {**self._initial, **statistics}.items():
            self._buffers[name].copy_(t)
        self._used = statistics

    def released(self) -> nn.Module:
        """Return a copy of the module whose BatchNorm keeps statistics again when it is trained."""
        module = deepcopy(self.module)
        for name in self.norms:
            vars(module.get_submodule(name))["track_running_stats"] = True
        return module

    def vector_of(self, module: nn.Module) -> Vector:
        """Return the trainable parameters of a module of the same build as a vector."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def vector_in(self, state_dict: Mapping[str, Tensor]) -> Vector:
        """Return the trainable parameters in the state_dict of a module of the same build."""
        return torch.cat([state_dict[name].detach().reshape(-1) for name in self.names])

    def state_dict(
        self, x: Vector, statistics: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the module's whole state_dict, with the parameters of x.

        statistics: the buffers of BatchNorm; default those that the module was given with.
        """
        self._vector.copy_(x.detach())
        self.use(statistics or self._initial)
        return {name: t.detach().clone() for name, t in self.module.state_dict().items()}

    def __call__(self, x: Vector, X: Tree) -> Any:
        """Return the module's output at x."""
        module, before = self.at(x), versions(X)
        output = module(X) if isinstance(X, Tensor) else self._of_parts(X)
        if versions(X) != before:
            raise ValueError(changes_inputs(_name(self.module)))
        return output

    def at(self, x: Vector) -> nn.Module:
        """Return the module with the parameters of x, which the next call replaces."""
        if x.shape != (self.d,):
            raise ValueError(f"x has shape {tuple(x.shape)}; pass a vector of length d={self.d}.")
        # The parameters are views of this vector, so that one copy sets all of them.
        self._vector.copy_(x.detach())
        return self.module

    def _of_parts(self, X: Tree) -> Any:
        """Return the output for a dict or tuple: its arguments, if its forward has such, or one."""
        if self._spread is None:
            self._spread = takes_parts(self.module.forward, X)
        if not self._spread:
            return self.module(X)
        return self.module(**X) if isinstance(X, Mapping) else self.module(*X)

    def gradient(self, loss: Tensor) -> Vector:
        """Return the gradient of a loss with respect to the vector it was computed at."""
        parts = torch.autograd.grad(loss, self.trainable, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def hessian_products(self, loss: Tensor, V: Tensor) -> Tensor:
        """Return the Hessian of a loss times each row of V, by differentiating its gradient."""
        first = torch.autograd.grad(loss, self.trainable, create_graph=True, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in first])
        if not gradient.requires_grad:  # The loss is linear in x.
            return torch.zeros_like(V)

        def second(v: Tensor, several: bool) -> Tensor:
            parts = torch.autograd.grad(
                gradient,
                self.trainable,
                v,
                retain_graph=True,
                is_grads_batched=several,
                materialize_grads=True,
            )
            # materialize_grads fills in zeros without the dimension of the batch.
            rows = v.shape[:-1]
            whole = [p.expand(*rows, *q.shape) for p, q in zip(parts, self.trainable, strict=True)]
            return torch.cat([part.reshape(*rows, -1) for part in whole], -1)

        # PyTorch's batched second derivatives of other layers are not reliable.
        if self._simple:
            return torch.cat([second(rows, True) for rows in torch.split(V, _ROWS)])
        return torch.stack([second(v, False) for v in V])

    @property
    def _simple(self) -> bool:
        leaves = (m for m in self.module.modules() if not list(m.children()))
        return all(isinstance(m, _SIMPLE) for m in leaves)

    def mode(self, training: bool) -> None:
        """Put the submodules in the mode they were given in, or all in evaluation mode."""
        if training is self._training:
            return
        self._training = training
        if training:
            for submodule, flag in self._as_given:
                submodule.training = flag
        else:
            self.module.eval()

    def changed_buffers(self, run: Callable[[], Any]) -> list[str]:
        """Return the names of the buffers that `run` changes."""
        before = {name: b.clone() for name, b in self.module.named_buffers()}
        run()
        changed = [n for n, b in self.module.named_buffers() if not torch.equal(before[n], b)]
        for name, buffer in self.module.named_buffers():
            if name in changed:
                buffer.copy_(before[name])
        return changed


class FunctionOfVector:
    """A copy of a module as a pure function of its vector, which may be differentiated or batched.

    Its trainable parameters are replaced, in every layer that has them, by views of the argument x.
    `torch.func.functional_call` leaves such views behind in a layer that is used in two places. One
    thread at a time may call it.

    >>> f = FunctionOfVector(FlatModule(nn.Linear(2, 1))).loss(lambda output, y: output.sum())
    >>> torch.func.grad(f)(torch.zeros(3), torch.ones(5, 2), None)
    tensor([5., 5., 5.])
    """

    def __init__(self, model: FlatModule) -> None:
        self.model = model.copy_for_thread()
        places = {id(p): j for j, p in enumerate(self.model.trainable)}
        self._places = [
            (layer._parameters, name, places[id(parameter)])
            for layer in self.model.module.modules()
            for name, parameter in layer._parameters.items()
            if parameter is not None and id(parameter) in places
        ]

    def loss(
        self, loss: Callable[[Tensor, Tensor], Tensor], training: bool = True
    ) -> Callable[..., Tensor]:
        """Return (x, X, y) -> the loss, in training mode or without dropout."""
        model = self.model
        sizes, shapes = [p.numel() for p in model.trainable], [p.shape for p in model.trainable]

        def value(x: Vector, X: Tensor, y: Tensor) -> Tensor:
            parts = torch.split(x, sizes)
            views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
            model.mode(training)
            self._put(views)
            try:
                return loss(model.module(X), y).reshape(())
            finally:
                self._put(model.trainable)

        return value

    def _put(self, tensors: Sequence[Any]) -> None:
        for layer, name, j in self._places:
            layer[name] = tensors[j]


def _copy(module: nn.Module) -> nn.Module:
    """Return a deep copy with the hooks on parameters, which a deep copy alone leaves behind."""
    try:
        copy = deepcopy(module)
    except Exception as error:
        raise ValueError(
            f"{_name(module)} cannot be copied ({first_line(error)}); pass a module that "
            "copy.deepcopy can copy, e.g. after torch.nn.utils.prune.remove, or with "
            "torch.nn.utils.parametrizations.weight_norm."
        ) from error
    for new, old in zip(copy.parameters(), module.parameters(), strict=True):
        for hook in (old._backward_hooks or {}).values():
            new.register_hook(hook)  # type: ignore[no-untyped-call]
    return copy


def check_module(module: nn.Module) -> None:
    """Raise ValueError for TorchScript, or parameters that are not finite float32 or float64."""
    for name, m in module.named_modules():
        if isinstance(m, torch.jit.ScriptModule):
            where = f"layer '{name}' ({_name(m)})" if name else _name(m)
            raise ValueError(
                f"{where} is TorchScript, whose parameters cannot become parts of a "
                "vector; pass the nn.Module that torch.jit.script or torch.jit.trace was given."
            )
    for name, p in module.named_parameters():
        where = f"parameter '{name}' of {_name(module)}"
        if isinstance(p, UninitializedParameter):
            raise ValueError(
                f"{where} has no shape yet; call the module once on a batch before you pass it."
            )
        if p.is_meta:
            raise ValueError(f"{where} is on the meta device; pass a module that has numbers.")
        if p.requires_grad and p.is_complex():
            raise ValueError(
                f"{where} is complex ({p.dtype}); make its real and imaginary parts one real "
                "parameter, of which forward makes torch.view_as_complex(parameter)."
            )
        if p.requires_grad and p.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{where} is {p.dtype}; pass module.float(), and autocast=torch.bfloat16 for speed."
            )
        if not bool(torch.isfinite(p.detach()).all()):
            raise ValueError(f"{where} holds NaN or infinity; pass finite numbers.")


def takes_parts(forward: Callable[..., Any], X: Tree) -> bool:
    """Return whether a function takes the parts of a dict by name, or those of a tuple by place."""
    arguments = inspect.signature(forward)
    try:
        _ = arguments.bind(**X) if isinstance(X, Mapping) else arguments.bind(*X)
    except TypeError:
        return False
    return True


def version(t: Tensor) -> int:
    """Return a number that changes when a tensor, or the tensor it is a view of, is written to."""
    # Tensors of inference mode have no counter.
    return -1 if t.is_inference() else t._version


def versions(tree: Tree) -> list[int]:
    """Return the `version` of each tensor of a tree."""
    return [version(tree)] if isinstance(tree, Tensor) else [version(t) for t in leaves(tree)]


def changes_inputs(owner: str) -> str:
    """Return the message for a module that writes into its inputs."""
    return (
        f"{owner} changes its inputs in place, that is, the data themselves; write x = x / 255 "
        "instead of x /= 255, and inplace=False in a first layer."
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error as part of a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"[.!?] (?=[A-Z])", "; ", lines[0]).rstrip(".")


def _name(module: nn.Module) -> str:
    return type(module).__name__
