"""SCAFFOLD as one writes it in PyTorch, to compare with."""

from copy import deepcopy
from itertools import chain, islice, repeat

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from trimtab.problems.supervised.batches import batch_size
from trimtab_papers.bench.workload import Workload


class PlainLoop:
    """Each client has a copy of the model, a DataLoader and an optimiser."""

    def __init__(self, work: Workload, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.work, self.model = work, work.module()
        self.loaders = [
            DataLoader(TensorDataset(X, y), batch_size(work.b, len(X)), shuffle=True)
            for X, y in clients
        ]
        self.c = [torch.zeros_like(p) for p in self.model.parameters()]
        zeros = [torch.zeros_like(p) for p in self.c]
        self.c_i = [[z.clone() for z in zeros] for _ in clients]

    def step(self) -> None:
        """Take one training step, without anything federated."""
        work, (X, y) = self.work, next(iter(self.loaders[0]))
        torch.autograd.backward(work.loss(self.model(X), y))
        with torch.no_grad():
            for p in self.model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=work.eta)
                p.grad = None

    def round(self) -> None:
        """Run one round."""
        work, x = self.work, [p.detach().clone() for p in self.model.parameters()]
        zeros = [torch.zeros_like(p) for p in x]
        dx, dc = [p.clone() for p in zeros], [p.clone() for p in zeros]
        for i in torch.randperm(work.N)[: work.S].tolist():
            c_i = self.c_i[i]
            model = deepcopy(self.model)
            optimizer = torch.optim.SGD(model.parameters(), work.eta)
            epochs = chain.from_iterable(repeat(self.loaders[i]))
            for X, y in islice(epochs, work.K):
                optimizer.zero_grad()
                torch.autograd.backward(work.loss(model(X), y))
                for p, a, b in zip(model.parameters(), c_i, self.c, strict=True):
                    assert p.grad is not None
                    p.grad += b - a
                optimizer.step()
            with torch.no_grad():
                y_i = [p.detach() for p in model.parameters()]
                steps = work.K * work.eta
                new = [
                    a - b + (p - q) / steps for a, b, p, q in zip(c_i, self.c, x, y_i, strict=True)
                ]
                for j in range(len(x)):
                    dx[j] += (y_i[j] - x[j]) / work.S
                    dc[j] += (new[j] - c_i[j]) / work.N
                self.c_i[i] = new
        with torch.no_grad():
            for p, d in zip(self.model.parameters(), dx, strict=True):
                p.add_(d)
            self.c = [a + d for a, d in zip(self.c, dc, strict=True)]
