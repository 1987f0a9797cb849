"""Farandole for TensorFlow: `import farandole.tensorflow as hvd`.

Horovod's API, name by name. Everything here lives in a module of its own beside this one.
"""

from farandole.exceptions import HorovodInternalError
from farandole.tensorflow import mpi_ops
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from farandole.tensorflow.reduce import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
