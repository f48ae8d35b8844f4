/* Record every call that changes files under RECORD_ROOT, in order, to RECORD_LOG. Loaded with LD_PRELOAD.
 *
 * A record is: kind (1 byte), inode (8), offset (8), lengths of path, second path and data (4 each), then the three.
 * Each call runs under a lock that all processes of the workload share, so that the log has the order of the disk.
 *
 * RECORD_FAULT=KIND:N:M makes the N-th call and the M-1 after it fail, counted over all processes in RECORD_LOG.count:
 *   sync   a sync of a file fails (EIO) and drops what it should have written; recorded as f
 *   folder a sync of a folder fails (EIO); its names stay unsynced
 *   eio    a write fails (EIO)
 *   full   a write or a new name fails (ENOSPC)
 *   short  a write writes half of its bytes
 *   slow   a sync takes a while, in which other threads go on; recorded as B (b for a folder) where it begins
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLOW_US 3000

static char root[PATH_MAX];
static size_t root_length;
static int log_fd = -1, lock_pid;
static char log_name[PATH_MAX], count_name[PATH_MAX + 8], fault[16];
static long fault_at, fault_length;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void after_fork(void) { pthread_mutex_init(&mutex, NULL); log_fd = -1; }

/* Called by a process that was started before it knew what to record. */
__attribute__((constructor)) void record_begin(void) {
  const char *where = getenv("RECORD_ROOT"), *log = getenv("RECORD_LOG"), *wanted = getenv("RECORD_FAULT");
  if (where == NULL || log == NULL) return;
  root_length = strlen(strncpy(root, where, sizeof root - 1));
  strncpy(log_name, log, sizeof log_name - 1);
  snprintf(count_name, sizeof count_name, "%s.count", log_name);
  if (wanted == NULL || sscanf(wanted, "%15[a-z]:%ld:%ld", fault, &fault_at, &fault_length) != 3) fault[0] = 0;
  pthread_atfork(NULL, NULL, after_fork);
}

static void enter(void) {
  pthread_mutex_lock(&mutex);
  if (log_fd < 0 || lock_pid != getpid()) { /* a lock of one's own per process: forked ones share descriptions */
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log_name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    lock_pid = getpid();
  }
  flock(log_fd, LOCK_EX);
}

static void leave(void) {
  int kept = errno;
  flock(log_fd, LOCK_UN);
  pthread_mutex_unlock(&mutex);
  errno = kept;
}

