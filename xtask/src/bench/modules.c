// Preloaded into a profiler that insists on /proc/modules, on kernels built
// without modules: gives it an empty file instead.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

static int open_with(const char *name, const char *path, int flags, va_list rest)
{
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, unsigned) : 0;
    return real(strcmp(path, "/proc/modules") ? path : "/dev/null", flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int fd = open_with("open", path, flags, rest);
    va_end(rest);
    return fd;
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int fd = open_with("open64", path, flags, rest);
    va_end(rest);
    return fd;
}
