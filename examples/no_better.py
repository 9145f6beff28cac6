"""Why is SCAFFOLD no better than FedAvg here? Three causes, each on a small case.

docs/no-better.md explains them. Takes about 10 s and prints

    1. clients alike: zeta 0.03, no difference
       clients that differ: zeta 1.44, choice
    2. local steps with momentum 0.9: accuracy after 40 rounds
       FedAvg         0.95
       displacement   0.06
       trimtab.torch  0.97
    3. 5 of 100 clients a round: |x - x*| after 5, 40 and 160 rounds
       FedAvg     1.650  1.612  2.083
       Scaffold   1.611  0.590  0.013
"""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from trimtab import FedAvg, Quadratic, Scaffold, diagnose, simulate
from trimtab.torch import Controls


def alike_or_not():
    draw = torch.Generator().manual_seed(0)
    A = torch.linspace(0.1, 1, 10, dtype=torch.float64).repeat(20, 1)  # the Hessians' diagonals
    b = torch.ones_like(A) + 0.01 * torch.randn(20, 10, generator=draw)
    pair = torch.tensor([[1.0, 0.1], [0.8, 0.05]])
    cases = {
        "1. clients alike": Quadratic(A, b),
        "   clients that differ": Quadratic(pair, torch.tensor([[2.0, 0.3], [-1.0, 0.1]])),
    }
    for name, problem in cases.items():
        found = diagnose(problem)
        print(f"{name}: zeta {found.zeta:.2f}, {found.verdict}")


def digits():
    """Return ten clients that have seen one digit or two."""
    X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    X, order = X.float() / 16, y.argsort(stable=True)
    return X, y, list(zip(X[order].tensor_split(10), y[order].tensor_split(10), strict=True))


def loop(kind, rounds=40, K=30, lr=0.1):
    """Return the accuracy of a loop with momentum whose c_i are made in one of three ways."""
    X, y, clients = digits()
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    controls = [Controls(model) for _ in clients]
    zero = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    c, c_i = dict(zero), [dict(zero) for _ in clients]
    for _ in range(rounds):
        moves = []
        for i, (X_i, y_i) in enumerate(clients):
            model.load_state_dict(x)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            if kind == "trimtab.torch":
                controls[i].begin(c, optimizer)
            for _ in range(K):
                rows = torch.randint(len(y_i), (32,))
                optimizer.zero_grad()
                F.cross_entropy(model(X_i[rows]), y_i[rows]).backward()
                if kind == "trimtab.torch":
                    controls[i].correct()  # c_i is the mean of the raw gradients
                else:
                    for name, p in model.named_parameters():
                        p.grad += c[name] - c_i[i][name]
                optimizer.step()
            dx = {name: p.detach() - x[name] for name, p in model.named_parameters()}
            moves.append(dx)
            if kind == "displacement":  # right for plain steps alone: momentum lengthens the way
                c_i[i] = {name: c_i[i][name] - c[name] - dx[name] / (K * lr) for name in dx}
            if kind == "trimtab.torch":
                controls[i].end()
                controls[i].commit()
                c_i[i] = controls[i].c_i
        x = {name: x[name] + mean(move[name] for move in moves) for name in x}
        c = {name: mean(each[name] for each in c_i) for name in c}
    model.load_state_dict(x)
    return (model(X).argmax(1) == y).float().mean()


def mean(tensors):
    return torch.stack(list(tensors)).mean(0)


def too_few_rounds():
    draw = torch.Generator().manual_seed(0)
    A = 0.1 + 0.9 * torch.rand(100, 10, generator=draw)
    b = 2 * torch.randn(100, 10, generator=draw)
    problem = Quadratic(A.double(), b.double())
    print("3. 5 of 100 clients a round: |x - x*| after 5, 40 and 160 rounds")
    for algorithm in (FedAvg(eta_l=0.05, K=10), Scaffold(eta_l=0.05, K=10)):
        found = []
        for round in simulate(algorithm, problem, S=5):
            if round.r in (5, 40, 160):
                found.append(f"{problem.evaluate(round.x)['distance']:.3f}")
            if round.r == 160:
                break
        print(f"   {type(algorithm).__name__:10} {'  '.join(found)}")


if __name__ == "__main__":
    alike_or_not()
    print("2. local steps with momentum 0.9: accuracy after 40 rounds")
    for kind in ("FedAvg", "displacement", "trimtab.torch"):
        print(f"   {kind:13}  {loop(kind):.2f}")
    too_few_rounds()
