/*
 * A job that is ended from within: by a thread that shuts down while another one is in a direct collective, and by a
 * rank that aborts. Nobody hangs, and everybody is told why. Runs on two ranks; each job is one of its own.
 */
#include "check.h"

#include <pthread.h>
#include <time.h>

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Waits in a direct collective that rank 1 never comes to. */
static void *in_barrier(void *told) {
    farandole_status status = farandole_barrier();
    CHECK(status == FARANDOLE_FAILED);
    CHECK(strstr(farandole_last_error(), "was shut down while one of its threads was in a direct collective") != NULL);
    *(int *)told = 1;
    return NULL;
}

static void shut_down_beside_a_direct_call(void) {
    OK(farandole_init(NULL));
    if (farandole_rank() == 0) {
        pthread_t thread;
        int told = 0;
        CHECK(pthread_create(&thread, NULL, in_barrier, &told) == 0);
        sleep_ms(100);
        OK(farandole_shutdown());
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(told == 1);
    } else {
        float value = 0.0f;
        farandole_request request = FARANDOLE_REQUEST_INIT;
        farandole_ticket ticket;
        request.name = "nobody answers";
        request.data = &value;
        OK(farandole_submit(&request, &ticket));
        REFUSED(farandole_wait(ticket, 60.0), FARANDOLE_FAILED, "rank 0");
        OK(farandole_ticket_free(ticket));
        OK(farandole_shutdown());
    }
}

static void abort_the_job(void) {
    OK(farandole_init(NULL));
    /* Rank 1 may have left this barrier and ended everything before rank 0 has left it. */
    farandole_status entered = farandole_barrier();
    if (entered != FARANDOLE_OK) {
        CHECK(farandole_rank() == 0);
        REFUSED(entered, FARANDOLE_FAILED, "the data of rank 1 is spoiled");
    }
    if (farandole_rank() == 1) {
        OK(farandole_abort("the data of rank 1 is spoiled"));
    }
    REFUSED(farandole_barrier(), FARANDOLE_FAILED, "the data of rank 1 is spoiled");
    float value = 0.0f;
    farandole_request request = FARANDOLE_REQUEST_INIT;
    farandole_ticket ticket = FARANDOLE_NO_TICKET;
    request.name = "gradient";
    request.data = &value;
    farandole_status status = farandole_submit(&request, &ticket);
    REFUSED(status == FARANDOLE_OK ? farandole_wait(ticket, 60.0) : status, FARANDOLE_FAILED, "is spoiled");
    OK(farandole_ticket_free(ticket));
    OK(farandole_shutdown());
}

int main(int count, char **words) {
    CHECK(count == 2);
    if (strcmp(words[1], "abort") == 0) {
        abort_the_job();
    } else {
        shut_down_beside_a_direct_call();
    }
    printf("everybody was told\n");
    return 0;
}