static int inside(const char *path) {
  return root_length && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static void put(char kind, uint64_t inode, uint64_t offset, const char *path, const char *second, const void *data, size_t size) {
  int kept = errno;
  uint32_t lengths[3] = {path ? (uint32_t)strlen(path) : 0, second ? (uint32_t)strlen(second) : 0, (uint32_t)size};
  struct iovec parts[7] = {{&kind, 1}, {&inode, 8}, {&offset, 8}, {lengths, 12}, {(void *)path, lengths[0]},
                           {(void *)second, lengths[1]}, {(void *)data, size}};
  if (syscall(SYS_writev, log_fd, parts, 7) < 0) abort();
  errno = kept;
}

/* Whether a call is to fail; those of another kind are not counted. */
static int fails(const char *kind, const char *path) {
  size_t size = strlen(path), tail = strlen("/.acknowledged");
  if (strcmp(fault, kind) || (size > tail && !strcmp(path + size - tail, "/.acknowledged"))) return 0;
  long count = 0;
  int kept = errno, fd = (int)syscall(SYS_openat, AT_FDCWD, count_name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) abort();
  if (syscall(SYS_pread64, fd, &count, sizeof count, 0) < 0) abort();
  count++;
  if (syscall(SYS_pwrite64, fd, &count, sizeof count, 0) < 0) abort();
  syscall(SYS_close, fd);
  errno = kept;
  return count >= fault_at && count < fault_at + fault_length;
}

static int path_of(int fd, char *path) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(name, path, PATH_MAX - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return inside(path);
}

/* The absolute name: the folder resolved, the last part as it is. */
static int resolve(int folder, const char *name, char *path) {
  char whole[PATH_MAX * 2], parent[PATH_MAX];
  if (name[0] == '/') snprintf(whole, sizeof whole, "%s", name);
  else if (folder == AT_FDCWD) { if (!getcwd(parent, sizeof parent)) return 0; snprintf(whole, sizeof whole, "%s/%s", parent, name); }
  else { if (!path_of(folder, parent)) return 0; snprintf(whole, sizeof whole, "%s/%s", parent, name); }
  size_t size = strlen(whole);
  while (size > 1 && whole[size - 1] == '/') whole[--size] = 0;
  char *slash = strrchr(whole, '/');
  *slash = 0;
  if (!realpath(whole[0] ? whole : "/", parent)) return 0;
  snprintf(path, PATH_MAX, "%s/%s", parent, slash + 1);
  return inside(path);
}

static uint64_t inode_of(const char *path) {
  struct stat found;
  return lstat(path, &found) == 0 ? found.st_ino : 0;
}

static int opening(int folder, const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  int changes = (flags & (O_CREAT | O_TRUNC)) && resolve(folder, name, path);
  if (!changes) return (int)syscall(SYS_openat, folder, name, flags, mode);
  enter();
  uint64_t before = inode_of(path);
  if (!before && (flags & O_CREAT) && fails("full", path)) { errno = ENOSPC; leave(); return -1; }
  int fd = (int)syscall(SYS_openat, folder, name, flags, mode);
  struct stat found;
  if (fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) {
    if (!before) put('c', found.st_ino, 0, path, NULL, NULL, 0);
    else if (flags & O_TRUNC) put('t', found.st_ino, 0, path, NULL, NULL, 0);
  }
  leave();
  return fd;
}

#define OPEN(name, has_folder) \
  { mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
    return opening(has_folder, name, flags, mode); }
int open(const char *name, int flags, ...) OPEN(name, AT_FDCWD)
int open64(const char *name, int flags, ...) OPEN(name, AT_FDCWD)
int openat(int folder, const char *name, int flags, ...) OPEN(name, folder)
int openat64(int folder, const char *name, int flags, ...) OPEN(name, folder)
int creat(const char *name, mode_t mode) { return opening(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int __open_2(const char *name, int flags) { return opening(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return opening(AT_FDCWD, name, flags, 0); }

static ssize_t writing(int fd, const struct iovec *parts, int count, off_t at) {
  char path[PATH_MAX];
  struct stat found;
  if (!root_length || fd == log_fd || fstat(fd, &found) || !S_ISREG(found.st_mode) || !path_of(fd, path))
    return at < 0 ? syscall(SYS_writev, fd, parts, count) : syscall(SYS_pwritev, fd, parts, count, at, 0);
  enter();
  off_t start = at;
  if (at < 0) {
    fstat(fd, &found);
    start = fcntl(fd, F_GETFL) & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
  }
  int refused = fails("eio", path) ? EIO : fails("full", path) ? ENOSPC : 0;
  if (refused) { errno = refused; leave(); return -1; }
  struct iovec half = {parts[0].iov_base, (parts[0].iov_len + 1) / 2};
  if (parts[0].iov_len > 1 && fails("short", path)) { parts = &half; count = 1; }
  ssize_t done = at < 0 ? syscall(SYS_writev, fd, parts, count) : syscall(SYS_pwritev, fd, parts, count, at, 0);
  char kind = fcntl(fd, F_GETFL) & O_DSYNC ? 'W' : 'w'; /* durable when it returns: LMDB's meta page */
  int dropped = kind == 'W' && fails("sync", path);
  if (dropped) kind = 'w';
  off_t place = start;
  for (ssize_t left = done; left > 0; parts++) {
    size_t size = parts->iov_len < (size_t)left ? parts->iov_len : (size_t)left;
    if (size) put(kind, found.st_ino, place, path, NULL, parts->iov_base, size);
    place += size; left -= size;
  }
  if (dropped) { put('f', found.st_ino, 0, path, NULL, NULL, 0); errno = EIO; done = -1; }
  leave();
  return done;
}

ssize_t write(int fd, const void *data, size_t size) { struct iovec one = {(void *)data, size}; return writing(fd, &one, 1, -1); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return writing(fd, parts, count, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { struct iovec one = {(void *)data, size}; return writing(fd, &one, 1, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return writing(fd, parts, count, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return writing(fd, parts, count, at); }
/* What would pass by us is refused; callers fall back to write. */
ssize_t copy_file_range(int a, off_t *b, int c, off_t *d, size_t e, unsigned f) { (void)a; (void)b; (void)c; (void)d; (void)e; (void)f; errno = EXDEV; return -1; }

static int sizing(int fd, off_t size, int number, int mode) {
  char path[PATH_MAX];
  struct stat found;
  int ours = path_of(fd, path) && fstat(fd, &found) == 0;
  if (ours) enter();
  int done = number == SYS_ftruncate ? (int)syscall(SYS_ftruncate, fd, size) : (int)syscall(SYS_fallocate, fd, mode, 0, size);
  if (ours) { if (done == 0) put('t', found.st_ino, (uint64_t)size, path, NULL, NULL, 0); leave(); }
  return done;
}
int ftruncate(int fd, off_t size) { return sizing(fd, size, SYS_ftruncate, 0); }
int ftruncate64(int fd, off_t size) { return sizing(fd, size, SYS_ftruncate, 0); }

static int syncing(int fd, int number) {
  char path[PATH_MAX];
  struct stat found;
  int ours = path_of(fd, path) && fstat(fd, &found) == 0;
  if (ours) enter();
  if (ours && fails("slow", path)) {
    put(S_ISDIR(found.st_mode) ? 'b' : 'B', found.st_ino, 0, path, NULL, NULL, 0);
    leave();
    usleep(SLOW_US);
    enter();
  }
  int folder = ours && S_ISDIR(found.st_mode);
  if (ours && fails(folder ? "folder" : "sync", path)) {
    if (!folder) put('f', found.st_ino, 0, path, NULL, NULL, 0);
    errno = EIO; leave();
    return -1;
  }
  int done = (int)syscall(number, fd);
  if (ours) { if (done == 0) put(S_ISDIR(found.st_mode) ? 'd' : 's', found.st_ino, 0, path, NULL, NULL, 0); leave(); }
  return done;
}
int fsync(int fd) { return syncing(fd, SYS_fsync); }
int fdatasync(int fd) { return syncing(fd, SYS_fdatasync); }

static int naming(char kind, int folder, const char *old, int other, const char *new, unsigned flags) {
  char from[PATH_MAX], to[PATH_MAX] = "";
  int ours = resolve(folder, old, from);
  if (new && resolve(other, new, to)) ours = 1;
  if (ours) enter();
  if (ours && kind != 'u' && fails("full", from)) { errno = ENOSPC; leave(); return -1; }
  uint64_t inode = ours ? inode_of(from) : 0;
  int done = kind == 'r' ? (int)syscall(SYS_renameat2, folder, old, other, new, flags)
           : kind == 'l' ? (int)syscall(SYS_linkat, folder, old, other, new, flags)
           : kind == 'm' ? (int)syscall(SYS_mkdirat, folder, old, flags)
           : (int)syscall(SYS_unlinkat, folder, old, flags);
  if (ours) { if (done == 0) put(kind, kind == 'm' ? inode_of(from) : inode, 0, from, to, NULL, 0); leave(); }
  return done;
}
int rename(const char *a, const char *b) { return naming('r', AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int x, const char *a, int y, const char *b) { return naming('r', x, a, y, b, 0); }
int renameat2(int x, const char *a, int y, const char *b, unsigned f) { return naming('r', x, a, y, b, f); }
int link(const char *a, const char *b) { return naming('l', AT_FDCWD, a, AT_FDCWD, b, 0); }
int linkat(int x, const char *a, int y, const char *b, int f) { return naming('l', x, a, y, b, (unsigned)f); }
int unlink(const char *a) { return naming('u', AT_FDCWD, a, AT_FDCWD, NULL, 0); }
int unlinkat(int x, const char *a, int f) { return naming('u', x, a, AT_FDCWD, NULL, (unsigned)f); }
int rmdir(const char *a) { return naming('u', AT_FDCWD, a, AT_FDCWD, NULL, AT_REMOVEDIR); }
int mkdir(const char *a, mode_t mode) { return naming('m', AT_FDCWD, a, AT_FDCWD, NULL, mode); }
int mkdirat(int x, const char *a, mode_t mode) { return naming('m', x, a, AT_FDCWD, NULL, mode); }
