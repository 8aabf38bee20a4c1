// A libcuda.so.1 that answers what the CUDA runtime asks of it before it looks for devices, so that
// discovery's answers can be tested on any machine: FAKE_DRIVER_VERSION is the version, FAKE_DRIVER_STATUS
// what every other call returns.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

static int number(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : 0;
}
static int answer(void) {
  return number("FAKE_DRIVER_STATUS");
}

int cuInit(unsigned flags) {
  (void)flags;
  return answer();
}
int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION");
  return 0;
}
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* found) {
  (void)version;
  (void)flags;
  void* self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  *function = self ? dlsym(self, name) : NULL;
  if (*function == NULL) *function = (void*)answer;
  if (found) *found = 0;
  return 0;
}
int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
int cuGetExportTable(const void** table, const void* id) {
  (void)id;
  *table = NULL;
  return answer();
}
