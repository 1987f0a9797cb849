"""The examples in their short form, each as a job of two ranks, and what they print."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from jobs import PACKAGE, command

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples" / "python"
#: The others are no examples, but what these import.
SCRIPTS = sorted(
    path.name for prefix in ("jax", "pytorch", "tensorflow", "keras") for path in EXAMPLES.glob(f"{prefix}*_*.py")
)

pytestmark = pytest.mark.timeout(300)

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
# TensorFlow says much at its start, and takes threads for all cores in every rank.
ENVIRONMENT.update(
    TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", CUDA_VISIBLE_DEVICES=""
)


def run_example(name: str, *flags: str) -> str:
    """What the two ranks of an example print, without the marks of the launcher."""
    words = [command(), "run", "-np", "2", "--no-prefix", sys.executable, str(EXAMPLES / name), *flags]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    found = re.findall(pattern, text)
    assert found, f"no {pattern!r} in:\n{text}"
    return [float(number) for number in found]


def fit_lines(wanted: list[str], lines: list[str]) -> None:
    assert len(lines) == len(wanted), lines
    for pattern, line in zip(wanted, lines):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"


def test_there_is_an_example_for_each_of_these() -> None:
    assert SCRIPTS == [
        "jax_mnist.py",
        "jax_resnet.py",
        "keras_mnist.py",
        "pytorch_adasum.py",
        "pytorch_ddp.py",
        "pytorch_fsdp2.py",
        "pytorch_lightning.py",
        "pytorch_mnist.py",
        "pytorch_mnist_elastic.py",
        "pytorch_mnist_elastic_run.py",
        "pytorch_process_sets.py",
        "pytorch_resnet50.py",
        "pytorch_synthetic_benchmark.py",
        "pytorch_tensor_parallel.py",
        "tensorflow2_mnist.py",
        "tensorflow2_synthetic_benchmark.py",
        "tensorflow_benchmark.py",
        "tensorflow_mnist_v1.py",
    ]


def test_mnist_learns_to_read() -> None:
    accuracies = numbers(
        r"Test set: Average loss: [\d.]+, Accuracy: ([\d.]+)%", run_example("pytorch_mnist.py", "--short")
    )
    # One rank speaks for both, once for each epoch.
    assert len(accuracies) == 2
    assert accuracies[-1] > 80, accuracies


@pytest.mark.parametrize("name", ["pytorch_mnist_elastic.py", "pytorch_mnist_elastic_run.py"])
def test_mnist_learns_to_read_in_a_job_that_could_be_elastic(name: str) -> None:
    accuracies = numbers(r"Test set: Average loss: [\d.]+, Accuracy: ([\d.]+)%", run_example(name, "--short"))
    assert len(accuracies) == 2
    assert accuracies[-1] > 80, accuracies


def test_the_synthetic_benchmark_speaks_as_horovods() -> None:
    wanted = [
        r"Model: resnet18",
        r"Batch size: 4",
        r"Number of CPUs: 2",
        r"Running warmup\.\.\.",
        r"Running benchmark\.\.\.",
        r"Iter #0: \d+\.\d img/sec per CPU",
        r"Iter #1: \d+\.\d img/sec per CPU",
        r"Img/sec per CPU: \d+\.\d \+-\d+\.\d",
        r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d",
    ]
    fit_lines(wanted, run_example("pytorch_synthetic_benchmark.py", "-s").splitlines())


def test_resnet50_trains_on_synthetic_images_and_continues_from_its_checkpoint(tmp_path: pathlib.Path) -> None:
    checkpoints = str(tmp_path / "checkpoint-{epoch}.pt")
    output = run_example("pytorch_resnet50.py", "--short", "--checkpoint-format", checkpoints)
    assert len(numbers(r"Train Epoch #1: loss=([\d.]+), accuracy=[\d.]+%", output)) == 1
    assert len(numbers(r"Validate Epoch #1: loss=([\d.]+), accuracy=[\d.]+%", output)) == 1
    assert (tmp_path / "checkpoint-1.pt").exists()
    again = run_example("pytorch_resnet50.py", "--short", "--checkpoint-format", checkpoints)
    assert "Epoch" not in again, "the one epoch was done already"


def test_resnet_reads_a_folder_of_images(tmp_path: pathlib.Path) -> None:
    from PIL import Image

    for name, colour in [("blue", (10, 20, 200)), ("red", (200, 20, 10))]:
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (40 + number, 30), colour).save(tmp_path / name / f"{number}.png")
    (tmp_path / "red" / "note.txt").write_text("no image")
    output = run_example("pytorch_resnet50.py", "-s", "--model", "resnet18", "--train-dir", str(tmp_path))
    assert len(numbers(r"Validate Epoch #1: loss=([\d.]+)", output)) == 1


def test_process_sets_train_two_models_that_vote() -> None:
    output = run_example("pytorch_process_sets.py", "--short")
    assert re.search(r"^Half 0: ranks \[0\], accuracy: ", output, re.MULTILINE)
    assert re.search(r"^Half 1: ranks \[1\], accuracy: ", output, re.MULTILINE)
    (voted,) = numbers(r"Both together: ranks \[0, 1\], accuracy: ([\d.]+)%", output)
    assert voted > 70, output


def test_adasum_averages_what_is_parallel_and_adds_what_is_not() -> None:
    output = run_example("pytorch_adasum.py", "--short")
    assert "Parallel: [1.0, 2.0]\n" in output
    assert "Orthogonal: [1.0, 1.0]\n" in output
    (averaged,) = numbers(r"Loss with Average: ([\d.]+)", output)
    (adapted,) = numbers(r"Loss with Adasum: ([\d.]+)", output)
    # At the same learning rate, Adasum makes the larger steps.
    assert adapted < averaged, output


@pytest.mark.parametrize("flags", [(), ("--hook",)], ids=["backend", "hook"])
def test_ddp_learns_to_read_over_our_backend_and_with_our_hook(flags: tuple[str, ...]) -> None:
    accuracies = numbers(r"test accuracy: ([\d.]+)%", run_example("pytorch_ddp.py", "--short", *flags))
    assert len(accuracies) == 2 and accuracies[-1] > 80, accuracies


def test_fsdp2_trains_shards_and_restores_them() -> None:
    output = run_example("pytorch_fsdp2.py", "--short")
    [[held, all_of_them]] = re.findall(r"Rank 0 holds (\d+) of (\d+) weights", output)
    assert int(held) * 2 == int(all_of_them), output
    losses = numbers(r"Epoch \d: loss ([\d.]+)", output)
    assert len(losses) == 2 and losses[-1] < 0.5, output
    assert "Restored: the same weights\n" in output, output


def test_a_layer_is_shared_by_two_ranks() -> None:
    output = run_example("pytorch_tensor_parallel.py", "--short")
    assert "Mesh: 1 replicas of 2 ranks; rank 0 holds (32, 784)\n" in output, output
    losses = numbers(r"Epoch \d: loss ([\d.]+)", output)
    assert len(losses) == 2 and losses[-1] < 0.5, output


def test_lightning_learns_to_read_over_our_backend() -> None:
    [accuracy] = numbers(r"Training accuracy in the last epoch: ([\d.]+)%", run_example("pytorch_lightning.py", "-s"))
    assert accuracy > 40, "a guess is right once in ten"


def test_tensorflow_with_a_loop_of_its_own_learns_to_read_and_saves_once(tmp_path: pathlib.Path) -> None:
    output = run_example("tensorflow2_mnist.py", "--short", "--checkpoint", str(tmp_path))
    accuracies = numbers(r"Test accuracy: ([\d.]+)%", output)
    assert len(accuracies) == 2 and accuracies[-1] > 80, output
    assert (tmp_path / "mnist-1.index").exists()


def test_keras_learns_to_read_with_fit() -> None:
    output = run_example("keras_mnist.py", "--short")
    assert "Backend: tensorflow\n" in output
    (accuracy,) = numbers(r"Test accuracy: ([\d.]+)%", output)
    assert accuracy > 80, output


def test_jax_learns_to_read() -> None:
    accuracies = numbers(r"Epoch \d: loss [\d.]+, test accuracy: ([\d.]+)%", run_example("jax_mnist.py", "--short"))
    # One rank speaks for both, once for each epoch.
    assert len(accuracies) == 2 and accuracies[-1] > 80, accuracies


def test_jaxs_residual_network_says_how_fast_it_learns() -> None:
    wanted = [
        r"Model: resnet18",
        r"Batch size: 4",
        r"Number of CPUs: 2",
        r"Running warmup\.\.\.",
        r"Running benchmark\.\.\.",
        r"Iter #0: \d+\.\d img/sec per CPU",
        r"Iter #1: \d+\.\d img/sec per CPU",
        r"Img/sec per CPU: \d+\.\d \+-\d+\.\d",
        r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d",
    ]
    fit_lines(wanted, run_example("jax_resnet.py", "-s").splitlines())


def test_a_graph_of_tensorflow_1_learns_to_read() -> None:
    (accuracy,) = numbers(r"Test accuracy: ([\d.]+)%", run_example("tensorflow_mnist_v1.py", "--short"))
    assert accuracy > 80


def test_tensorflows_synthetic_benchmark_speaks_as_horovods() -> None:
    wanted = [
        r"Model: MobileNet",
        r"Batch size: 4",
        r"Number of CPUs: 2",
        r"Running warmup\.\.\.",
        r"Running benchmark\.\.\.",
        r"Iter #0: \d+\.\d img/sec per CPU",
        r"Iter #1: \d+\.\d img/sec per CPU",
        r"Img/sec per CPU: \d+\.\d \+-\d+\.\d",
        r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d",
    ]
    fit_lines(wanted, run_example("tensorflow2_synthetic_benchmark.py", "-s").splitlines())


def test_the_benchmark_of_networks_speaks_as_tf_cnn_benchmarks() -> None:
    flags = ["--model", "googlenet", "--variable_update=horovod", "--num_intra_threads", "1", "--short"]
    lines = run_example("tensorflow_benchmark.py", *flags).splitlines()
    for line in [
        "Model:       googlenet", "Batch size:  4 global", "             2 per device", "Variables:   horovod"
    ]:
        assert line in lines, lines
    step = r"{}\timages/sec: \d+\.\d \+/- \d+\.\d \(jitter = \d+\.\d\)\t\d+\.\d+"
    wanted = [
        "Done warm up",
        "Step\tImg/sec\ttotal_loss",
        *(step.format(number) for number in [1, 2, 4, 6]),
        "-{64}",
        r"total images/sec: \d+\.\d\d",
        "-{64}",
    ]
    fit_lines(wanted, lines[lines.index("Done warm up") :])


def test_a_study_takes_the_benchmark_of_networks_as_its_command(tmp_path: pathlib.Path) -> None:
    script = f"{sys.executable} {EXAMPLES / 'tensorflow_benchmark.py'} --short --model {{model}}"
    flags = ["--ranks", "2", "--models", "alexnet", "--batch", "2", "--repeats", "1", "--out", str(tmp_path / "study")]
    words = [command(), "study", "models", *flags, "--command", script]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    header, line = (row.split(",") for row in (tmp_path / "study" / "study.csv").read_text().splitlines())
    found = dict(zip(header, line, strict=True))
    assert found["model"] == "alexnet" and found["ranks"] == "2", found
    assert float(found["per_s"]) > 0 and found["unit"] == "images", found


EXPLAIN = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    sys.argv[:] = [name, "--help"]
    try:
        runpy.run_path(f"{sys.path[0]}/{name}", run_name="__main__")
    except SystemExit as ended:
        print(f"{name} ended with {ended.code}")
"""


@pytest.mark.parametrize(
    "kinds", [("pytorch",), ("tensorflow", "keras"), ("jax",)], ids=["pytorch", "tensorflow", "jax"]
)
def test_every_example_explains_itself(kinds: tuple[str, ...]) -> None:
    """One process for all that import the same framework. Importing TensorFlow and then PyTorch's compiler ends a
    process: both bring LLVM."""
    names = [name for name in SCRIPTS if name.startswith(kinds)]
    words = [sys.executable, "-c", EXPLAIN, str(EXAMPLES), *names]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    explained = re.split(r" ended with 0\n", done.stdout)
    assert done.returncode == 0 and len(explained) == len(names) + 1, f"{done.stdout}\n{done.stderr}"
    for text in explained[:-1]:
        assert "--batch-size" in text and "--short" in text, text
