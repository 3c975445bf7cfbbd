/* A thread that a library starts for itself, and on which it calls a function of the
   application's. Under the name of NVIDIA's driver it stands in for that. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef void (*host_function)(void);

static void *volatile kept[2];

static void *work(void *function) {
  kept[0] = malloc(96);
  kept[1] = strdup("by the C library on its behalf");
  void *volatile given_back = malloc(1000);
  free(given_back);
  ((host_function)function)();
  return NULL;
}

void work_on_a_thread(host_function function) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, (void *)function) != 0) abort();
  pthread_join(thread, NULL);
}
