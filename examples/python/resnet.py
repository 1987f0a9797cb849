"""Residual networks (He et al., "Deep Residual Learning for Image Recognition"), written out for the examples.

Owns the models that `pytorch_resnet50.py` and `pytorch_synthetic_benchmark.py` train, so that neither needs
torchvision. Shapes follow the paper with the usual change that a bottleneck strides in its 3x3 convolution;
`resnet50()` has 161 parameter tensors, 25,557,032 numbers, 102 MB of gradients. Not there: weights that somebody
trained before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the shortcut around them."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv3x3(inputs, width, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _conv3x3(width, width, 1),
            nn.BatchNorm2d(width),
        )
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions that narrow and widen, and the shortcut around them."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.body = nn.Sequential(
            _conv1x1(inputs, width),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _conv3x3(width, width, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _conv1x1(width, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity where shapes agree, otherwise a convolution that makes them agree."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, four stages of blocks, and a linear classifier over the averaged features."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: list[int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        stages = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            blocks = []
            for number in range(depth):
                # The first block of every stage but the first halves the image.
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(block(channels, width, stride))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, BasicBlock | Bottleneck):
                # Every block begins as its shortcut alone, which keeps the first large steps of many ranks calm.
                nn.init.zeros_(module.body[-1].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.stages(self.stem(x))
        return self.classifier(features.mean(dim=(2, 3)))


def resnet18(classes: int = 1000) -> ResNet:
    """18 layers, 11.7 million parameters."""
    return ResNet(BasicBlock, [2, 2, 2, 2], classes)


def resnet34(classes: int = 1000) -> ResNet:
    """34 layers, 21.8 million parameters."""
    return ResNet(BasicBlock, [3, 4, 6, 3], classes)


def resnet50(classes: int = 1000) -> ResNet:
    """50 layers, 25.6 million parameters."""
    return ResNet(Bottleneck, [3, 4, 6, 3], classes)


def resnet101(classes: int = 1000) -> ResNet:
    """101 layers, 44.5 million parameters."""
    return ResNet(Bottleneck, [3, 4, 23, 3], classes)


def resnet152(classes: int = 1000) -> ResNet:
    """152 layers, 60.2 million parameters."""
    return ResNet(Bottleneck, [3, 8, 36, 3], classes)


MODELS: dict[str, Callable[..., ResNet]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnet152": resnet152,
}
