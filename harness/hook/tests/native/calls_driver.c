/* Loads the library that is named, and has it call back on a thread of its own. */
#include <dlfcn.h>
#include <stdlib.h>

static void *volatile kept;

static void host(void) { kept = malloc(777); }

int main(int count, char **words) {
  void *library = count == 2 ? dlopen(words[1], RTLD_NOW) : NULL;
  void (*work)(void (*)(void)) =
      library ? (void (*)(void (*)(void)))dlsym(library, "work_on_a_thread") : NULL;
  if (!work) return 1;
  work(host);
  return 0;
}
