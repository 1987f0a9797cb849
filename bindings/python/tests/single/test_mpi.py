"""Jobs that `mpirun` started, as `farandole.mpi` sees them. A stand-in for mpi4py tells what was done to it; the real
one is not needed."""

from __future__ import annotations

import sys
import types

import pytest

from farandole import mpi
from farandole.basics import basics

LAUNCHERS = ["FARANDOLE_RANK", "HOROVOD_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)


class StandIn:
    """What `mpi4py.MPI` offers of what we use."""

    THREAD_MULTIPLE = 3

    def __init__(self) -> None:
        self.calls: list[str] = []

    def Is_initialized(self) -> bool:
        return "init" in self.calls

    def Is_finalized(self) -> bool:
        return "finalize" in self.calls

    def Init_thread(self, level: int) -> None:
        assert level == self.THREAD_MULTIPLE
        self.calls.append("init")

    def Finalize(self) -> None:
        self.calls.append("finalize")


@pytest.fixture
def mpi4py(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    package = types.ModuleType("mpi4py")
    package.rc = types.SimpleNamespace(initialize=True)
    package.MPI = StandIn()
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", package.MPI)
    return package


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_a_job_of_mpirun_is_told_by_its_variables(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert not basics.mpi_enabled()
    monkeypatch.setenv(variable, "0")
    assert basics.mpi_enabled()


def test_a_launcher_under_mpirun_goes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("FARANDOLE_RANK", "0")
    assert not basics.mpi_enabled()


def test_threads_of_mpi_are_a_question_for_jobs_of_mpirun_only() -> None:
    with pytest.raises(ValueError, match="MPI is not enabled"):
        basics.mpi_threads_supported()


def test_mpi_is_initialised_for_a_script_that_counts_on_it(
    monkeypatch: pytest.MonkeyPatch, mpi4py: types.ModuleType
) -> None:
    at_exit = []
    monkeypatch.setattr(mpi.atexit, "register", at_exit.append)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    mpi4py.rc.initialize = False
    mpi.initialise_for_mpi4py()
    mpi.initialise_for_mpi4py()
    assert mpi4py.MPI.calls == ["init"]
    for leave in at_exit:
        leave()
    assert mpi4py.MPI.calls == ["init", "finalize"]


def test_mpi_is_left_alone_otherwise(monkeypatch: pytest.MonkeyPatch, mpi4py: types.ModuleType) -> None:
    # The script lets mpi4py do it.
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    mpi.initialise_for_mpi4py()
    # There is no MPI around the script.
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    mpi4py.rc.initialize = False
    mpi.initialise_for_mpi4py()
    assert mpi4py.MPI.calls == []
    # mpi4py is not in use at all, and we do not begin with it.
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.delitem(sys.modules, "mpi4py")
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    mpi.initialise_for_mpi4py()
    assert "mpi4py" not in sys.modules
