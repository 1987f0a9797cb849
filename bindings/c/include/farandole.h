/*
 * Farandole for C: data-parallel collectives over the processes of a job.
 *
 * A process becomes a rank of its job with farandole_init, whichever launcher has started it; without a launcher it is
 * the only rank of a job of one. There are two kinds of collectives:
 *
 *   direct  run on the caller's thread and memory, as in MPI: all ranks make the same calls in the same order.
 *   named   are submitted in any order, from any thread, and run in the background. Requests of the same name on all
 *           ranks belong together; small ones are fused. A ticket tells when one is done.
 *
 * ERRORS. Functions return a farandole_status: FARANDOLE_OK, or what is wrong. Questions about ranks and process sets
 * return the answer, or -1. In both cases farandole_last_error() has the text, which names the cause: the rank that was
 * lost, the name of the tensor, what to do. Null pointers, numbers that mean nothing, tickets that were freed and calls
 * at the wrong time are refused; they are never undefined behaviour. Errors that any function may return, and that are
 * not repeated below: FARANDOLE_INVALID_ARGUMENT (nothing was sent), FARANDOLE_NOT_INITIALIZED, FARANDOLE_FORKED,
 * FARANDOLE_INTERNAL.
 *
 * MEMORY. Pointers are used during the call only, with one exception: the data and the output of a request, and the
 * data of a message, belong to the library until the ticket is done. Until then the program neither frees, nor writes,
 * nor reads them (what farandole_send sends may be read). Results that the library has made memory for live until the
 * ticket is freed. Texts that are returned belong to the library; how long they live is said at each function.
 *
 * THREADS. All functions may be called from all threads. Direct collectives take turns, so a program that makes them
 * from several threads must keep their order the same on all ranks. Waiting blocks the calling thread alone.
 *
 * FORK. A forked child is not a rank. It may ask for ranks and sizes, and start another program; everything else
 * returns FARANDOLE_FORKED.
 *
 * HOROVOD. The C functions of Horovod are in the same library and are declared in horovod.h.
 *
 * VERSIONS. What is declared here stays: functions, numbers and fields are added and never changed. Structs begin with
 * their size, so a program that was compiled with an older header works with a newer library. If that should ever
 * end, the library gets another file name. A program that uses what is new checks
 * farandole_abi_version() >= FARANDOLE_ABI_VERSION.
 */
#ifndef FARANDOLE_H
#define FARANDOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Major version times 1000 plus minor version, of this header. */
#define FARANDOLE_ABI_VERSION 1000

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* What a call came to. */
typedef int32_t farandole_status;
enum {
    FARANDOLE_OK = 0,
    /* An argument is wrong. Nothing was sent, the job goes on. */
    FARANDOLE_INVALID_ARGUMENT = 1,
    /* This process is no rank: before farandole_init, or after farandole_shutdown. */
    FARANDOLE_NOT_INITIALIZED = 2,
    /* The ranks did not find each other, or a setting is wrong. */
    FARANDOLE_START_FAILED = 3,
    /* The job has ended in good order: this rank was shut down, or another one has left. */
    FARANDOLE_SHUT_DOWN = 4,
    /* There is no such process set. */
    FARANDOLE_UNKNOWN_PROCESS_SET = 5,
    /* This rank is not a member of the process set. */
    FARANDOLE_NOT_A_MEMBER = 6,
    /* There is a process set of exactly these ranks. */
    FARANDOLE_EXISTING_PROCESS_SET = 7,
    /* A request of this name is still under way. */
    FARANDOLE_DUPLICATE_NAME = 8,
    /* The ranks do not ask for the same thing; all get the same text. The job goes on. */
    FARANDOLE_REFUSED = 9,
    /* The time is up; the request is still under way. */
    FARANDOLE_TIMED_OUT = 10,
    /* A rank was lost, or has aborted the job. All ranks get the first cause; the job cannot go on. */
    FARANDOLE_FAILED = 11,
    /* There is no such ticket: it was freed, or never given out. */
    FARANDOLE_UNKNOWN_TICKET = 12,
    /* The request is still under way. */
    FARANDOLE_NOT_DONE = 13,
    /* The array for the answer is too small. */
    FARANDOLE_TOO_SMALL = 14,
    /* This process was forked from a rank. */
    FARANDOLE_FORKED = 15,
    /* Another copy of the library has made this process a rank, for example the Python module. */
    FARANDOLE_OTHER_LIBRARY = 16,
    /* A file cannot be written. */
    FARANDOLE_FILE = 17,
    /* A defect of the library. */
    FARANDOLE_INTERNAL = 18,
};

