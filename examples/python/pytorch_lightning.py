"""Lightning over the backend "farandole": its strategy names the backend.

    torchrun --nproc-per-node 2 examples/python/pytorch_lightning.py
    farandole run -np 2 python examples/python/pytorch_lightning.py

Under torchrun the strategy alone is enough. Under `farandole run` the script makes the process group itself, because
Lightning knows the variables of torchrun and not ours, and uses a group that is there.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import farandole.torch.distributed  # noqa: F401 - makes the backend known
from digits import draw


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("-e", "--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--seed", type=int, default=42, help="seed of images and model")
    parser.add_argument("--train-images", type=int, default=8_000, help="number of images to train on")
    parser.add_argument("-s", "--short", action="store_true", help="one epoch of 2,000 images")
    args = parser.parse_args()
    if args.short:
        args.epochs, args.train_images = 1, 2_000
    return args


def main() -> None:
    args = parse_args()
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Digits(lightning.LightningModule):
        """Reads digits."""

        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))

        def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
            images, labels = batch
            answers = self.network(images)
            right = (answers.argmax(dim=1) == labels).float().mean()
            self.log("accuracy", right, on_epoch=True, on_step=False, sync_dist=True)
            return F.cross_entropy(answers, labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=args.lr)

    dist.init_process_group("farandole")
    lightning.seed_everything(args.seed, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=DDPStrategy(process_group_backend="farandole"),
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(), DataLoader(draw(args.train_images, args.seed), args.batch_size, shuffle=True))
    if dist.get_rank() == 0:
        print(f"Training accuracy in the last epoch: {100 * trainer.callback_metrics['accuracy'].item():.2f}%")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
