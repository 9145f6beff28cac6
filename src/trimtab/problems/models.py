"""Models of the papers, as plain modules. None of them keeps running statistics."""

import torch
from torch import Tensor, nn


def logistic(features: int, classes: int) -> nn.Linear:
    """Return multinomial logistic regression, started at zero (the loss is convex)."""
    linear = nn.Linear(features, classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(features: int, hidden: int, classes: int) -> nn.Sequential:
    """Return a fully connected network with one hidden layer."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def resnet18(classes: int = 10, groups: int = 32) -> nn.Sequential:
    """Return ResNet-18 (He et al., 2016) for 32 x 32 images, with GroupNorm for BatchNorm.

    The stem is the usual one for CIFAR: a 3 x 3 convolution of stride 1 and no pooling.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    layers: list[nn.Module] = [_conv(3, 64), nn.GroupNorm(groups, 64), nn.ReLU()]
    inside = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Block(inside, width, stride, groups), _Block(width, width, 1, groups)]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a way around them."""

    def __init__(self, inside: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(inside, width, stride),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            _conv(width, width),
            nn.GroupNorm(groups, width),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != width:
            self.around = nn.Sequential(
                nn.Conv2d(inside, width, 1, stride, bias=False), nn.GroupNorm(groups, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


def _conv(inside: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
