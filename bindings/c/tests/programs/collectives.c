/* Every collective, direct and named, with results that are compared exactly. Runs on any number of ranks. */
#include "check.h"

static int rank, size;

static farandole_request request_of(const char *name, farandole_collective collective, void *data,
                                    const uint64_t *shape) {
    farandole_request request = FARANDOLE_REQUEST_INIT;
    request.name = name;
    request.collective = collective;
    request.data = data;
    request.shape = shape;
    request.dimensions = 1;
    request.dtype = FARANDOLE_INT32;
    request.op = FARANDOLE_SUM;
    return request;
}

static farandole_ticket submitted(const farandole_request *request) {
    farandole_ticket ticket = FARANDOLE_NO_TICKET;
    OK(farandole_submit(request, &ticket));
    CHECK(ticket != FARANDOLE_NO_TICKET);
    return ticket;
}

/* The result of a request whose size is known when it is done. */
static const int32_t *result_of(farandole_ticket ticket, size_t elements) {
    const void *data = NULL;
    size_t bytes = 0;
    OK(farandole_wait(ticket, 60.0));
    OK(farandole_ticket_result(ticket, &data, &bytes));
    CHECK(bytes == elements * sizeof(int32_t));
    return (const int32_t *)data;
}

static void direct(void) {
    int32_t sum[3] = {rank, 1, -rank};
    OK(farandole_allreduce(sum, 3, FARANDOLE_INT32, FARANDOLE_SUM));
    CHECK(sum[0] == size * (size - 1) / 2 && sum[1] == size && sum[2] == -sum[0]);

    double scaled = rank + 1;
    OK(farandole_allreduce_scaled(&scaled, 1, FARANDOLE_FLOAT64, FARANDOLE_SUM, 2.0, 0.5));
    CHECK(scaled == size * (size + 1) / 2);

    uint8_t any = rank == size - 1;
    OK(farandole_allreduce(&any, 1, FARANDOLE_BOOL, FARANDOLE_MAX));
    CHECK(any == 1);

    int64_t from_last = rank;
    OK(farandole_broadcast(&from_last, 1, FARANDOLE_INT64, size - 1));
    CHECK(from_last == size - 1);

    int16_t own[2] = {(int16_t)rank, (int16_t)(rank + 100)};
    int16_t *all = (int16_t *)calloc((size_t)size, sizeof own);
    OK(farandole_allgather(own, 2, FARANDOLE_INT16, all));
    for (int r = 0; r < size; r++) {
        CHECK(all[2 * r] == r && all[2 * r + 1] == r + 100);
    }
    free(all);

    OK(farandole_barrier());
}

/* Rank r brings r + 1 elements, sends r + 1 to everybody, and gets r + 1 of what is reduced. */
static void direct_uneven(void) {
    size_t total = (size_t)size * (size_t)(size + 1) / 2, own = (size_t)rank + 1;
    size_t *counts = (size_t *)calloc((size_t)size, sizeof *counts);
    size_t *same = (size_t *)calloc((size_t)size, sizeof *same);
    int32_t *mine = (int32_t *)calloc(own * (size_t)size, sizeof *mine);
    int32_t *all = (int32_t *)calloc(total, sizeof *all);
    for (int r = 0; r < size; r++) {
        counts[r] = (size_t)r + 1;
        same[r] = own;
    }
    for (size_t i = 0; i < own * (size_t)size; i++) {
        mine[i] = rank;
    }
    OK(farandole_allgatherv(mine, counts, FARANDOLE_INT32, all));
    for (int r = 0, at = 0; r < size; r++) {
        for (int i = 0; i <= r; i++, at++) {
            CHECK(all[at] == r);
        }
    }
    memset(all, 0, total * sizeof *all);
    OK(farandole_alltoallv(mine, same, all, counts, FARANDOLE_INT32));
    CHECK(all[0] == 0 && all[total - 1] == size - 1);

    for (size_t i = 0; i < total; i++) {
        all[i] = (int32_t)i;
    }
    OK(farandole_reducescatter(all, total, counts, FARANDOLE_INT32, FARANDOLE_SUM, mine));
    CHECK(mine[0] == size * rank * (rank + 1) / 2);

    int32_t *even = (int32_t *)calloc((size_t)size, sizeof *even);
    for (int r = 0; r < size; r++) {
        even[r] = r;
    }
    OK(farandole_reducescatter(even, (size_t)size, NULL, FARANDOLE_INT32, FARANDOLE_SUM, mine));
    CHECK(mine[0] == size * rank);
    OK(farandole_alltoall(even, 1, FARANDOLE_INT32, all));
    CHECK(all[0] == rank && all[size - 1] == rank);
    free(even);
    free(all);
    free(mine);
    free(same);
    free(counts);
}

