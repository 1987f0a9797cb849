"""Phases that the front end for PyTorch finds out by itself."""

import json
import subprocess
import threading
from pathlib import Path

import pytest
from jobs import command, run_job

from farandole.torch import phases, staging

SCRIPT = """
    import os, torch, farandole, farandole.torch as hvd
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    other = hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    loader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randint(0, 2, (12,))), batch_size=4)

    def train():
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            with farandole.phase("loss"):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            other.step()

    with farandole.phase("first epoch"):
        train()
    model.eval()
    for inputs, labels in loader:
        with torch.no_grad():
            model(inputs)
    train()
    with torch.no_grad():
        for inputs, labels in loader:
            model(inputs)
    if hvd.rank() == 0:
        torch.save(model.state_dict(), "model.pt")
    for inputs, labels in loader:
        break
    hvd.shutdown()
"""


def rows(folder: Path) -> dict[str, list[tuple[str, float, float]]]:
    """The phases of every rank as the merged timeline shows them: name, begin and end."""
    words = [command(), "timeline", str(folder / "traces"), "-o", str(folder / "merged.json")]
    subprocess.run(words, check=True, timeout=60)
    events = json.loads((folder / "merged.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    found: dict[str, list[tuple[str, float, float]]] = {}
    for event in events:
        if event.get("ph") == "X":
            span = (event["name"], event["ts"], event["ts"] + event["dur"])
            found.setdefault(str(event["pid"]), []).append(span)
    return found


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script has run on two ranks and left its traces."""
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FARANDOLE_TRACE", str(folder / "traces"))
        job = run_job(2, SCRIPT)
    assert job.code == 0, job
    return folder


def test_a_plain_training_script_has_all_its_phases(traced):
    of_ranks = rows(traced)
    for rank in range(2):
        spans = of_ranks[str(rank)]
        count = {name: sum(span[0] == name for span in spans) for name in {span[0] for span in spans}}
        # Two epochs of three batches, two rounds of evaluation of three, one batch that nothing follows; each round
        # ends with a wait for nothing.
        assert count["input wait"] == 17, count
        assert count["backward"] == 6 and count["optimizer step"] == 12, count
        assert count["forward"] == 7, count
        assert count["evaluation"] == 2, count
        assert count["loss"] == 6 and count["first epoch"] == 1, count
        assert count.get("checkpoint", 0) == (1 if rank == 0 else 0), count
        for name, begin, end in spans:
            inside = [span for span in spans if span[0] == "backward" and begin <= span[1] and span[2] <= end]
            assert name != "evaluation" or not inside, "backward is no part of evaluation"


def test_a_report_counts_the_steps_of_one_optimizer_as_iterations(traced):
    words = [command(), "report", str(traced / "traces")]
    report = subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout
    assert "2 ranks on 1 host, 6 iterations" in report, report


def test_nothing_is_marked_where_the_user_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FARANDOLE_TRACE", str(tmp_path / "traces"))
    monkeypatch.setenv("FARANDOLE_PHASES", "0")
    job = run_job(2, SCRIPT)
    assert job.code == 0, job
    names = {name for spans in rows(tmp_path).values() for name, _, _ in spans}
    assert "loss" in names and not names & {"forward", "backward", "input wait", "evaluation"}, names


class Moment:
    """An event of a device that comes to pass when the test says so."""

    def __init__(self):
        self.over = False

    def query(self):
        return self.over


@pytest.fixture
def watch(monkeypatch):
    """A watch of this thread, the marks that it makes, and what the device still has to do."""
    marks, tail, left = [], Moment(), []
    monkeypatch.setattr(phases._native, "phase_begin", lambda name: marks.append(f"+{name}"))
    monkeypatch.setattr(phases._native, "phase_end", lambda name: marks.append(f"-{name}"))
    monkeypatch.setattr(staging, "unfinished_work", lambda: None if tail.over else tail)
    monkeypatch.setattr(staging, "carry_over", lambda phase, done: left.append((phase, done)))
    watch = phases._PhaseTracker()
    watch.thread = threading.get_ident()
    watch.switch_to(phases.EVALUATION)
    return watch, marks, tail, left


def test_evaluation_ends_with_the_host_where_the_device_has_nothing_left_to_do(watch):
    watch, marks, tail, left = watch
    tail.over = True
    watch.end_evaluation()
    watch.move_to(phases.FORWARD)
    watch.close()
    assert marks == ["+evaluation", "-evaluation", "+forward", "-forward"] and not left


def test_evaluation_lasts_until_the_device_has_done_its_part(watch):
    watch, marks, tail, left = watch
    watch.end_evaluation()
    assert marks == ["+evaluation"], "the device still evaluates"
    assert not watch.evaluates(), "what comes next is training"
    watch.begin("input wait")
    watch.end("input wait")
    tail.over = True
    watch.move_to(phases.FORWARD)
    assert marks == ["+evaluation", "+input wait", "-input wait", "-evaluation", "+forward"] and not left


def test_what_the_device_has_not_evaluated_before_backward_is_left_behind(watch):
    watch, marks, tail, left = watch
    watch.end_evaluation()
    watch.move_to(phases.FORWARD)
    watch.close()
    assert marks == ["+evaluation", "-evaluation"] and left == [("evaluation", tail)]
    watch.move_to(phases.FORWARD)
    assert marks[-1] == "+forward", "it is left behind once"
