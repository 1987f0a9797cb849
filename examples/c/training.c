/*
 * Trains a line through points that are spread over all ranks, with named requests: the gradient of each parameter is
 * submitted as soon as it is computed and averaged in the background while the next one is being computed.
 *
 *   farandole run -np 4 ./training
 */
#include <farandole.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 256, STEPS = 200, PARAMETERS = 2 };

static void check(farandole_status status, const char *doing) {
    if (status != FARANDOLE_OK) {
        fprintf(stderr, "rank %d, %s: %s\n", (int)farandole_rank(), doing, farandole_last_error());
        exit(1);
    }
}

/* Submits the gradient of a parameter, to be averaged in place. */
static farandole_ticket submit_gradient(const char *name, double *gradient) {
    farandole_request request = FARANDOLE_REQUEST_INIT;
    farandole_ticket ticket = FARANDOLE_NO_TICKET;
    request.name = name;
    request.data = gradient;
    request.dtype = FARANDOLE_FLOAT64;
    request.collective = FARANDOLE_ALLREDUCE;
    request.op = FARANDOLE_AVERAGE;
    check(farandole_submit(&request, &ticket), name);
    return ticket;
}

int main(void) {
    check(farandole_init(NULL), "joining the job");

    /* Each rank has points of its own on the line y = 2 x - 1. */
    double x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = (double)(i * farandole_size() + farandole_rank()) / (POINTS * farandole_size());
        y[i] = 2.0 * x[i] - 1.0;
    }

    /* All start from the parameters of rank 0. */
    double parameters[PARAMETERS] = {(double)farandole_rank(), (double)farandole_rank()};
    check(farandole_broadcast(parameters, PARAMETERS, FARANDOLE_FLOAT64, 0), "starting from the same point");

    double loss = 0.0;
    for (int step = 0; step < STEPS; step++) {
        farandole_mark_iteration((uint64_t)step);
        double slope = 0.0, offset = 0.0;
        loss = 0.0;
        farandole_phase_begin("backward");
        for (int i = 0; i < POINTS; i++) {
            double error = parameters[0] * x[i] + parameters[1] - y[i];
            offset += 2.0 * error / POINTS;
            loss += error * error / POINTS;
        }
        farandole_ticket tickets[PARAMETERS];
        tickets[0] = submit_gradient("offset", &offset);
        for (int i = 0; i < POINTS; i++) { /* meanwhile the other one is under way */
            double error = parameters[0] * x[i] + parameters[1] - y[i];
            slope += 2.0 * error * x[i] / POINTS;
        }
        tickets[1] = submit_gradient("slope", &slope);
        farandole_phase_end("backward");

        check(farandole_wait_all(tickets, PARAMETERS, -1.0), "waiting for the gradients");
        for (int i = 0; i < PARAMETERS; i++) {
            check(farandole_ticket_free(tickets[i]), "freeing a ticket");
        }
        parameters[0] -= 0.5 * slope;
        parameters[1] -= 0.5 * offset;
    }

    check(farandole_allreduce(&loss, 1, FARANDOLE_FLOAT64, FARANDOLE_AVERAGE), "averaging the loss");
    if (farandole_rank() == 0) {
        printf("y = %.2f x %+.2f, loss %.6f\n", parameters[0], parameters[1], loss);
    }
    check(farandole_shutdown(), "leaving the job");
    return fabs(parameters[0] - 2.0) < 0.1 && fabs(parameters[1] + 1.0) < 0.1 ? 0 : 1;
}
