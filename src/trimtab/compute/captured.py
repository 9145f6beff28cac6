"""Capture a function of tensors once as a graph of PyTorch operators, and replay it.

The replay does not pass through the module, autograd or functorch: their decisions in Python were
made during the capture. `make_fx` gives the same graph but takes several times as long.
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
    """A graph cannot represent this function."""


@dataclass(frozen=True)
class Graph:
    """A captured function; `replay` takes tensors of the captured shapes and dtypes."""

    replay: Callable[..., Tensor]
    operators: int  # called in a replay
    numbers: int  # elements that these operators compute


@torch.no_grad()
def capture(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Graph:
    """Run a function that returns a tensor, and record the operators it calls.

    function: it may not draw random numbers, write into its inputs, or branch on values: then
        NotCapturedError is raised. Tensors that are not inputs become constants of the graph.
    inputs: tensors with the shapes and dtypes of later replays.

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
    """Make vmap raise an error for operators that it can only run row by row, which is slow."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


class GraphRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operator below autograd and functorch in a graph, and runs it."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants, self.numbers = fx.Graph(), nn.Module(), 0
        self._nodes: dict[int, fx.Node] = {}
        self._kept_alive: list[Tensor] = []  # ids of freed tensors are used again
        self._input_memory = set[int]()  # the memory of inputs and constants
        self._known_memory = set[int]()  # the memory of all tensors so far
        for j, tensor in enumerate(inputs):
            self._record_input(tensor, self.graph.placeholder(f"input_{j}"))

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record and run one operator."""
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
            raise NotCapturedError(f"{operator} returns a number, on which code may branch")
        return result

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the node that computes a tensor; an unknown tensor becomes a constant."""
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self._kept_alive)}"
            self.constants.register_buffer(name, tensor)
            self._record_input(tensor, self.graph.get_attr(name))
        return self._nodes[id(tensor)]

    def _record_result(self, tensor: Tensor, node: fx.Node) -> None:
        """Record a result; views of known memory compute no new numbers."""
        if _memory(tensor) not in self._known_memory:
            self.numbers += tensor.numel()
        self._set_node(tensor, node)

    def _record_input(self, tensor: Tensor, node: fx.Node) -> None:
        """Record an input or a constant, which operators may not write into."""
        self._input_memory.add(_memory(tensor))
        self._set_node(tensor, node)

    def _set_node(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._kept_alive.append(tensor)
        self._known_memory.add(_memory(tensor))

    def _check_no_writes(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise NotCapturedError if replays would change an input or a constant."""
        if not operator._schema.is_mutable:
            return
        for argument, given in _arguments(operator, args, kwargs):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, Tensor) and _memory(given) in self._input_memory:
                raise NotCapturedError(f"{operator} writes into an input or a constant")


def _is_random(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an operator draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    given = {argument.name: value for argument, value in _arguments(operator, args, kwargs)}
    return given.get("dropout_p") != 0


def _arguments(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Iterate over the arguments of an operator's schema and their values."""
    for j, argument in enumerate(operator._schema.arguments):
        by_name = kwargs.get(argument.name, argument.default_value)
        yield argument, args[j] if j < len(args) else by_name


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _remove_aliases(graph: fx.Graph) -> int:
    """Remove detach and alias, which only autograd needs; return how many operators remain."""
    for node in list(graph.nodes):
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return sum(node.op == "call_function" for node in graph.nodes)
