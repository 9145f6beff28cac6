"""ResNet-18 with GroupNorm on a shard of CIFAR-10: what `trimtab federate init --problem` takes."""

from safetensors.torch import load_file
from torch.nn import functional as F

from trimtab.problems.models import resnet18


def model():
    return resnet18(), F.cross_entropy


def silo(data):
    shard = load_file(data)
    return (shard["X"], shard["y"]), (shard["X_test"], shard["y_test"])
