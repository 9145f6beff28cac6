"""The folder of an operator, made as `trimtab federate init` makes it."""

from trimtab.federation.setup.operator import create

PROBLEM = """
import torch
from torch import nn
from torch.nn import functional as F

def model():
    return nn.Linear(3, 2), F.cross_entropy

def silo(data):
    X, y = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
    return (X, y), (X, y)
"""


def operator_folder(folder, names=("rome", "oslo"), problem=PROBLEM, **settings):
    """Write a problem file beside the folder, and make the federation of these sites."""
    path = folder.with_name("problem.py")
    path.write_text(problem)
    usual = {"weights": "uniform", "batch": None, "hosts": ["127.0.0.1"], "port": 9443}
    return create(folder, list(names), path, **usual | settings)