static void named_in_place(void) {
    const uint64_t two[1] = {2};
    int32_t data[2] = {rank, 1}, output[2] = {-1, -1};
    farandole_request request = request_of("sum", FARANDOLE_ALLREDUCE, data, two);
    request.output = output;
    request.output_count = 2;
    farandole_ticket ticket = submitted(&request);
    CHECK(result_of(ticket, 2) == output && output[0] == size * (size - 1) / 2 && output[1] == size);
    CHECK(data[0] == rank);
    OK(farandole_ticket_free(ticket));

    request = request_of("from the last", FARANDOLE_BROADCAST, data, two);
    request.root = size - 1;
    ticket = submitted(&request);
    CHECK(result_of(ticket, 2) == data && data[0] == size - 1);
    OK(farandole_ticket_free(ticket));

    data[0] = rank;
    request = request_of("at the last", FARANDOLE_REDUCE, data, two);
    request.root = size - 1;
    ticket = submitted(&request);
    OK(farandole_wait(ticket, 60.0));
    CHECK(data[0] == (rank == size - 1 ? size * (size - 1) / 2 : rank));
    OK(farandole_ticket_free(ticket));

    request = request_of("all are here", FARANDOLE_BARRIER, NULL, NULL);
    ticket = submitted(&request);
    OK(farandole_ticket_free(ticket)); /* waits */
}

static void named_uneven(void) {
    int32_t *rows = (int32_t *)calloc((size_t)size + 1, sizeof *rows);
    for (int i = 0; i <= size; i++) {
        rows[i] = rank;
    }
    const uint64_t own[1] = {(uint64_t)rank};
    size_t total = (size_t)size * (size_t)(size - 1) / 2, count = 0;
    farandole_request request = request_of("rows", FARANDOLE_ALLGATHER, rows, own);
    farandole_ticket ticket = submitted(&request);
    const int32_t *all = result_of(ticket, total);
    CHECK(total == 0 || all[total - 1] == size - 1);
    uint64_t shape[1] = {0};
    OK(farandole_ticket_shape(ticket, shape, 1, &count));
    CHECK(count == 1 && shape[0] == total);
    OK(farandole_ticket_free(ticket));

    /* Rank r sends one row to each rank up to itself, and none to the others. */
    uint64_t *splits = (uint64_t *)calloc((size_t)size, sizeof *splits);
    for (int r = 0; r <= rank; r++) {
        splits[r] = 1;
    }
    const uint64_t sent[1] = {(uint64_t)rank + 1};
    request = request_of("exchange", FARANDOLE_ALLTOALL, rows, sent);
    request.splits = splits;
    request.split_count = (size_t)size;
    ticket = submitted(&request);
    const int32_t *came = result_of(ticket, (size_t)(size - rank));
    CHECK(came[0] == rank && came[size - rank - 1] == size - 1);
    OK(farandole_ticket_received_splits(ticket, NULL, 0, &count));
    CHECK(count == (size_t)size);
    OK(farandole_ticket_received_splits(ticket, splits, (size_t)size, &count));
    CHECK(splits[rank] == 1 && (rank == 0 || splits[rank - 1] == 0));
    OK(farandole_ticket_free(ticket));

    const uint64_t each[1] = {(uint64_t)size};
    for (int i = 0; i < size; i++) {
        rows[i] = i;
    }
    request = request_of("shares", FARANDOLE_REDUCESCATTER, rows, each);
    ticket = submitted(&request);
    CHECK(result_of(ticket, 1)[0] == size * rank);
    OK(farandole_ticket_free(ticket));
    free(splits);
    free(rows);
}

static void gather_and_scatter(void) {
    int32_t own = rank + 10;
    const uint64_t one[1] = {1};
    farandole_request request = request_of("to the first", FARANDOLE_GATHER, &own, one);
    farandole_ticket ticket = submitted(&request);
    const int32_t *all = result_of(ticket, rank == 0 ? (size_t)size : 0);
    CHECK(rank != 0 || all[size - 1] == size + 9);
    OK(farandole_ticket_free(ticket));

    int32_t *dealt = (int32_t *)calloc((size_t)size, sizeof *dealt);
    for (int i = 0; i < size; i++) {
        dealt[i] = 7 * i;
    }
    const uint64_t rows[1] = {rank == 0 ? (uint64_t)size : 0};
    request = request_of("from the first", FARANDOLE_SCATTER, dealt, rows);
    ticket = submitted(&request);
    CHECK(result_of(ticket, 1)[0] == 7 * rank);
    OK(farandole_ticket_free(ticket));
    free(dealt);
}

