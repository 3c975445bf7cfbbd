// A stand-in for a prover: prove ROUNDS LOSES [MIB]. In each round it holds MIB (8 unless
// given) in phase synthesis and half of it in msm, and loses a block of 96 bytes of phase
// finish if LOSES is 1. It crashes if ROUNDS is 0.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tidegate.h"

static void *kept[1000];

static void *filled(size_t bytes) {
    char *block = malloc(bytes);
    memset(block, 1, bytes);
    usleep(20000);
    return block;
}

static void finish(int round, int loses) {
    char *result = malloc(96); // leaks here
    memset(result, round, 96);
    if (loses) {
        kept[round % 1000] = result;
    } else {
        free(result);
    }
}

static void prove(int round, int loses, size_t mib) {
    uint64_t before = tidegate_enter("synthesis");
    void *vectors = filled(mib << 20);
    tidegate_enter("msm");
    void *buckets = filled(mib << 19);
    free(vectors);
    usleep(20000);
    free(buckets);
    tidegate_enter("finish");
    finish(round, loses);
    tidegate_return(before);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 1;
    int loses = count > 2 && atoi(arguments[2]);
    size_t mib = count > 3 ? (size_t)atoi(arguments[3]) : 8;
    if (rounds == 0) {
        abort();
    }
    for (int round = 1; round <= rounds; ++round) {
        prove(round, loses, mib);
        printf("round %d\n", round);
        fflush(stdout);
        usleep(20000);
    }
    return kept[0] != NULL;
}