/* Element types. */
typedef int32_t farandole_dtype;
enum {
    FARANDOLE_BOOL = 0, /* one byte, zero or one */
    FARANDOLE_UINT8 = 1,
    FARANDOLE_INT8 = 2,
    FARANDOLE_UINT16 = 3,
    FARANDOLE_INT16 = 4,
    FARANDOLE_UINT32 = 5,
    FARANDOLE_INT32 = 6,
    FARANDOLE_UINT64 = 7,
    FARANDOLE_INT64 = 8,
    FARANDOLE_FLOAT16 = 9, /* IEEE half precision */
    FARANDOLE_BFLOAT16 = 10, /* the upper half of an IEEE single */
    FARANDOLE_FLOAT32 = 11,
    FARANDOLE_FLOAT64 = 12,
};

/* Reductions. */
typedef int32_t farandole_op;
enum {
    FARANDOLE_AVERAGE = 0, /* integers are truncated towards zero; bool is "all" */
    FARANDOLE_SUM = 1, /* integers wrap; bool is "any" */
    FARANDOLE_ADASUM = 2, /* named allreduces of floats only */
    FARANDOLE_MIN = 3,
    FARANDOLE_MAX = 4,
    FARANDOLE_PRODUCT = 5,
};

/* Named collectives. */
typedef int32_t farandole_collective;
enum {
    FARANDOLE_ALLREDUCE = 0, /* every rank gets the combination of all data */
    FARANDOLE_ALLGATHER = 1, /* every rank gets the rows of all; each brings as many as it likes */
    FARANDOLE_BROADCAST = 2, /* every rank gets the root's data */
    FARANDOLE_ALLTOALL = 3, /* every rank sends some rows to each */
    FARANDOLE_REDUCESCATTER = 4, /* every rank gets its rows of the combination */
    FARANDOLE_REDUCE = 5, /* the root gets the combination; the others' data stays */
    FARANDOLE_GATHER = 6, /* the root gets the rows of all */
    FARANDOLE_SCATTER = 7, /* every rank gets some of the root's rows; the others' data has none */
    FARANDOLE_BARRIER = 8, /* done when all ranks have come */
    FARANDOLE_JOIN = 9, /* this rank has no more data; done when all ranks have said so */
};

enum {
    FARANDOLE_ANY_RANK = -1, /* farandole_recv: from whichever rank sends first */
    FARANDOLE_WORLD = 0 /* the process set of all ranks */
};

/* ---- versions and errors ----------------------------------------------------------------------------------------- */

/* The version of the library's ABI, as FARANDOLE_ABI_VERSION is the header's. */
int32_t farandole_abi_version(void);

/* The version of the library, for people. Lives as long as the process. */
const char *farandole_version(void);

/* What a status means, in a few words: "a rank was lost, or has aborted the job". For what happened, ask
 * farandole_last_error. "unknown status" for numbers that are none. Lives as long as the process. */
const char *farandole_status_string(farandole_status status);

/* The text of the last error of a call on this thread; "" if there was none. Lives until the next error on this thread.
 * Calls that succeed leave it alone. */
const char *farandole_last_error(void);

/* ---- the job ----------------------------------------------------------------------------------------------------- */

/* How a process joins its job. Begin with FARANDOLE_OPTIONS_INIT, which leaves everything to the environment. */
typedef struct farandole_options {
    size_t size; /* sizeof(farandole_options) */
    double start_timeout_seconds; /* how long the ranks have to find each other; 0: what the settings say */
    const char *wire_protection; /* "off", "checksum" or "encrypt" between hosts; NULL: what the settings say */
    /* For a program that knows its rank without a launcher: its rank, the number of ranks (0: ask the environment), a
     * word that all ranks of this job have and no others, and tcp:HOST:PORT for the meeting in rank 0 (NULL if all
     * ranks are on one host). */
    int32_t rank;
    int32_t world_size;
    const char *job;
    const char *rank_zero_address;
    /* Process sets that are made at once, the same on all ranks: the ranks of all sets one after the other, the number
     * of ranks of each set, and the number of sets. */
    const int32_t *process_set_ranks;
    const int32_t *process_set_sizes;
    size_t process_set_count;
} farandole_options;

