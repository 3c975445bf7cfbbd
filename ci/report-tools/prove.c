// A stand-in for a prover: prove ROUNDS LOSES [MIB]. In each round it holds MIB (8 unless
// given) for a while, and loses a block of 96 bytes if LOSES is 1. It crashes if ROUNDS is 0.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *kept[1000];

__attribute__((noinline)) static void finish(int round, int loses) {
    char *result = malloc(96); // leaks here
    memset(result, round, 96);
    if (loses) {
        kept[round % 1000] = result;
    } else {
        free(result);
    }
}

__attribute__((noinline)) static void synthesise(size_t mib) {
    char *vectors = malloc(mib << 20);
    memset(vectors, 1, mib << 20);
    usleep(20000);
    free(vectors);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 1;
    int loses = count > 2 && atoi(arguments[2]);
    size_t mib = count > 3 ? (size_t)atoi(arguments[3]) : 8;
    if (rounds == 0) {
        abort();
    }
    for (int round = 1; round <= rounds; ++round) {
        synthesise(mib);
        finish(round, loses);
        printf("round %d\n", round);
        fflush(stdout);
        usleep(20000);
    }
    return kept[0] != NULL;
}
