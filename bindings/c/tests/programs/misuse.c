/* Wrong use is answered with a status and a text, and the job goes on. Runs on two ranks. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static void before_the_beginning(void) {
    int32_t value = 0;
    CHECK(farandole_is_initialized() == 0 && farandole_rank() == -1);
    REFUSED(farandole_barrier(), FARANDOLE_NOT_INITIALIZED, "farandole_init");
    REFUSED(farandole_allreduce(&value, 1, FARANDOLE_INT32, FARANDOLE_SUM), FARANDOLE_NOT_INITIALIZED, "no rank");
    OK(farandole_shutdown());
    OK(farandole_phase_begin("before")); /* nobody to tell */
    farandole_options options = FARANDOLE_OPTIONS_INIT;
    options.size = 3;
    REFUSED(farandole_init(&options), FARANDOLE_INVALID_ARGUMENT, "size of farandole_options is 3");
}

static void wrong_arguments(void) {
    int32_t values[2] = {1, 2};
    const uint64_t one[1] = {1}, huge[2] = {UINT64_MAX, UINT64_MAX};
    farandole_ticket ticket = 77;
    farandole_request request = FARANDOLE_REQUEST_INIT;
    REFUSED(farandole_allreduce(NULL, 1, FARANDOLE_INT32, FARANDOLE_SUM), FARANDOLE_INVALID_ARGUMENT, "data is a null");
    REFUSED(farandole_allreduce(values, 1, 13, FARANDOLE_SUM), FARANDOLE_INVALID_ARGUMENT, "element type");
    REFUSED(farandole_allreduce(values, 1, FARANDOLE_INT32, -1), FARANDOLE_INVALID_ARGUMENT, "reduction");
    REFUSED(farandole_allreduce(values, SIZE_MAX, FARANDOLE_INT32, FARANDOLE_SUM), FARANDOLE_INVALID_ARGUMENT, "memory");
    REFUSED(farandole_broadcast(values, 1, FARANDOLE_INT32, 2), FARANDOLE_INVALID_ARGUMENT, "no rank 2");
    REFUSED(farandole_allgather(values, 1, FARANDOLE_INT32, values), FARANDOLE_INVALID_ARGUMENT, "overlap");
    REFUSED(farandole_submit(NULL, &ticket), FARANDOLE_INVALID_ARGUMENT, "farandole_request is a null");
    REFUSED(farandole_submit(&request, NULL), FARANDOLE_INVALID_ARGUMENT, "ticket is a null");
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_INVALID_ARGUMENT, "name is a null");
    request.name = "";
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_INVALID_ARGUMENT, "name is empty");
    request.name = "\xff";
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_INVALID_ARGUMENT, "not UTF-8");
    request.name = "x";
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_INVALID_ARGUMENT, "data is a null");
    request.data = values;
    request.shape = huge;
    request.dimensions = 2;
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_INVALID_ARGUMENT, "more than there is memory");
    request.shape = one;
    request.dimensions = 1;
    request.collective = 12;
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_INVALID_ARGUMENT, "collective");
    request.collective = FARANDOLE_ALLREDUCE;
    request.process_set = 9;
    REFUSED(farandole_submit(&request, &ticket), FARANDOLE_UNKNOWN_PROCESS_SET, "no process set 9");
    CHECK(ticket == 77); /* never written */
    CHECK(strcmp(farandole_status_string(FARANDOLE_UNKNOWN_PROCESS_SET), "there is no such process set") == 0);
    CHECK(strcmp(farandole_status_string(-1), "unknown status") == 0);
}

