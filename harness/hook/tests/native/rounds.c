/* Says where it is, and leaves 10 bytes in each item of each round. */

#include "tidegate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *volatile kept;

static void *on_another_thread(void *place) {
    tidegate_return(*(uint64_t *)place);
    kept = malloc(33);
    return NULL;
}

int main(void) {
    for (uint32_t round = 1; round <= 3; ++round) {
        tidegate_round(round);
        for (uint32_t item = 0; item < 4; ++item) {
            uint64_t before = tidegate_enter_item("work", item);
            kept = malloc(10);
            free(kept = malloc(1000));
            uint64_t work = tidegate_enter("inner");
            kept = malloc(7);
            tidegate_return(work);
            pthread_t thread;
            pthread_create(&thread, NULL, on_another_thread, &work);
            pthread_join(thread, NULL);
            tidegate_return(before);
            tidegate_produced(1);
        }
        tidegate_consumed(3);
    }
    printf("done\n");
    return 0;
}
