// Loaded before a program (LD_PRELOAD). Stops rank STOP_RANK, once, when it opens a file whose path holds
// STOP_AT, if the file STOP_ONCE is there (or is not given).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int stopped = 0;
static void look(const char* path) {
  const char* rank = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");
  const char *who = getenv("STOP_RANK"), *at = getenv("STOP_AT"), *once = getenv("STOP_ONCE");
  if (!rank || !who || strcmp(rank, who) != 0 || !strstr(path, at)) return;
  if (!stopped && (*once == 0 || access(once, F_OK) == 0)) {
    stopped = 1;
    kill(getpid(), SIGSTOP);
  }
}
#define OPEN(NAME)                                                                       \
  int NAME(const char* path, int flags, ...) {                                           \
    va_list more;                                                                        \
    va_start(more, flags);                                                               \
    const int mode = va_arg(more, int);                                                  \
    va_end(more);                                                                        \
    look(path);                                                                          \
    return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #NAME))(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
#define FOPEN(NAME)                                                                      \
  FILE* NAME(const char* path, const char* mode) {                                       \
    look(path);                                                                          \
    return ((FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, #NAME))(path, mode); \
  }
FOPEN(fopen)
FOPEN(fopen64)
