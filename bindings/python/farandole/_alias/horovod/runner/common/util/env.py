"""`horovod.runner.common.util.env`: who am I, as far as the environment tells, before `init`."""

import os

# In this order: what `farandole run --horovod` sets, Open MPI, and MPICH and its relatives.
_VARIABLES = [
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
]


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size that a launcher left in the environment; (0, 1) where there was none."""
    for rank_variable, size_variable in _VARIABLES:
        rank, size = os.environ.get(rank_variable), os.environ.get(size_variable)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            raise RuntimeError(
                "Could not determine process rank and size: "
                f"only one of {rank_variable} and {size_variable} found in environment"
            )
    return 0, 1