static void wrong_tickets(void) {
    int32_t value = farandole_rank(), other = 0;
    farandole_request request = FARANDOLE_REQUEST_INIT;
    farandole_ticket ticket, same;
    const void *data;
    size_t bytes;
    int done = -1;
    request.name = "slow";
    request.data = &value;
    request.dtype = FARANDOLE_INT32;
    if (farandole_rank() == 0) {
        OK(farandole_submit(&request, &ticket));
        OK(farandole_test(ticket, &done));
        CHECK(done == 0);
        REFUSED(farandole_wait(ticket, 0.05), FARANDOLE_TIMED_OUT, "\"slow\" is not done");
        REFUSED(farandole_ticket_result(ticket, &data, &bytes), FARANDOLE_NOT_DONE, "still under way");
        CHECK(farandole_ticket_error(ticket)[0] == '\0');
        request.data = &other;
        REFUSED(farandole_submit(&request, &same), FARANDOLE_DUPLICATE_NAME, "\"slow\" is still under way");
        request.data = &value;
        OK(farandole_barrier());
    } else {
        OK(farandole_barrier());
        OK(farandole_submit(&request, &ticket));
    }
    OK(farandole_wait(ticket, 60.0));
    OK(farandole_wait(ticket, 60.0)); /* the same answer */
    REFUSED(farandole_ticket_result(ticket, NULL, &bytes), FARANDOLE_INVALID_ARGUMENT, "data is a null");
    OK(farandole_ticket_free(ticket));
    REFUSED(farandole_ticket_free(ticket), FARANDOLE_UNKNOWN_TICKET, "it was freed");
    REFUSED(farandole_wait(ticket, 1.0), FARANDOLE_UNKNOWN_TICKET, "no ticket");
    REFUSED(farandole_wait(FARANDOLE_NO_TICKET, 1.0), FARANDOLE_UNKNOWN_TICKET, "no ticket");
    OK(farandole_ticket_free(FARANDOLE_NO_TICKET));
}

/* The ranks ask for different things under one name. */
static void disagreement(void) {
    int64_t values[2] = {0, 0};
    const uint64_t shape[1] = {(uint64_t)farandole_rank() + 1};
    farandole_request request = FARANDOLE_REQUEST_INIT;
    farandole_ticket ticket;
    request.name = "unequal";
    request.data = values;
    request.shape = shape;
    request.dimensions = 1;
    request.dtype = FARANDOLE_INT64;
    OK(farandole_submit(&request, &ticket));
    REFUSED(farandole_wait(ticket, 60.0), FARANDOLE_REFUSED, "\"unequal\"");
    CHECK(strcmp(farandole_ticket_error(ticket), farandole_last_error()) == 0);
    OK(farandole_ticket_free(ticket));
}

static void forked_child(void) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int32_t value = 0;
        CHECK(farandole_rank() >= 0 && farandole_size() == 2);
        REFUSED(farandole_allreduce(&value, 1, FARANDOLE_INT32, FARANDOLE_SUM), FARANDOLE_FORKED, "forked");
        REFUSED(farandole_init(NULL), FARANDOLE_FORKED, "forked");
        REFUSED(farandole_wait(1, 1.0), FARANDOLE_FORKED, "forked");
        OK(farandole_shutdown()); /* says no goodbye in its parent's name */
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    before_the_beginning();
    OK(farandole_init(NULL));
    OK(farandole_init(NULL)); /* does nothing */
    CHECK(farandole_size() == 2);
    wrong_arguments();
    wrong_tickets();
    disagreement();
    forked_child();

    /* After all this the job works, and a request that nobody answers ends with the job. */
    float value = 1.0f;
    farandole_request request = FARANDOLE_REQUEST_INIT;
    farandole_ticket ticket = FARANDOLE_NO_TICKET;
    OK(farandole_allreduce(&value, 1, FARANDOLE_FLOAT32, FARANDOLE_SUM));
    CHECK(value == 2.0f);
    request.name = "never";
    request.data = &value;
    if (farandole_rank() == 0) {
        OK(farandole_submit(&request, &ticket));
    }
    OK(farandole_barrier());
    OK(farandole_shutdown());
    if (ticket != FARANDOLE_NO_TICKET) {
        REFUSED(farandole_wait(ticket, 60.0), FARANDOLE_SHUT_DOWN, "the job"); /* whichever rank left first */
    }
    OK(farandole_ticket_free(ticket));
    REFUSED(farandole_barrier(), FARANDOLE_NOT_INITIALIZED, "farandole_init");
    printf("every misuse was answered\n");
    return 0;
}