#define FARANDOLE_OPTIONS_INIT {sizeof(farandole_options), 0.0, NULL, 0, 0, NULL, NULL, NULL, NULL, 0}

/* Makes this process a rank of its job, and waits for the other ranks. NULL means no options. Does nothing if it is a
 * rank already. May be called again after farandole_shutdown, on all ranks.
 * FARANDOLE_START_FAILED, FARANDOLE_OTHER_LIBRARY. */
farandole_status farandole_init(const farandole_options *options);

/* Leaves the job: requests under way end with FARANDOLE_SHUT_DOWN, a direct collective of another thread fails within a
 * second. Does nothing where there is no job, and in forked children. A program calls it before it ends: a rank that
 * just ends is missed by the others. */
farandole_status farandole_shutdown(void);

/* 1 if this process is a rank, otherwise 0. */
int farandole_is_initialized(void);

/* This rank, and the number of ranks; the same among the ranks of this host; and among the hosts that have a rank with
 * this local rank. -1 where there is no job. */
int32_t farandole_rank(void);
int32_t farandole_size(void);
int32_t farandole_local_rank(void);
int32_t farandole_local_size(void);
int32_t farandole_cross_rank(void);
int32_t farandole_cross_size(void);

/* 1 if all hosts have the same number of ranks, otherwise 0. -1 where there is no job. */
int32_t farandole_is_homogeneous(void);

/* Ends all collectives, direct and named: they fail on all ranks, with this cause. For a rank that cannot go on. */
farandole_status farandole_abort(const char *cause);

/*
 * Call it last before a checkpoint, or another file that one rank writes, takes its place. FARANDOLE_FAILED on a rank
 * that an elastic job has replaced, or that cannot reach a majority. Otherwise the number of this rank's generation,
 * which a majority of its members has confirmed after the call began; 0 at once in a job of a fixed size. Not a
 * collective: any rank may call it alone. It waits for one round of messages, and at most for the heartbeat timeout.
 */
farandole_status farandole_fence(uint64_t *generation);

/* ---- direct collectives ------------------------------------------------------------------------------------------ */

/*
 * Of all ranks, on host memory. Counts are numbers of elements; memory may have any alignment. What is read and what is
 * written must not overlap. They return when this rank's part is done.
 * FARANDOLE_FAILED if a rank is lost, or the ranks do not make the same calls.
 */

/* Replaces the data by the combination of all ranks' data. */
farandole_status farandole_allreduce(void *data, size_t count, farandole_dtype dtype, farandole_op op);

/* The same; each contribution is multiplied by prescale, the result by postscale. */
farandole_status farandole_allreduce_scaled(void *data, size_t count, farandole_dtype dtype, farandole_op op,
                                            double prescale, double postscale);

/* Replaces the data by that of root. */
farandole_status farandole_broadcast(void *data, size_t count, farandole_dtype dtype, int32_t root);

/* Writes the data of all ranks to `all`, count elements from each, in the order of the ranks. */
farandole_status farandole_allgather(const void *own, size_t count, farandole_dtype dtype, void *all);

/* The same with counts[r] elements from rank r. All ranks pass the same counts. */
farandole_status farandole_allgatherv(const void *own, const size_t *counts, farandole_dtype dtype, void *all);

/* Combines the data of all ranks, count elements, and writes this rank's part to `own`: counts[r] elements for rank r.
 * With counts NULL the shares are even, and the first ranks have one element more where it does not come out even. */
farandole_status farandole_reducescatter(const void *data, size_t count, const size_t *counts, farandole_dtype dtype,
                                         farandole_op op, void *own);

/* Sends count elements of the data to each rank, and writes those of each to `received`, in the order of the ranks. */
farandole_status farandole_alltoall(const void *data, size_t count, farandole_dtype dtype, void *received);

/* Sends send_counts[r] elements to rank r, and gets recv_counts[r] from it. */
farandole_status farandole_alltoallv(const void *data, const size_t *send_counts, void *received,
                                     const size_t *recv_counts, farandole_dtype dtype);

