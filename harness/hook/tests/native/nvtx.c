/* A program that marks ranges, with what NVTX 3's headers put into every such program:
   the loading of the library that the environment names, and the function tables.
   Loses one block in each range. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef const void *function;

static function range_push_a, range_push_ex, range_pop;
static function domain_push_ex, domain_pop, register_string_a;
static function *core[17] = {[8] = &range_push_ex, [9] = &range_push_a, [11] = &range_pop};
static function *core2[17] = {[4] = &domain_push_ex, [5] = &domain_pop, [10] = &register_string_a};

static int module_table(int module, function ***table, unsigned *size) {
  *table = module == 1 ? core : module == 5 ? core2 : NULL;
  *size = 16;
  return *table != NULL;
}

static struct {
  size_t struct_size;
  int (*module_table)(int, function ***, unsigned *);
} callbacks = {sizeof callbacks, module_table};

static const void *export_table(uint32_t id) { return id == 1 ? &callbacks : NULL; }

/* nvtxEventAttributes_t */
struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void *message;
};

static void lose(size_t bytes) {
  volatile char *block = malloc(bytes);
  *block = 1;
}

int main(void) {
  void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
  int (*initialize)(const void *(*)(uint32_t)) =
      (int (*)(const void *(*)(uint32_t)))dlsym(library, "InitializeInjectionNvtx2");
  if (!initialize || initialize(export_table) != 1) return 1;
  int (*push)(const char *) = (int (*)(const char *))range_push_a;
  int (*push_ex)(const struct attributes *) = (int (*)(const struct attributes *))range_push_ex;
  int (*pop)(void) = (int (*)(void))range_pop;
  int (*in_domain)(void *, const struct attributes *) =
      (int (*)(void *, const struct attributes *))domain_push_ex;
  int (*out_of_domain)(void *) = (int (*)(void *))domain_pop;
  const void *(*registered)(void *, const char *) =
      (const void *(*)(void *, const char *))register_string_a;

  int levels = push("outer");
  lose(101);
  struct attributes ascii = {.version = 3, .size = sizeof ascii, .message_type = 1,
                             .message = "ascii"};
  levels = levels * 10 + push_ex(&ascii);
  lose(102);
  struct attributes known = {.version = 3, .size = sizeof known, .message_type = 3,
                             .message = registered(NULL, "registered")};
  levels = levels * 10 + in_domain(NULL, &known);
  lose(103);
  struct attributes wide = {.version = 3, .size = sizeof wide, .message_type = 2, .message = L"w"};
  levels = levels * 10 + push_ex(&wide);
  lose(104);
  levels = levels * 10 + pop();
  levels = levels * 10 + out_of_domain(NULL);
  lose(105);
  pop();
  pop();
  lose(106);
  if (pop() != -2) return 2;
  /* Deeper than is kept, and back. */
  for (int i = 0; i < 100; i++) push("deep");
  for (int i = 0; i < 100; i++) pop();
  lose(107);
  printf("%06d %d\n", levels, registered(NULL, "registered") == known.message);
  return 0;
}
