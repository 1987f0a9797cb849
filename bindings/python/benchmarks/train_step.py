"""How long one step of training takes in PyTorch: the other half of `cargo xtask train-bench`.

`train_step.py MODEL BATCH SIDE` prints a line for every line it reads: processor time of a step in milliseconds, then
that of forward, backward and optimizer, then the time on the wall. One thread. The networks are those of
`farandole train`, layer by layer.
"""

import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1; with a projection where the shape changes."""

    def __init__(self, channels, width, stride, bottleneck):
        super().__init__()
        out = 4 * width if bottleneck else width
        if bottleneck:
            shapes = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        else:
            shapes = [(channels, width, 3, stride), (width, width, 3, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in shapes)
        self.shortcut = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        by = x if self.shortcut is None else self.shortcut(x)
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            x = norm(conv(x))
            x = F.relu(x, inplace=True) if number + 1 < len(self.convs) else x
        return F.relu(x + by, inplace=True)


class ResNet(nn.Module):
    """ResNet-20 for small images, ResNet-18 and -50 for large ones."""

    STAGES = {
        "resnet20": ([(16, 3), (32, 3), (64, 3)], False),
        "resnet18": ([(64, 2), (128, 2), (256, 2), (512, 2)], False),
        "resnet50": ([(64, 3), (128, 4), (256, 6), (512, 3)], True),
    }

    def __init__(self, name, classes):
        super().__init__()
        stages, bottleneck = self.STAGES[name]
        channels = stages[0][0]
        small = name == "resnet20"
        self.stem = nn.Conv2d(3, channels, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        blocks = []
        for stage, (width, count) in enumerate(stages):
            for number in range(count):
                blocks.append(Block(channels, width, 2 if stage and not number else 1, bottleneck))
                channels = 4 * width if bottleneck else width
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.stem(x)), inplace=True))
        return self.dense(self.blocks(x).mean((2, 3)))


def main():
    name, batch, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    classes = 10 if name == "resnet20" else 1000
    network = ResNet(name, classes)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    images = torch.randn(batch, 3, side, side)
    labels = torch.arange(batch) % classes
    clock = lambda: time.process_time() * 1e3  # noqa: E731
    for _ in sys.stdin:
        wall, began = time.perf_counter(), clock()
        loss = F.cross_entropy(network(images), labels)
        forward = clock()
        loss.backward()
        backward = clock()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ended = clock()
        wall = (time.perf_counter() - wall) * 1e3
        phases = (ended - began, forward - began, backward - forward, ended - backward, wall)
        print(" ".join(f"{phase:.2f}" for phase in phases), flush=True)


if __name__ == "__main__":
    main()
