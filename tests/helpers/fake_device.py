"""A device written in Python: nothing of it may meet a tensor of the CPU unasked, as on a GPU.

It has no float64, as Apple's (MPS) has none. Run by itself, since a device is for a whole process:
it trains and diagnoses on the device `fake` and on the CPU and prints, as JSON, how far the two are
apart. The numbers are computed by the CPU behind it.
"""

import json
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up

NUMBERS = {}  # by the storage of a tensor on the device, what it holds


class Backend:
    """What PyTorch asks of a device: its one generator."""

    def __init__(self):
        self.generator = torch.Generator()

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        self.generator.manual_seed(seed)

    def manual_seed(self, seed):
        self.generator.manual_seed(seed)

    def get_rng_state(self, device=None):
        return self.generator.get_state()

    def set_rng_state(self, state, device=None):
        self.generator.set_state(state)


class Elsewhere(Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, numbers):
        if numbers.dtype == torch.float64:
            raise TypeError("the device has no float64")
        size, like = numbers.size(), {"strides": numbers.stride(), "dtype": numbers.dtype}
        made = Tensor._make_wrapper_subclass(cls, size, device="fake:0", **like)
        storage = made.untyped_storage()
        NUMBERS[storage._cdata] = storage, numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return run(operation, *args, **(kwargs or {}))

    def tolist(self):
        """Return the numbers, as of any device."""
        return numbers_of(self).tolist()


def is_there(t):
    return isinstance(t, Tensor) and t.device.type == "fake"


def numbers_of(t):
    return NUMBERS[t.untyped_storage()._cdata][1] if is_there(t) else t


def run(operation, *args, **kwargs):
    """Do what an operation of PyTorch does, if all its tensors are on the device."""
    name = operation._schema.name
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    moves = name in (
        "aten::_to_copy",
        "aten::copy_",
        "aten::_copy_from",
        "aten::_copy_from_and_resize",
    )
    strange = [t for t in tensors if not is_there(t) and t.dim()]
    indices = name.startswith("aten::index.") or name == "aten::index"
    if strange and not moves and not indices:
        raise RuntimeError(f"{name} meets tensors of the CPU and of the device")
    target = kwargs.get("device")
    device = torch.device("fake" if target is None else target)
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    inner, named = pytree.tree_map(numbers_of, (args, kwargs))
    found = operation(*inner, **named)
    if name.removeprefix("aten::").split(".")[0].endswith("_") and not name.endswith("__"):
        return args[0]
    if device.type == "cpu":
        return found
    return pytree.tree_map(lambda t: Elsewhere(t) if isinstance(t, Tensor) else t, found)


class Towers(nn.Module):
    """Two inputs by name, dropout, and an output by name."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, left, right):
        return {"logits": self.out(self.drop(torch.tanh(self.left(left) + self.right(right))))}


def of_logits(output, y):
    return F.cross_entropy(output["logits"], y)


def on_batch(module, batch):
    return of_logits(module(batch["left"], batch["right"]), batch["y"])


def problems(device):
    """Return problems of every kind of data, each with metrics, held-out rows and a test set."""
    from trimtab import OnBatch, Supervised

    X = [torch.randn(12, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    y = torch.arange(12) % 3
    named = [({"left": each, "right": each.flip(0)}, y) for each in X]
    batches = [{"left": each, "right": each.flip(0), "y": y} for each in X]
    loose = [list(zip(each.tolist(), y.tolist(), strict=True)) for each in X]
    weight = torch.tensor([1.0, 2.0, 3.0]).to(device)

    def together(samples):
        inputs, labels = zip(*samples, strict=True)
        return torch.tensor(inputs), torch.tensor(labels)

    def linear():
        return nn.Linear(4, 3)

    auc = {"metrics": ["auc", "f1"], "batch": 4, "device": device, "l2": 1e-3}
    yield "named", Supervised(Towers, of_logits, named, named[0], **auc).split(0.2)
    yield (
        "on batch",
        Supervised(Towers, OnBatch(on_batch), batches, batches[0], batch=4, device=device).split(
            0.2
        ),
    )
    plain = list(zip(X, [y] * 3, strict=True))
    yield "linear", Supervised(linear, F.cross_entropy, plain, plain[0], **auc).split(0.2)
    weighted = nn.CrossEntropyLoss(weight=weight)
    yield "weighted", Supervised(linear, weighted, plain, plain[0], **auc | {"sampling": "iid"})
    yield "collated", Supervised(linear, F.cross_entropy, loose, loose[0], collate=together, **auc)
    numbers = [(each, each[:, :1]) for each in X]
    yield "numbers", Supervised(lambda: nn.Linear(4, 1), F.mse_loss, numbers, device=device)


def through_the_cpu(make):
    """Return torch.tensor as two steps: in one, PyTorch cannot do it on a device in Python."""

    def tensor(data, *, device=None, **settings):
        made = make(data, **settings)
        return made if device is None else made.to(device)

    return tensor


def trained(device):
    """Return where each problem and executor ends, and what is measured there."""
    from trimtab import Scaffold, simulate

    found = {}
    for name, problem in problems(device):
        for executor in ("loop", "batched", "threads", "auto"):
            rounds = simulate(Scaffold(eta_l=0.1, K=3), problem, S=2, executor=executor)
            *_, last = islice(rounds, 3)
            assert rounds.audit() < 1e-5
            measured = problem.evaluate(last.x) | problem.evaluate(last.x, client=1)
            gradient = problem.client_hvp(0, last.x, problem.gradient(last.x))
            found[f"{name}, {executor}"] = last.x, gradient, measured
    return found


def diagnosed(device):
    """Return what a diagnosis measures, on all samples and on some of them."""
    from trimtab import diagnose
    from trimtab.diagnosis import measure, panel
    from trimtab.diagnosis.budget import Budget

    names = ("zeta", "G", "B", "L", "delta", "mu", "sigma")
    problem = dict(problems(device))["weighted"]
    found = diagnose(problem, eps=0.1)  # which few rounds reach: each operation is a call of Python
    thinned = panel.thinned(problem, (0, 1, 2), 8, 0, Budget(9.0))
    return {
        "all samples": {name: getattr(found, name) for name in names},
        "some samples": {"G": measure.at_point(thinned, problem.x0(0)).G},
    }


if __name__ == "__main__":
    set_up("fake", backend_module=Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(run, "PrivateUse1")
    torch.tensor = through_the_cpu(torch.tensor)
    here, there = trained("cpu"), trained("fake")
    report = {}
    for name, (x, gradient, measured) in there.items():
        pairs = zip((x, gradient), here[name], strict=False)
        apart = [float((numbers_of(a) - b).norm() / b.norm()) for a, b in pairs]
        worst = max(abs(value - here[name][2][key]) for key, value in measured.items())
        report[name] = {"device": str(x.device), "apart": max(*apart, worst)}
    report = {
        "trained": report,
        "diagnosed": {"here": diagnosed("cpu"), "there": diagnosed("fake")},
    }
    print(json.dumps(report))
