/*
 * Preloaded into user-mode-linux on hosts whose CPU has a larger register file than it was built for (AMX).
 *
 * The kernel takes PTRACE_SETREGSET of NT_X86_XSTATE only in its full size (11008 bytes with AMX), while
 * user-mode-linux 6.1 keeps 2696 bytes: "ptrace set fp regs failed, errno = 14". What it does not keep is
 * taken from the traced process itself, so every register it knows of is still saved and restored.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Static: the stacks of user-mode-linux are a few pages. It has one CPU, so one caller at a time. */
static char whole[64 * 1024];

static long set_xstate(pid_t pid, void *type, struct iovec *known)
{
    struct iovec all = { whole, sizeof whole };

    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, type, &all) < 0)
        return -1;
    if (all.iov_len <= known->iov_len)
        return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, type, known);
    memcpy(whole, known->iov_base, known->iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, type, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE)
        return set_xstate(pid, address, data);
    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        long word;
        if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
            return -1;
        errno = 0;
        return word;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
