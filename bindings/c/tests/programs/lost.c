/* Rank 1 is killed while the others wait for it. They are told who is gone. */
#include "check.h"

#include <signal.h>

int main(void) {
    float value = 1.0f;
    farandole_request request = FARANDOLE_REQUEST_INIT;
    farandole_ticket ticket;
    OK(farandole_init(NULL));
    farandole_status status = farandole_barrier();
    if (farandole_rank() == 1) {
        raise(SIGKILL);
    }
    request.name = "gradient";
    request.data = &value;
    /* The end of rank 1 may be known before the barrier returns, or before the request is submitted. */
    if (status == FARANDOLE_OK) {
        status = farandole_submit(&request, &ticket);
    }
    if (status == FARANDOLE_OK) {
        status = farandole_wait(ticket, 60.0);
    }
    printf("status %d: %s\n", (int)status, farandole_last_error());
    fflush(stdout);
    return status == FARANDOLE_FAILED ? 0 : 1;
}
