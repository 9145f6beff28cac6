"""ResNet-20 with BatchNorm on a shard of CIFAR-10: what `trimtab federate init --problem` takes."""

from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3 x 3 convolutions; around them images are cut to every second pixel, zeros join them."""

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - inside

    def forward(self, X):
        around = F.pad(X[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        X = F.relu(self.bn1(self.conv1(X)))
        return F.relu(self.bn2(self.conv2(X)) + around)


def model():
    """Return ResNet-20 for CIFAR-10 (He et al., 2016, 4.2): 269,722 parameters."""
    layers, inside = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for width in (16, 32, 64):
        for _ in range(3):
            layers.append(Block(inside, width, stride=1 if width == inside else 2))
            inside = width
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(*layers, *head), F.cross_entropy


def silo(data):
    shard = load_file(data)
    return (shard["X"], shard["y"]), (shard["X_test"], shard["y_test"])
