// Loaded before a program (LD_PRELOAD): calls on files below one folder are counted, and one of them fails,
// or the process is killed or stopped in it. Environment:
//   FAULT_UNDER  text that the path of such a file contains
//   FAULT_AFTER  a file: calls count from when it is there; unset: always
//   FAULT_RANK   only in the process of this rank; unset: in all
//   FAULT_NO_SWAP  set: two folders cannot be swapped, as on NFS
//   FAULT_NO_FOLDER_SYNC  set: folders cannot be synced, as on some network file systems
//   FAULT_LOG    a file that gets a line for each call that is counted: "rank operation path"
//   FAULT        "OPERATION:N:ACTION": at the N-th call (from 1), or with "N+" at it and all later ones.
//                OPERATION: write, fsync, rename, mkdir, create (of a file), remove (of something in a
//                folder, or a rename to .NAME.old, which comes first), any of these, close (of a file that
//                was written) or read. ACTION: ENOSPC, EIO or EACCES; SLOW: the call takes FAULT_SECONDS
//                (default 0.01) longer; HANG: it never returns; KILL, STOP, TERM or USR1: the process gets
//                that signal. A disk that is full from then on ("N+") first takes a part of the N-th write.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counted = 0;

static const char* rank_text(void) {
  const char* rank = getenv("PMI_RANK");
  if (!rank) rank = getenv("OMPI_COMM_WORLD_RANK");
  return rank ? rank : "0";
}

static void note(const char* operation, const char* path) {
  const char* log = getenv("FAULT_LOG");
  if (!log) return;
  char line[PATH_MAX + 64];
  const int length = snprintf(line, sizeof line, "%s %s %s\n", rank_text(), operation, path);
  const int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return;
  syscall(SYS_write, file, line, (size_t)length);
  syscall(SYS_close, file);
}

// 0: the call goes on; otherwise the errno with which it fails. `number` is then the call's, less N.
static int fault_of(const char* operation, const char* path, long* number) {
  const char *under = getenv("FAULT_UNDER"), *spec = getenv("FAULT"), *rank = getenv("FAULT_RANK");
  if (!under || !strstr(path, under) || (rank && strcmp(rank, rank_text()) != 0)) return 0;
  const char* after = getenv("FAULT_AFTER");
  if (after && access(after, F_OK) != 0) return 0;
  char of[16] = "any", action[16] = "", plus = 0;
  long at = 0;
  if (spec && sscanf(spec, "%15[a-z]:%ld+:%15s", of, &at, action) == 3)
    plus = 1;
  else if (spec && sscanf(spec, "%15[a-z]:%ld:%15s", of, &at, action) != 3)
    abort();
  const int changes = strcmp(operation, "close") != 0 && strcmp(operation, "read") != 0;
  if (!(strcmp(of, "any") == 0 && changes) && strcmp(of, operation) != 0) return 0;
  pthread_mutex_lock(&lock);
  *number = ++counted - at;
  note(operation, path);
  pthread_mutex_unlock(&lock);
  if (!spec || !(*number == 0 || (plus && *number > 0))) return 0;
  if (strcmp(action, "ENOSPC") == 0) return ENOSPC;
  if (strcmp(action, "EIO") == 0) return EIO;
  if (strcmp(action, "EACCES") == 0) return EACCES;
  const char* seconds = getenv("FAULT_SECONDS");
  if (strcmp(action, "SLOW") == 0) usleep((unsigned)(1e6 * (seconds ? atof(seconds) : 0.01)));
  while (strcmp(action, "HANG") == 0) pause();
  if (strcmp(action, "KILL") == 0) kill(getpid(), SIGKILL);
  if (strcmp(action, "STOP") == 0) kill(getpid(), SIGSTOP);
  if (strcmp(action, "TERM") == 0) kill(getpid(), SIGTERM);
  if (strcmp(action, "USR1") == 0) kill(getpid(), SIGUSR1);
  return 0;
}

static int fault(const char* operation, const char* path) {
  long number = 0;
  return fault_of(operation, path, &number);
}

static const char* path_of(int file, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = 0;
  return path;
}

ssize_t write(int file, const void* bytes, size_t size) {
  char path[PATH_MAX];
  long number = 1;
  const int saved = errno, error = fault_of("write", path_of(file, path), &number);
  errno = saved;
  if (error == ENOSPC && number == 0 && size > 1) return syscall(SYS_write, file, bytes, size / 2);
  if (error == 0) return syscall(SYS_write, file, bytes, size);
  errno = error;
  return -1;
}

static int cannot_be_synced(int file) {
  struct stat info;
  return getenv("FAULT_NO_FOLDER_SYNC") && fstat(file, &info) == 0 && S_ISDIR(info.st_mode);
}

int fsync(int file) {
  char path[PATH_MAX];
  const int saved = errno, error = cannot_be_synced(file) ? EINVAL : fault("fsync", path_of(file, path));
  errno = error ? error : saved;
  return error ? -1 : (int)syscall(SYS_fsync, file);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) {
  const size_t length = strlen(to);
  const int removes = length > 4 && strcmp(to + length - 4, ".old") == 0;
  const int saved = errno,
            error = flags != 0 && getenv("FAULT_NO_SWAP") ? EINVAL : fault(removes ? "remove" : "rename", to);
  errno = error ? error : saved;
  return error ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int rename(const char* from, const char* to) {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char* name, int flags) {
  char path[PATH_MAX] = "", whole[2 * PATH_MAX];
  if (folder != AT_FDCWD && name[0] != '/') path_of(folder, path);
  snprintf(whole, sizeof whole, "%s/%s", path, name);
  const int saved = errno, error = fault("remove", whole);
  errno = error ? error : saved;
  return error ? -1 : (int)syscall(SYS_unlinkat, folder, name, flags);
}

int mkdir(const char* path, mode_t mode) {
  const int saved = errno, error = fault("mkdir", path);
  errno = error ? error : saved;
  return error ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

#define OPEN(NAME)                                                                \
  int NAME(const char* path, int flags, ...) {                                    \
    va_list more;                                                                 \
    va_start(more, flags);                                                        \
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;       \
    va_end(more);                                                                 \
    const int saved = errno, error = flags & O_CREAT ? fault("create", path) : 0; \
    errno = error ? error : saved;                                                \
    return error ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);    \
  }
OPEN(open)
OPEN(open64)

int close(int file) {
  char path[PATH_MAX];
  const int flags = fcntl(file, F_GETFL), saved = errno;
  const int error = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY ? fault("close", path_of(file, path)) : 0;
  errno = saved;
  const int result = (int)syscall(SYS_close, file);
  if (error) errno = error;
  return error ? -1 : result;
}

#define READ(NAME, NUMBER, PARAMETERS, ...)                                \
  ssize_t NAME PARAMETERS {                                                \
    char path[PATH_MAX];                                                   \
    const int saved = errno, error = fault("read", path_of(file, path));   \
    errno = error ? error : saved;                                         \
    return error ? -1 : syscall(NUMBER, file, bytes, size, ##__VA_ARGS__); \
  }
READ(read, SYS_read, (int file, void* bytes, size_t size))
READ(pread, SYS_pread64, (int file, void* bytes, size_t size, off_t at), at)
READ(pread64, SYS_pread64, (int file, void* bytes, size_t size, off_t at), at)
