"""Lightning, Accelerate and the Trainer of transformers train alike over gloo and over the backend "farandole".

All of them train the network of `exact`, so sums do not round, and losses are compared bit by bit. Each framework is
told the backend in the way that its users do.
"""

import socket

import accelerate
import lightning
import pytest
import torch
import torch.distributed as dist
import transformers
from exact import (
    BACKENDS,
    LEARNING_RATE,
    ROWS,
    STEPS,
    ExactNetwork,
    all_leave_together,
    check_expected,
    losses_with_each,
    optimizer_of,
    samples,
)
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

import farandole.torch as hvd


@pytest.fixture(scope="module", autouse=True)
def place():
    """This rank and the number of ranks."""
    torch.set_num_threads(1)
    hvd.init()
    found = hvd.rank(), hvd.size()
    hvd.shutdown()
    return found


def free_port():
    """A port that nobody listens at, the same on all ranks.

    The listener that finds it has gone before any other rank hears of it: one that came too early would be connected to
    that listener, and lose it.
    """
    hvd.init()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = listener.getsockname()[1]
    port = hvd.broadcast_object(found, 0)
    hvd.shutdown()
    return port


class Plain(lightning.LightningModule):
    """The network as Lightning wants it."""

    def __init__(self):
        super().__init__()
        self.network = ExactNetwork()
        self.losses = []

    def training_step(self, rows, _number):
        loss = self.network(**rows)["loss"]
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return optimizer_of(self)


def test_lightning(place, monkeypatch, tmp_path):
    """As under torchrun: Lightning makes the process group itself, with the backend that its strategy names."""
    rank, size = place
    found = {}
    for backend in BACKENDS:
        of_torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0}
        of_torchrun.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), TORCHELASTIC_RUN_ID="test")
        for name, value in of_torchrun.items():
            monkeypatch.setenv(name, str(value))
        module = Plain()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=size,
            strategy=DDPStrategy(process_group_backend=backend),
            max_epochs=1,
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        rows, of_step = samples(size), ROWS * size
        own = [rows[step * of_step + rank * ROWS + row] for step in range(STEPS) for row in range(ROWS)]
        trainer.fit(module, DataLoader(own, batch_size=ROWS))
        assert dist.get_backend() == backend
        found[backend] = module.losses
        all_leave_together()
        dist.destroy_process_group()
    check_expected(found, rank, size)


def test_accelerate(place):
    """On processors Accelerate knows no backend but gloo and mpi; it takes a process group that is there."""

    def with_backend(backend):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = accelerate.Accelerator(cpu=True)
        assert accelerator.num_processes == place[1] and dist.get_backend() == backend
        network = ExactNetwork()
        loader = DataLoader(samples(place[1]), batch_size=ROWS)
        network, optimizer, loader = accelerator.prepare(network, optimizer_of(network), loader)
        losses = []
        for rows in loader:
            loss = network(**rows)["loss"]
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        return losses

    check_expected(losses_with_each(with_backend), *place)


class Listener(transformers.TrainerCallback):
    """Keeps the losses that the Trainer logs: averages over all ranks."""

    def __init__(self):
        self.losses = []

    def on_log(self, _arguments, _state, _control, logs, **_unused):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def test_the_trainer_of_transformers(place, tmp_path):
    def with_backend(_backend):
        listener = Listener()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            num_train_epochs=1,
            per_device_train_batch_size=ROWS,
            optim="sgd",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        assert arguments.world_size == place[1]
        trainer = transformers.Trainer(
            model=ExactNetwork(), args=arguments, train_dataset=samples(place[1]), callbacks=[listener]
        )
        trainer.train()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        # Only one rank logs.
        losses = [listener.losses]
        dist.broadcast_object_list(losses)
        weights = [parameter.sum().item() for parameter in trainer.model.parameters()]
        return [*losses[0], *weights]

    found = losses_with_each(with_backend)
    assert found["farandole"] == found["gloo"]
