"""Bring your own data: tensors or Datasets, weights, and a metric of your own.

Two hospitals that differ in what they measure, in whom they see and in how many: the first has 600
patients, one in five of them ill; the second has 200, more than half of them ill, and scanners that
read higher and wider. `problem()` is all that trimtab needs, here and on the command line:

    trimtab compare examples/own_data.py:problem

`python examples/own_data.py` takes about 4 s and prints the gradient of the common loss, which is
zero at the optimum; the test accuracy; and the sensitivity, the share of the ill that are found, on
the data of each hospital. FedAvg stops where the gradient is not zero, SCAFFOLD goes on; accuracy
hardly tells here.

    after 40 rounds   |gradient|   accuracy   sensitivity of hospitals 1 and 2
    FedAvg                0.0824      0.818                    0.414 and 0.891
    Scaffold              0.0006      0.818                    0.388 and 0.882
"""

from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from trimtab import FedAvg, Scaffold, Supervised, simulate

FEATURES = 6


class Records(Dataset[tuple[Tensor, int]]):
    """A map-style Dataset, as one would write it to read files: len(...) and [j] are enough."""

    def __init__(self, X: Tensor, y: Tensor) -> None:
        self.X, self.y = X, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, j: int) -> tuple[Tensor, int]:
        return self.X[j], int(self.y[j])


def patients(n: int, ill: float, shift: float, scale: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return measurements and diagnoses of n patients of one hospital."""
    draw = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=draw) < ill).long()
    signs = torch.tensor([1.2, -0.8, 0.6, 0.0, 0.0, 0.0])  # the illness shows in three features
    X = torch.randn(n, FEATURES, generator=draw) + y[:, None] * signs
    return shift + scale * X, y


def sensitivity(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of the ill that are found: a metric is a function of outputs and targets."""
    return (output.argmax(1) == 1)[target == 1].double().mean()


def problem(batch: int | float | None = 32) -> Supervised:
    """Return logistic regression over the two hospitals, each weighted by its patients."""
    first = patients(600, ill=0.2, shift=0.0, scale=1.0, seed=1)  # a pair of tensors
    second = Records(*patients(200, ill=0.6, shift=1.5, scale=2.0, seed=2))  # or a Dataset
    tests = (patients(300, 0.2, 0.0, 1.0, seed=3), patients(100, 0.6, 1.5, 2.0, seed=4))
    X, y = (torch.cat(parts) for parts in zip(*tests, strict=True))
    return Supervised(
        lambda: nn.Linear(FEATURES, 2),
        F.cross_entropy,
        clients=[first, second],
        test=(X, y),
        batch=batch,
        weights="samples",
        l2=1e-3,
        metrics={"sensitivity": sensitivity},
    )


def main(R: int = 40) -> None:
    hospitals = problem(batch=None)  # all local data at each step: no noise, drift alone
    print(f"after {R} rounds   |gradient|   accuracy   sensitivity of hospitals 1 and 2")
    for algorithm in (FedAvg(eta_l=0.2, K=20), Scaffold(eta_l=0.2, K=20)):
        *_, last = islice(simulate(algorithm, hospitals), R)
        gradient = float(hospitals.gradient(last.x).norm())
        accuracy = hospitals.evaluate(last.x)["accuracy"]
        found = [hospitals.evaluate(last.x, client=i)["sensitivity"] for i in range(2)]
        name = type(algorithm).__name__
        print(f"{name:15}{gradient:13.4f}{accuracy:11.3f}{found[0]:25.3f} and {found[1]:.3f}")


if __name__ == "__main__":
    main()
