/*
 * The smallest program: every rank has a number, and all get the average.
 *
 *   cc average.c -I"$INCLUDE" -L"$LIB" -lfarandole -Wl,-rpath,"$LIB" -o average
 *   farandole run -np 4 ./average
 */
#include <farandole.h>
#include <stdio.h>

int main(void) {
    if (farandole_init(NULL) != FARANDOLE_OK) {
        fprintf(stderr, "no job: %s\n", farandole_last_error());
        return 1;
    }
    float loss = (float)farandole_rank();
    if (farandole_allreduce(&loss, 1, FARANDOLE_FLOAT32, FARANDOLE_AVERAGE) != FARANDOLE_OK) {
        fprintf(stderr, "no average: %s\n", farandole_last_error());
        return 1;
    }
    printf("rank %d of %d: the average is %.2f\n", (int)farandole_rank(), (int)farandole_size(), (double)loss);
    farandole_shutdown();
    return 0;
}
