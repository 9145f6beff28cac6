"""What tells one Supervised from another in a saved run: its settings, code, numbers and data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import Tensor
from torch.utils.data import TensorDataset

from trimtab.problems.identity import hashed_code, hashed_tensors, line, update
from trimtab.problems.supervised.clients import ClientData, EvaluationData, HeldOutView, whole
from trimtab.problems.supervised.data import Data
from trimtab.problems.supervised.evaluation import Measure
from trimtab.problems.supervised.flat import FlatModule, Tree, parts
from trimtab.problems.supervised.hugging_face import Fields
from trimtab.problems.supervised.losses import Loss
from trimtab.problems.supervised.reading import Collate, as_tensor
from trimtab.problems.supervised.tables import Columns


@dataclass(frozen=True)
class FingerprintParts:
    """The parts of a Supervised that change its numbers."""

    settings: Mapping[str, Any]  # batch, sampling, l2 and autocast
    code: Mapping[str, str]  # the hashes of loss, metrics and module
    model: FlatModule
    weights: Tensor
    clients: ClientData
    unseen: EvaluationData
    columns: Columns | Fields | None = None

    def fingerprint(self) -> str:
        """Return a line with a value for each part."""
        uniform, clients = self.weights.stride() == (0,), self.clients
        sizes = {"N": len(self.weights), "d": self.model.d}
        hashes = {
            "start": hashed_tensors(list(self.model.state_dict(self.model.start).values())),
            "weights": "uniform" if uniform else hashed_tensors([self.weights]),
            # The data of the clients, whether learnt from or held out, if they are in memory.
            "data": self._hashed(whole(clients.clients)) if clients.in_memory else "?",
            "test": None if self.unseen.given is None else self._hashed([self.unseen.given]),
        }
        return line("Supervised", {**sizes, **self.settings, **self.code, **hashes, **self._more()})

    def _hashed(self, items: Iterable[Any]) -> str:
        """Return a hash of data; of a Dataset that reads its samples, of its size."""
        reader, digest, complete = self.clients.reader, sha256(), True
        for item in items:
            if item is None:
                digest.update(b"none")
            elif isinstance(item, Data):
                _update(digest, item.batch)
            elif reader.collate is not None and isinstance(item, list | tuple):
                code = hashed_code(item)
                digest.update(code.encode())
                complete = complete and not code.endswith("?")
            elif isinstance(item, TensorDataset):
                for part in item.tensors:
                    update(digest, as_tensor("the data", part))
            elif isinstance(item, tuple | list | Mapping) and item:
                found = item if reader.is_columns(item) else reader.stacked("a client", item)
                for tree in reader.columns("a client", found):
                    _update(digest, tree)
            else:
                digest.update(repr(reader.size(item)).encode())
                complete = False
        return f"{digest.hexdigest()[:16]}{'' if complete else '?'}"

    def _more(self) -> dict[str, str]:
        """Return the parts that most problems do not have."""
        tests, held = self.unseen.tests, self.unseen.held_out
        more = {}
        if tests is not None:
            more["tests"] = self._hashed(tests) if isinstance(tests, list | tuple) else "?"
        if isinstance(held, HeldOutView):
            more["validation"] = f"{held.fraction}@{held.seed}"
        elif held is not None:
            more["validation"] = self._hashed([held])
        if isinstance(self.columns, Columns) and self.columns.target_scale:
            more["target_scale"] = hashed_tensors([self.columns.scale_of_targets])
        return more


def hashes_of_code(
    loss: Loss, metrics: Mapping[str, Measure], model: FlatModule, collate: Collate | None
) -> dict[str, str]:
    """Return the hashes of what is called."""
    modes = [m.training for m in model.module.modules()]
    more = {} if collate is None else {"collate": hashed_code(collate)}
    return {
        "loss": hashed_code(loss),
        "metrics": hashed_code(metrics),
        "module": hashed_code((modes, model.module), values=False),
        **more,
    }


def _update(digest: Any, tree: Tree) -> None:
    """Add a tree to a digest: the tensors in order and, where there are several, their names."""
    if isinstance(tree, Tensor):
        update(digest, tree)
    for key, part in parts(tree):
        digest.update(repr(key).encode())
        _update(digest, part)
