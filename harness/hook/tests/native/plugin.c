/* A library that allocates when it is loaded and when it is unloaded. */

#include <stdlib.h>
#include <string.h>

static char *kept;
static __thread char *per_thread;

__attribute__((constructor)) static void loaded(void) {
    kept = malloc(3000);
    memset(kept, 1, 3000);
}

__attribute__((destructor)) static void unloaded(void) {
    free(kept);
    free(strdup("gone"));
}

int plugin_work(void) {
    per_thread = realloc(per_thread, 500);
    per_thread[0] = 1;
    free(per_thread);
    per_thread = NULL;
    return 7;
}