/* Returns when all ranks have called it. */
farandole_status farandole_barrier(void);

/* ---- named collectives ------------------------------------------------------------------------------------------- */

/* A request under way, by number. Numbers are never used again. */
typedef uint64_t farandole_ticket;
#define FARANDOLE_NO_TICKET ((farandole_ticket)0)

/* What is asked for. Begin with FARANDOLE_REQUEST_INIT; a collective looks at the fields that it needs. Ranks are those
 * of the world, also within a process set. */
typedef struct farandole_request {
    size_t size; /* sizeof(farandole_request) */
    const char *name; /* the same on all ranks for requests that belong together; UTF-8 */
    void *data; /* this rank's tensor, contiguous in host memory */
    const uint64_t *shape; /* its dimensions, the outermost first; rows lie along that one */
    size_t dimensions; /* 0: a single element */
    farandole_dtype dtype;
    farandole_collective collective;
    farandole_op op; /* allreduce, reducescatter, reduce */
    int32_t process_set; /* among whom */
    int32_t root; /* broadcast, reduce, gather, scatter */
    int32_t priority; /* among requests that are ready at the same time, higher ones go first */
    double prescale; /* allreduce, reducescatter, reduce: a factor for each contribution */
    double postscale; /* and one for the result */
    const uint64_t *splits; /* alltoall, and scatter on its root: rows for each rank of the set; NULL: even parts */
    size_t split_count;
    /* Where the result goes; NULL: allreduce, broadcast and reduce replace the data, the others bring memory of the
     * library's. How large their results are is known only when they are done: if a result does not fit output_count
     * elements exactly, it lies in memory of the library's, too. farandole_ticket_result says where it is. */
    void *output;
    size_t output_count; /* elements */
} farandole_request;

#define FARANDOLE_REQUEST_INIT                                                                                         \
    {sizeof(farandole_request), NULL, NULL, NULL, 0, FARANDOLE_FLOAT32, FARANDOLE_ALLREDUCE, FARANDOLE_AVERAGE,        \
     FARANDOLE_WORLD, 0, 0, 1.0, 1.0, NULL, 0, NULL, 0}

/* Submits a request and returns at once. The ticket must be freed; it is not written where the call fails.
 * FARANDOLE_DUPLICATE_NAME, FARANDOLE_UNKNOWN_PROCESS_SET, FARANDOLE_NOT_A_MEMBER, FARANDOLE_SHUT_DOWN,
 * FARANDOLE_FAILED. */
farandole_status farandole_submit(const farandole_request *request, farandole_ticket *ticket);

/* Submits requests that run together or not at all, under a name for all of them that is the same on all ranks;
 * allreduce, allgather and reducescatter can. All are checked before the first is submitted. If one is refused all the
 * same, those before it are under way and have tickets, the others FARANDOLE_NO_TICKET. Errors as farandole_submit. */
farandole_status farandole_submit_group(const char *group, const farandole_request *requests, size_t count,
                                        farandole_ticket *tickets);

/* Sends count elements to a rank of the process set, which must receive as many with the same tag. The ticket is done
 * when the memory is free again. Errors as farandole_submit. */
farandole_status farandole_send(const void *data, size_t count, farandole_dtype dtype, int32_t to, uint32_t tag,
                                int32_t process_set, farandole_ticket *ticket);

/* Receives what a rank, or FARANDOLE_ANY_RANK, sends with this tag. Errors as farandole_submit. */
farandole_status farandole_recv(void *data, size_t count, farandole_dtype dtype, int32_t from, uint32_t tag,
                                int32_t process_set, farandole_ticket *ticket);

/* Writes 1 to done if the request is done, successfully or not, otherwise 0. FARANDOLE_UNKNOWN_TICKET. */
farandole_status farandole_test(farandole_ticket ticket, int *done);

/* Waits until the request is done, or the time is up; below zero there is no limit. Returns what has come of it; a
 * second call returns the same. FARANDOLE_TIMED_OUT, FARANDOLE_REFUSED, FARANDOLE_FAILED, FARANDOLE_SHUT_DOWN,
 * FARANDOLE_UNKNOWN_TICKET. */
farandole_status farandole_wait(farandole_ticket ticket, double timeout_seconds);

