"""Rows for those who load data: workers of a loader, and threads."""

import json
import os
import subprocess

import pytest
from farandole.torch import loader
from jobs import command, run_job
from torch.utils.data import dataloader


@pytest.fixture
def notes(monkeypatch):
    monkeypatch.setattr(loader, "_notes", loader._Notes())
    return loader._notes


@pytest.fixture
def bars(monkeypatch):
    seen = []
    monkeypatch.setattr(loader._native, "phase_of", lambda *words: seen.append(words))
    return seen


def test_what_workers_note_becomes_bars(notes, bars):
    notes.write(1, 10, 20)
    notes.write(0, 15, 30)
    notes.write(1, 20, 25)
    loader.collect()
    first, second = ("loader worker 0", "input work", 15, 30), ("loader worker 1", "input work", 10, 20)
    assert bars == [second, first, ("loader worker 1", "input work", 20, 25)]
    loader.collect()
    assert len(bars) == 3, "what is collected is gone"


def test_workers_of_two_loaders_at_once_do_not_share_a_row(notes, bars):
    for begin, end in [(0, 100), (50, 150), (100, 120), (130, 160), (151, 170)]:
        notes.write(0, begin, end)
    loader.collect()
    first, second = "loader worker 0", "loader worker 0 (2)"
    assert [bar[0] for bar in bars] == [first, second, first, first, second]


def test_a_full_pipe_drops_notes_and_nobody_waits(notes, bars):
    for batch in range(10_000):
        notes.write(0, batch, batch)
    loader.collect()
    assert 1000 < len(bars) < 10_000
    assert [bar[2] for bar in bars] == list(range(len(bars))), "whole notes only"


def test_a_pipe_that_somebody_has_closed_is_no_error(notes, bars):
    os.close(notes.writing)
    os.close(notes.reading)
    notes.write(0, 1, 2)
    loader.collect()
    assert bars == []


SCRIPT = """
    import threading, torch, farandole, farandole.torch as hvd
    from waiting import lapse
    from torch.utils.data import DataLoader, TensorDataset

    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    batches = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)

    def prefetch():
        for batch in batches:
            pass

    def augment():
        with farandole.phase("augment"):
            lapse("the augmenter", 0.01)

    threads = [threading.Thread(target=prefetch, name="prefetcher"), threading.Thread(target=augment, name="augmenter")]
    for thread in threads:
        thread.start()
        thread.join()
    for (inputs,) in batches:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    hvd.shutdown()
"""


def test_threads_that_load_have_rows_with_their_names(tmp_path):
    job = run_job(1, SCRIPT, flags=["--trace", str(tmp_path / "traces")])
    assert job.code == 0, job
    words = [command(), "timeline", str(tmp_path / "traces"), "-o", str(tmp_path / "merged.json")]
    subprocess.run(words, check=True, timeout=60)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    bars = {name: [e["name"] for e in events if e["ph"] == "X" and e["tid"] == row] for name, row in rows.items()}
    # Three batches, and the question after the last.
    assert bars["prefetcher"] == ["input work"] * 4, bars
    assert bars["augmenter"] == ["augment"], bars
    assert bars["main"].count("input wait") == 4 and "input work" not in bars["main"], bars
    report = subprocess.run(
        [command(), "report", str(tmp_path / "traces")], check=True, timeout=60, capture_output=True, text=True
    )
    assert "1 rank on 1 host, 3 iterations" in report.stdout, "a rank that is alone is a reference"


WORKERS = """
    import sys, time, torch, farandole.torch as hvd
    from torch.utils.data import DataLoader
    from loaded import Samples, seen_by_init

    method = sys.argv[1]
    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    workers = dict(num_workers=2, multiprocessing_context=method, worker_init_fn=seen_by_init)
    batches = DataLoader(Samples(8), batch_size=1, **workers)
    for epoch in range(2):
        for inputs, initialised in batches:
            assert bool(initialised.all()), "the user's own function was not called"
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
    assert batches.worker_init_fn is seen_by_init
    hvd.shutdown()
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_have_rows_however_they_are_started(tmp_path, method):
    job = run_job(1, WORKERS, flags=["--trace", str(tmp_path / "traces")], arguments=[method], seconds=200)
    assert job.code == 0, job
    words = [command(), "timeline", str(tmp_path / "traces"), "-o", str(tmp_path / "merged.json")]
    subprocess.run(words, check=True, timeout=60)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    for worker in ("loader worker 0", "loader worker 1"):
        bars = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == rows.get(worker)]
        assert bars == ["input work"] * 8, (worker, rows, bars)


def test_a_loader_starts_its_workers_also_where_the_pipe_is_closed(notes, monkeypatch):
    os.close(notes.writing)
    os.close(notes.reading)
    # A number that nobody opens anew meanwhile, as the loader's own pipes might be.
    notes.writing = notes.reading = 1 << 20
    monkeypatch.setattr(
        dataloader._MultiProcessingDataLoaderIter, "__init__", dataloader._MultiProcessingDataLoaderIter.__init__
    )
    loader._introduce_workers()
    batches = dataloader.DataLoader(list(range(4)), num_workers=1, multiprocessing_context="fork")
    assert [int(batch) for batch in batches] == [0, 1, 2, 3]
