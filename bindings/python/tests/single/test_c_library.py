"""The C library and ctypes: without the Python package, beside it, and in the same engine as its front ends."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest
from jobs import environment, run_job

import farandole
from farandole import _native, process_sets
from farandole.basics import HorovodBasics, basics

ROOT = pathlib.Path(__file__).parents[4]

# A class over the C functions in the way that Horovod's own is one. It knows nothing of farandole's Python package.
CLASS = """
import ctypes, sys

class Basics:
    def __init__(self, path):
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.Average = self.library.horovod_reduce_op_average()
        self.Sum = self.library.horovod_reduce_op_sum()

    def init(self, process_sets=()):
        sizes = (ctypes.c_int * len(process_sets))(*(len(ranks) for ranks in process_sets))
        flat = [rank for ranks in process_sets for rank in ranks]
        ranks = (ctypes.c_int * len(flat))(*flat)
        if not self.library.horovod_init((ctypes.c_int * 0)(), 0, ranks, sizes, len(process_sets)):
            self.library.farandole_last_error.restype = ctypes.c_char_p
            raise ValueError(self.library.farandole_last_error().decode())

    def rank(self):
        rank = self.library.horovod_rank()
        if rank == -1:
            raise ValueError("not initialized")
        return rank

    def process_sets(self):
        count = self.library.horovod_number_of_process_sets()
        numbers = (ctypes.c_int * count)()
        self.library.horovod_process_set_ids(numbers)
        sets = {}
        for number in numbers:
            ranks = (ctypes.c_int * self.library.horovod_process_set_size(number))()
            assert self.library.horovod_process_set_ranks(number, ranks) == 0
            sets[number] = list(ranks)
        return sets

    def sum(self, value):
        data = ctypes.c_double(value)
        # 12: float64
        assert self.library.farandole_allreduce(ctypes.byref(data), ctypes.c_size_t(1), 12, self.Sum) == 0
        return data.value
"""


def test_a_ctypes_program_runs_on_four_ranks_without_the_package() -> None:
    job = run_job(
        4,
        CLASS
        + """
hvd = Basics(sys.argv[1])
try:
    hvd.rank()
except ValueError:
    pass
else:
    raise AssertionError("there should be no rank yet")
