/* What a C or C++ program can tell Tidegate of itself.
 *
 * Nothing needs to be linked: the functions are weak, and are there when
 * libtidegate_hook.so is preloaded or the hook is linked in. Without it, and
 * without a ledger, each of these costs a test and does nothing.
 *
 *     for (uint32_t round = 1; round <= 10; ++round) {
 *         tidegate_round(round);
 *         for (uint32_t i = 0; i < partitions; ++i) {
 *             uint64_t before = tidegate_enter_item("synthesis", i);
 *             synthesize(i);
 *             tidegate_return(before);
 *         }
 *     }
 */
#ifndef TIDEGATE_H
#define TIDEGATE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TIDEGATE_NO_ITEM UINT32_MAX

__attribute__((weak)) void tidegate_begin_round(uint32_t round);
__attribute__((weak)) uint64_t tidegate_enter_place(const char *phase, uint32_t item);
__attribute__((weak)) void tidegate_return_to(uint64_t place);
__attribute__((weak)) void tidegate_count_produced(uint64_t items);
__attribute__((weak)) void tidegate_count_consumed(uint64_t items);

/* Blocks that are born from now on belong to this round. Rounds count from 1. */
static inline void tidegate_round(uint32_t round) {
    if (tidegate_begin_round) tidegate_begin_round(round);
}

/* Puts the calling thread into a phase; NULL leaves it in the one that it is in.
 * Returns where it was, for tidegate_return. */
static inline uint64_t tidegate_enter(const char *phase) {
    return tidegate_enter_place ? tidegate_enter_place(phase, TIDEGATE_NO_ITEM) : 0;
}

/* The same, with the number of the item (the partition) that is worked on. */
static inline uint64_t tidegate_enter_item(const char *phase, uint32_t item) {
    return tidegate_enter_place ? tidegate_enter_place(phase, item) : 0;
}

/* Puts the calling thread where it was, or where another thread is or was. */
static inline void tidegate_return(uint64_t place) {
    if (tidegate_return_to) tidegate_return_to(place);
}

/* A producer has finished so many items, a consumer has taken over so many. */
static inline void tidegate_produced(uint64_t items) {
    if (tidegate_count_produced) tidegate_count_produced(items);
}
static inline void tidegate_consumed(uint64_t items) {
    if (tidegate_count_consumed) tidegate_count_consumed(items);
}

#ifdef __cplusplus
}
#endif
#endif
