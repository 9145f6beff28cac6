"""The least a round can take: its products, or its heavy calls, on warm operands, nothing else."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.compute import kernel
from trimtab.problems.supervised.batches import batch_size
from trimtab_papers.bench.workload import Workload

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
HEAVY = {  # what a faster framework could not leave out
    *("mm", "addmm", "bmm", "baddbmm", "convolution", "mkldnn_rnn_layer", _ATTENTION),
    *("convolution_backward", "mkldnn_rnn_layer_backward", f"{_ATTENTION}_backward"),
}


class Call(NamedTuple):
    """A call of an operator, with its operands."""

    operator: Any
    operands: Sequence[Any]
    options: Mapping[str, Any]

    def with_own_operands(self) -> "Call":
        """Return the same call on copies of its tensors, so that threads share no memory."""
        options = {name: _copied(value) for name, value in self.options.items()}
        return Call(self.operator, [_copied(value) for value in self.operands], options)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down the heavy operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.split("::")[1] in HEAVY:
            self.calls.append(Call(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def heavy_calls(work: Workload) -> list[Call]:
    """Return the products, convolutions, RNN and attention calls of one local step."""
    X, y = work.clients()[0]
    b = batch_size(work.b, len(X))
    module = work.module()
    listener = _Listener()
    with listener:
        torch.autograd.backward(work.loss(module(X[:b]), y[:b]))
    return listener.calls


def _products(work: Workload) -> list[Call]:
    return [
        Call(torch.mm, (torch.randn(m, k), torch.randn(k, n)), {"out": torch.empty(m, n)})
        for m, k, n in work.products
    ]


def bare_round(work: Workload) -> Callable[[], float]:
    """Return what runs the bare calls of a round, one thread on each core, and takes the time."""
    calls = _products(work) if work.products else heavy_calls(work)
    count = kernel.cores()
    steps = max(1, work.S * work.K // count)

    def one_thread(_: int) -> float:
        torch.set_num_threads(1)
        own = [call.with_own_operands() for call in calls]
        with torch.no_grad():
            for operator, operands, options in own:
                operator(*operands, **options)
            started = perf_counter()
            for _ in range(steps):
                for operator, operands, options in own:
                    operator(*operands, **options)
            return perf_counter() - started

    def seconds() -> float:
        before = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(count) as pool:
                return max(pool.map(one_thread, range(count)))
        finally:
            torch.set_num_threads(before)

    return seconds
