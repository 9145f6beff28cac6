"""Import this before a peer that imports torchvision: it finds empty classes instead.

There is no torchvision for every CPU build of torch, and the peers need it only for data sets and
models that the workloads do not use.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Empty(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for _part in ("", ".models", ".transforms", ".datasets", ".datasets.utils"):
    sys.modules[f"torchvision{_part}"] = _Empty(f"torchvision{_part}")
