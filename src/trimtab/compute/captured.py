"""A function of tensors, captured once as a graph of PyTorch's operators, and replayed.

The replay knows no module, no autograd and no functorch: what those decide in Python was decided
when it was captured. `make_fx` makes the same graph, but takes several times as long for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class NotCapturedError(RuntimeError):
    """A graph cannot stand for this function."""


@dataclass(frozen=True)
class Graph:
    """What was captured: call `replay` on tensors of the same shapes and dtypes."""

    replay: Callable[..., Tensor]
    operators: int  # how many are called in a replay
    numbers: int  # how many numbers these compute


@torch.no_grad()
def capture(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Graph:
    """Run a function, which returns a tensor, and record each operator that it calls.

    Refuses what draws random numbers, writes into what it is given, or looks at numbers to decide
    what to do; tensors from elsewhere are constants of the graph.

    >>> graph = capture(lambda a, b: torch.tanh(a) @ b, (torch.ones(2, 3), torch.ones(3)))
    >>> graph.operators, graph.replay(torch.zeros(2, 3), torch.ones(3))
    (2, tensor([0., 0.]))
    """
    recorder = GraphRecorder(inputs)
    with recorder, torch.enable_grad():
        result = function(*inputs)
    recorder.graph.output(recorder.node_of(result))
    calls = _remove_aliases(recorder.graph)
    module = fx.GraphModule(recorder.constants, recorder.graph)
    return Graph(module.forward, calls, recorder.numbers)


@contextmanager
def disable_vmap_fallback() -> Iterator[None]:
    """Let vmap refuse an operator that it can only run for one row after the other."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


class GraphRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes the operators that reach the processor into a graph, and lets them run."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants, self.numbers = fx.Graph(), nn.Module(), 0
        self._nodes: dict[int, fx.Node] = {}
        self._kept_alive: list[Tensor] = []  # No other tensor may get the identity of one of these.
        self._input_memory = set[int]()  # the memory of inputs and constants
        self._known_memory = set[int]()  # all memory
        for j, tensor in enumerate(inputs):
            self._record_input(tensor, self.graph.placeholder(f"input_{j}"))

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record one operator."""
        kwargs = kwargs or {}
        if _is_random(operator, args, kwargs):
            raise NotCapturedError(f"{operator} draws random numbers")
        nodes = tree_map_only(Tensor, self.node_of, (tuple(args), dict(kwargs)))
        self._check_no_writes(operator, args, kwargs)
        result = operator(*args, **kwargs)
        call = self.graph.call_function(operator, *nodes)
        if isinstance(result, Tensor):
            self._record_result(result, call)
        elif isinstance(result, tuple | list):
            for j, tensor in enumerate(result):
                if isinstance(tensor, Tensor):
                    self._record_result(tensor, self.graph.call_function(getitem, (call, j)))
        else:
            raise NotCapturedError(f"{operator} looks at numbers to decide what to do")
        return result

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the node that computes a tensor; one from elsewhere is a constant."""
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self._kept_alive)}"
            self.constants.register_buffer(name, tensor)
            self._record_input(tensor, self.graph.get_attr(name))
        return self._nodes[id(tensor)]

    def _record_result(self, tensor: Tensor, node: fx.Node) -> None:
        """Take note of a result, which may be a view of what was there before."""
        if _memory(tensor) not in self._known_memory:
            self.numbers += tensor.numel()
        self._set_node(tensor, node)

    def _record_input(self, tensor: Tensor, node: fx.Node) -> None:
        """Take note of a tensor that was there before."""
        self._input_memory.add(_memory(tensor))
        self._set_node(tensor, node)

    def _set_node(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._kept_alive.append(tensor)
        self._known_memory.add(_memory(tensor))

    def _check_no_writes(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Refuse an operator that would change an input or a constant at every replay."""
        if not operator._schema.is_mutable:
            return
        for argument, given in _arguments(operator, args, kwargs):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, Tensor) and _memory(given) in self._input_memory:
                raise NotCapturedError(f"{operator} writes into what it is given")


def _is_random(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Tell whether an operator draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    given = {argument.name: value for argument, value in _arguments(operator, args, kwargs)}
    return given.get("dropout_p") != 0


def _arguments(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Go through an operator's arguments, each as its schema has it, and what is given for it."""
    for j, argument in enumerate(operator._schema.arguments):
        by_name = kwargs.get(argument.name, argument.default_value)
        yield argument, args[j] if j < len(args) else by_name


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _remove_aliases(graph: fx.Graph) -> int:
    """Take out detach and alias, which only autograd needs; return how many operators are left."""
    for node in list(graph.nodes):
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return sum(node.op == "call_function" for node in graph.nodes)