hvd.init([[0, 2], [1, 3]])
lib = hvd.library
assert (lib.horovod_size(), lib.horovod_local_size(), lib.horovod_cross_size()) == (4, 4, 1)
assert bool(lib.horovod_is_homogeneous()) and lib.horovod_is_initialized() == 1
assert bool(lib.horovod_gloo_built()) and not bool(lib.horovod_mpi_enabled())
# No library, or the version code of one that can be used.
assert lib.horovod_nccl_built() == 0 or lib.horovod_nccl_built() >= 21800
assert hvd.process_sets() == {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}
assert lib.horovod_process_set_included(1) == (hvd.rank() % 2 == 0)
assert lib.horovod_process_set_rank(1) == (hvd.rank() // 2 if hvd.rank() % 2 == 0 else -4)
assert lib.horovod_process_set_size(7) == -3
assert lib.horovod_add_process_set((ctypes.c_int * 2)(0, 1), 2) == -2, "not dynamic"
total = hvd.sum(hvd.rank())
lib.horovod_shutdown()
assert lib.horovod_rank() == -1
print(f"the sum is {total}", "farandole" in sys.modules)
""",
        arguments=[farandole.get_library()],
    )
    assert job.code == 0, job.errors
    assert [job.lines(rank) for rank in range(4)] == [["the sum is 6.0 False"]] * 4


def test_dynamic_process_sets_come_and_go_through_horovods_functions() -> None:
    job = run_job(
        3,
        "import os\nos.environ['HOROVOD_DYNAMIC_PROCESS_SETS'] = '1'\n"
        + CLASS
        + """
hvd = Basics(sys.argv[1])
hvd.init()
pair = (ctypes.c_int * 2)(2, 0)
number = hvd.library.horovod_add_process_set(pair, 2)
assert hvd.process_sets() == {0: [0, 1, 2], number: [0, 2]}
assert hvd.library.horovod_add_process_set(pair, 2) == -6
assert hvd.library.horovod_add_process_set((ctypes.c_int * 1)(5), 1) == -3
assert hvd.library.horovod_remove_process_set(number) == number
assert hvd.library.horovod_remove_process_set(number) == -3
hvd.library.horovod_shutdown()
print("done")
""",
        arguments=[farandole.get_library()],
    )
    assert job.code == 0, job.errors
    assert all(job.lines(rank) == ["done"] for rank in range(3))


def test_c_and_python_share_one_engine() -> None:
    job = run_job(
        2,
        """
        import ctypes
        import farandole.basics
        from farandole import _native
        from farandole.basics import HorovodBasics, basics
        from farandole.process_sets import ProcessSet

        library = HorovodBasics(__file__ if "__file__" in globals() else "x", "mpi_lib").MPI_LIB_CTYPES
        assert library.horovod_rank() == -1
        basics.init(process_sets="dynamic")
        assert (library.horovod_rank(), library.horovod_size()) == (basics.rank(), basics.size()) == (_native.rank(), 2)
        data = ctypes.c_float(basics.rank() + 1)
        assert library.farandole_allreduce(ctypes.byref(data), ctypes.c_size_t(1), 11, basics.Sum) == 0
        assert data.value == 3.0
        number = library.horovod_add_process_set((ctypes.c_int * 1)(1), 1)
        assert basics._process_set_size(number) == 1
        library.horovod_shutdown()
        assert not basics.is_initialized()

        # And the other way round: what C has begun is Python's job, too, and the interpreter's end ends it.
        assert library.horovod_init((ctypes.c_int * 2)(0, 1), 2, None, None, 0)
        assert basics.is_initialized() and basics.size() == 2
        basics.init()
        assert basics._get_process_set_ids_and_ranks() == {0: [0, 1]}
        print("shared")
        """,
    )
    assert job.code == 0, job.errors
    assert job.lines(0) == job.lines(1) == ["shared"]


def test_a_part_of_the_job_is_refused_with_words() -> None:
    library = basics.MPI_LIB_CTYPES
    library.farandole_last_error.restype = ctypes.c_char_p
    assert not library.horovod_init((ctypes.c_int * 2)(0, 1), 2, None, None, 0)
    assert b"[0, 1] are not all of this job, which has 1" in library.farandole_last_error()
    assert not _native.is_initialized()
    assert not library.horovod_init_multi_comm(None, 1, None, None, 0)
    assert b"links no MPI" in library.farandole_last_error()


@pytest.mark.parametrize("first", ["package", "library"])
@pytest.mark.parametrize("scope", ["RTLD_LOCAL", "RTLD_GLOBAL"])
def test_a_second_engine_in_the_process_is_refused_and_names_the_first(first: str, scope: str) -> None:
    """In the global scope, functions of the first library that is loaded must not stand in for those of the second."""
    script = """
    import ctypes, sys, farandole
    from farandole import _native
    mode = getattr(ctypes, sys.argv[2])
    files = [_native.__file__, farandole.get_library()]
    for file in files if sys.argv[1] == "package" else reversed(files):
        library = ctypes.CDLL(file, mode=mode)
    library = ctypes.CDLL(farandole.get_library())
    library.farandole_last_error.restype = ctypes.c_char_p
    if sys.argv[1] == "package":
        _native.init([], dynamic=False)
        assert library.horovod_rank() == -1
        assert library.farandole_init(None) == 16
        assert _native.__file__.encode() in library.farandole_last_error(), library.farandole_last_error()
        _native.shutdown()
        assert library.farandole_init(None) == 0
    else:
        assert library.farandole_init(None) == 0
        try:
            _native.init([], dynamic=False)
        except RuntimeError as error:
            assert farandole.get_library() in str(error), error
        else:
            raise AssertionError("two engines in one process")
        assert library.farandole_shutdown() == 0
        _native.init([], dynamic=False)
    print("refused")
    """
    job = run_job(1, script, arguments=[first, scope])
    assert job.code == 0, job.errors
    assert job.lines(0) == ["refused"]


def test_forking_is_safe_while_other_threads_ask_for_the_rank() -> None:
    job = run_job(
        1,
        """
        import os, threading
        from farandole import _native
        from farandole.basics import basics
        _native.init([], dynamic=False)
        library, stop = basics.MPI_LIB_CTYPES, threading.Event()

        def ask():
            while not stop.is_set():
                for _ in range(1000):
                    library.horovod_rank()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            child = os.fork()
            if child == 0:
                os._exit(library.horovod_rank())
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        print("forked")
        """,
    )
    assert job.code == 0, job.errors
    assert job.lines(0) == ["forked"]


def test_the_flags_compile_a_program_that_runs_on_two_ranks(tmp_path: pathlib.Path) -> None:
    include = pathlib.Path(farandole.get_include())
    assert (include / "farandole.h").is_file() and (include / "horovod.h").is_file()
    words = [sys.executable, "-m", "farandole.c_flags", "--cflags", "--libs"]
    told = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True, timeout=60)
    assert told.stderr == ""
    flags = told.stdout
    program = tmp_path / "average"
    source = ROOT / "examples/c/average.c"
    compiled = ["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", str(source), *flags.split()]
    subprocess.run([*compiled, "-o", str(program)], check=True, timeout=60)
    command = [os.environ["FARANDOLE_COMMAND"], "run", "-np", "2", str(program)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("the average is 0.50") == 2
    usage = subprocess.run(words[:3], env=environment(), capture_output=True, text=True, timeout=60)
    assert usage.returncode == 2 and "usage" in usage.stderr


def test_the_class_takes_horovods_arguments() -> None:
    ours = HorovodBasics(__file__, "mpi_lib")
    assert ours.MPI_LIB_CTYPES.horovod_reduce_op_sum() == ours.Sum
    assert ours.MPI_LIB_CTYPES.horovod_is_initialized() == int(process_sets._native.is_initialized())
