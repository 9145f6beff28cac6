"""ResNet-18 with GroupNorm on a shard of CIFAR-10: what `trimtab federate init --problem` takes."""

from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from trimtab.problems.catalogue import resnet18


def model():
    """Return the network with each block started as the identity (Goyal et al., 2017, 5.1).

    Without that, the first forty steps of 0.02 on batches of 32 had a mean loss of 2.9; chance has
    2.3, and with it steps of 0.03 had 2.28.
    """
    module = resnet18()
    for block in module[3:-3]:  # The stem has three layers, and so has the head.
        nn.init.zeros_(block.body[-1].weight)
    return module, F.cross_entropy


def silo(data):
    shard = load_file(data)
    return (shard["X"], shard["y"]), (shard["X_test"], shard["y_test"])