/* Waits for several requests within one limit, which costs less than waiting for one after the other. Returns the first
 * error, when all are done; or FARANDOLE_TIMED_OUT. */
farandole_status farandole_wait_all(const farandole_ticket *tickets, size_t count, double timeout_seconds);

/* The text of the request's error; "" if there is none, or it is not done. Lives until the ticket is freed. */
const char *farandole_ticket_error(farandole_ticket ticket);

/* Where the result lies, and its size in bytes. It is the caller's memory where the result went there; other memory
 * lives until the ticket is freed. FARANDOLE_NOT_DONE, the request's own error, FARANDOLE_UNKNOWN_TICKET. */
farandole_status farandole_ticket_result(farandole_ticket ticket, const void **data, size_t *bytes);

/*
 * Lists: count gets the length of the list. The entries are written if there is room for all of them; with capacity 0
 * nothing is written, for a caller that asks for the length first. FARANDOLE_TOO_SMALL, and as farandole_ticket_result.
 */

/* The dimensions of the result. */
farandole_status farandole_ticket_shape(farandole_ticket ticket, uint64_t *shape, size_t capacity, size_t *dimensions);

/* Alltoall, gather and scatter: how many rows came from each rank of the process set. Empty for others. */
farandole_status farandole_ticket_received_splits(farandole_ticket ticket, uint64_t *splits, size_t capacity,
                                                  size_t *count);

/* Join: the last rank to say that it has no more data. -1 for others. Errors as farandole_ticket_result. */
farandole_status farandole_ticket_last_joined(farandole_ticket ticket, int32_t *rank);

/* Messages: the other rank. -1 for others. Errors as farandole_ticket_result. */
farandole_status farandole_ticket_source(farandole_ticket ticket, int32_t *rank);

/* Gives a ticket up. If the request is under way, waits until it is done: the library uses its memory until then.
 * FARANDOLE_NO_TICKET is allowed. FARANDOLE_UNKNOWN_TICKET if it was freed before. */
farandole_status farandole_ticket_free(farandole_ticket ticket);

/* ---- process sets ------------------------------------------------------------------------------------------------ */

/* Makes a process set of these ranks and writes its number. All ranks call this together, members or not, in the same
 * order among other additions and removals. FARANDOLE_EXISTING_PROCESS_SET, FARANDOLE_FAILED. */
farandole_status farandole_add_process_set(const int32_t *ranks, size_t count, int32_t *process_set);

/* Ends a process set. All ranks call this together. FARANDOLE_UNKNOWN_PROCESS_SET, FARANDOLE_FAILED. */
farandole_status farandole_remove_process_set(int32_t process_set);

/* Number of members; this rank's number among them; 1 or 0 for whether it is one. -1 if there is no such set, no job,
 * or, for the rank, if this rank is not a member. */
int32_t farandole_process_set_size(int32_t process_set);
int32_t farandole_process_set_rank(int32_t process_set);
int farandole_process_set_included(int32_t process_set);

/* Lists, as above: the numbers of all process sets, and the ranks of one. */
farandole_status farandole_process_set_ids(int32_t *ids, size_t capacity, size_t *count);
farandole_status farandole_process_set_ranks(int32_t process_set, int32_t *ranks, size_t capacity, size_t *count);

/* ---- records ----------------------------------------------------------------------------------------------------- */

/*
 * What the program says about itself, for traces, timelines and reports. Where there is no job there is nobody to tell,
 * and these do nothing.
 */

/* A phase of this name begins on this thread, and ends. Phases may lie within each other. */
farandole_status farandole_phase_begin(const char *name);
farandole_status farandole_phase_end(const char *name);

/* An iteration, or an epoch, of training begins. */
farandole_status farandole_mark_iteration(uint64_t number);
farandole_status farandole_mark_epoch(uint64_t number);

/* Begins a timeline in Horovod's format in this file, written by rank 0; on other ranks nothing happens. One that is
 * being written ends. FARANDOLE_FILE. */
farandole_status farandole_start_timeline(const char *path, int mark_cycles);

/* Ends the timeline; everything that has happened is in its file. FARANDOLE_FILE. */
farandole_status farandole_stop_timeline(void);

#ifdef __cplusplus
}
#endif

#endif