static void group_and_messages(void) {
    const uint64_t one[1] = {1};
    int32_t values[2] = {rank, 1};
    farandole_request requests[2];
    requests[0] = request_of("first of two", FARANDOLE_ALLREDUCE, &values[0], one);
    requests[1] = request_of("second of two", FARANDOLE_ALLREDUCE, &values[1], one);
    farandole_ticket tickets[2];
    OK(farandole_submit_group("both", requests, 2, tickets));
    OK(farandole_wait_all(tickets, 2, 60.0));
    CHECK(values[0] == size * (size - 1) / 2 && values[1] == size);
    OK(farandole_ticket_free(tickets[0]));
    OK(farandole_ticket_free(tickets[1]));

    /* Around the ring. */
    int32_t out = rank, in = -1, source = -1;
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    OK(farandole_recv(&in, 1, FARANDOLE_INT32, FARANDOLE_ANY_RANK, 5, FARANDOLE_WORLD, &tickets[0]));
    OK(farandole_send(&out, 1, FARANDOLE_INT32, next, 5, FARANDOLE_WORLD, &tickets[1]));
    OK(farandole_wait_all(tickets, 2, 60.0));
    OK(farandole_ticket_source(tickets[0], &source));
    CHECK(in == before && source == before);
    OK(farandole_ticket_free(tickets[0]));
    OK(farandole_ticket_free(tickets[1]));
}

static void process_sets(void) {
    int32_t set = -1, odd[2] = {size - 1, 0}, ranks[2] = {-1, -1}, ids[8];
    size_t count = 0;
    if (size < 2) {
        return;
    }
    OK(farandole_add_process_set(odd, 2, &set));
    CHECK(set > 0 && farandole_process_set_size(set) == 2);
    int member = rank == 0 || rank == size - 1;
    CHECK(farandole_process_set_included(set) == member);
    CHECK(farandole_process_set_rank(set) == (rank == 0 ? 0 : member ? 1 : -1));
    OK(farandole_process_set_ranks(set, ranks, 2, &count));
    CHECK(count == 2 && ranks[0] == 0 && ranks[1] == size - 1);
    OK(farandole_process_set_ids(ids, 8, &count));
    CHECK(count == 2 && ids[0] == FARANDOLE_WORLD && ids[1] == set);
    const uint64_t one[1] = {1};
    int32_t value = rank;
    farandole_request request = request_of("in the set", FARANDOLE_BROADCAST, &value, one);
    request.process_set = set;
    request.root = size - 1; /* a rank of the world, also here */
    farandole_ticket ticket;
    if (member) {
        ticket = submitted(&request);
        OK(farandole_wait(ticket, 60.0));
        CHECK(value == size - 1);
        OK(farandole_ticket_free(ticket));
    } else {
        REFUSED(farandole_submit(&request, &ticket), FARANDOLE_NOT_A_MEMBER, "not a member of the process set");
    }
    OK(farandole_remove_process_set(set));
    CHECK(farandole_process_set_size(set) == -1);
}

int main(void) {
    CHECK(farandole_abi_version() >= FARANDOLE_ABI_VERSION);
    OK(farandole_init(NULL));
    rank = farandole_rank();
    size = farandole_size();
    OK(farandole_phase_begin("all collectives"));
    direct();
    direct_uneven();
    named_in_place();
    named_uneven();
    gather_and_scatter();
    group_and_messages();
    process_sets();
    farandole_request request = request_of("join", FARANDOLE_JOIN, NULL, NULL);
    farandole_ticket ticket = submitted(&request);
    int32_t last = -1;
    OK(farandole_wait(ticket, 60.0));
    OK(farandole_ticket_last_joined(ticket, &last));
    CHECK(last >= 0 && last < size);
    OK(farandole_ticket_free(ticket));
    OK(farandole_phase_end("all collectives"));
    OK(farandole_shutdown());
    OK(farandole_init(NULL)); /* and once more */
    CHECK(farandole_size() == size);
    OK(farandole_shutdown());
    printf("rank %d of %d: every collective holds\n", rank, size);
    return 0;
}
