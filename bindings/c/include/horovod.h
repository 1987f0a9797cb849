/*
 * The C functions of Horovod, which its Python class HorovodBasics calls through ctypes, with Horovod's signatures and
 * return values. They are part of libfarandole.so and act on the same job as the functions of farandole.h. What is
 * wrong is in farandole_last_error, too.
 *
 * Questions return -1 where there is no job. Functions of process sets return -1 (no job), -2 (the job does not allow
 * changes of process sets: HOROVOD_DYNAMIC_PROCESS_SETS=1 was not set), -3 (no such set, or these ranks do not make
 * one), -4 (this rank is not a member), -5 (the job has ended) or -6 (there is such a set).
 */
#ifndef FARANDOLE_HOROVOD_H
#define FARANDOLE_HOROVOD_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `false` if this process does not become a rank. `ranks` are none, or all of the job. */
bool horovod_init(const int *ranks, int nranks, const int *process_set_ranks, const int *process_set_sizes,
                  int num_process_sets);
/* The library links no MPI: communicators (`comm` is Horovod's MPI_Comm *) are refused; without any, as above. */
bool horovod_init_multi_comm(void *comm, int ncomms, const int *process_set_ranks_via_ranks,
                             const int *process_set_sizes_via_ranks, int num_process_sets_via_ranks);
void horovod_shutdown(void);
int horovod_is_initialized(void);
int horovod_rank(void);
int horovod_size(void);
int horovod_local_rank(void);
int horovod_local_size(void);
int horovod_cross_rank(void);
int horovod_cross_size(void);
bool horovod_is_homogeneous(void);
int horovod_mpi_threads_supported(void);
bool horovod_mpi_enabled(void);
bool horovod_mpi_built(void);
bool horovod_gloo_enabled(void);
bool horovod_gloo_built(void);
int horovod_nccl_built(void);
bool horovod_ddl_built(void);
bool horovod_ccl_built(void);
bool horovod_cuda_built(void);
bool horovod_rocm_built(void);
int horovod_reduce_op_average(void);
int horovod_reduce_op_sum(void);
int horovod_reduce_op_adasum(void);
int horovod_reduce_op_min(void);
int horovod_reduce_op_max(void);
int horovod_reduce_op_product(void);
int horovod_add_process_set(const int *ranks, int nranks);
int horovod_remove_process_set(int process_set_id);
int horovod_process_set_rank(int process_set_id);
int horovod_process_set_size(int process_set_id);
int horovod_process_set_included(int process_set_id);
int horovod_number_of_process_sets(void);
void horovod_process_set_ids(int *ids_prealloc);
int horovod_process_set_ranks(int id, int *ranks_prealloc);
int horovod_comm_process_set(void *comm);
/* 1; -1 where there is no job, -2 if HOROVOD_TIMELINE was not set, -3 if the file cannot be made. */
int horovod_start_timeline(const char *file_name, bool mark_cycles);
int horovod_stop_timeline(void);

#ifdef __cplusplus
}
#endif

#endif
