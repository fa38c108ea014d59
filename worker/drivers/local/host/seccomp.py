"""The system calls that code in a sandbox may not make, as a BPF program for bubblewrap; libseccomp writes it."""

import ctypes
import errno
import os

ALLOW = 0x7FFF0000  # SCMP_ACT_ALLOW
NE, EQ, GT, MASKED_EQ = 1, 4, 6, 7  # SCMP_CMP_*
BAD_ARCH = 2  # SCMP_FLTATR_ACT_BADARCH
INT_MASK = 0xFFFFFFFF  # the kernel looks at an int: what is above it must not hide a value

# Nobody's business in a sandbox, whatever the privileges: namespaces and mounts, other processes' memory, kernel
# keys, BPF and tracing, modules, clocks, quotas. Each is a way out that was used before, or talks to code of the
# kernel that ordinary programs never reach. shmget and memfd_create make memory that no limit of ours counts.
FORBIDDEN = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime create_module delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick get_kernel_syms init_module ioperm iopl kcmp kexec_file_load
    kexec_load keyctl lookup_dcookie memfd_create memfd_secret migrate_pages modify_ldt mount mount_setattr
    move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd
    pivot_root process_madvise process_vm_readv process_vm_writev ptrace query_module quotactl quotactl_fd reboot
    request_key setdomainname sethostname setns settimeofday shmget stime swapoff swapon _sysctl sysfs syslog umount
    umount2 unshare uselib userfaultfd ustat vhangup vm86 vm86old vserver
""".split()
# For these programs look for another way when the kernel does not know the call.
UNKNOWN = "clone3 io_uring_enter io_uring_register io_uring_setup".split()
NAMESPACES = (
    0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
TERMINAL = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
AF_INET6, AF_NETLINK = 10, 16
READ_IMPLIES_EXEC = 0x0400000


class Argument(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class Filter:
    def __init__(self):
        self.lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.lib.seccomp_init.restype = ctypes.c_void_p
        self.lib.seccomp_init.argtypes = [ctypes.c_uint32]
        self.lib.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
        self.lib.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Argument),
        ]
        self.lib.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.lib.seccomp_release.argtypes = [ctypes.c_void_p]
        self.context = self.lib.seccomp_init(ALLOW)
        if not self.context:
            raise OSError("seccomp_init failed")
        # Another ABI's calls (32 bits on a 64-bit kernel) have other numbers: none of them.
        self.check(self.lib.seccomp_attr_set(self.context, BAD_ARCH, self.refuse(errno.ENOSYS)), "another ABI")

    @staticmethod
    def refuse(code):
        return 0x00050000 | code  # SCMP_ACT_ERRNO

    @staticmethod
    def check(result, what):
        if result < 0:
            raise OSError(-result, "libseccomp: " + what)

    def add(self, name, *conditions, code=errno.EPERM):
        number = self.lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # not on this architecture, or newer than the library
            return
        arguments = (Argument * len(conditions))(*(Argument(*condition) for condition in conditions))
        result = self.lib.seccomp_rule_add_array(
            self.context, self.refuse(code), number, len(conditions), arguments
        )
        self.check(result, name)

    def export(self):
        fd = os.memfd_create("seccomp")
        try:
            self.check(self.lib.seccomp_export_bpf(self.context, fd), "export")
            return os.pread(fd, 1 << 20, 0)
        finally:
            os.close(fd)
            self.lib.seccomp_release(self.context)


def program():
    """The BPF program. OSError when the library is not there."""
    f = Filter()
    for name in FORBIDDEN:
        f.add(name)
    for name in UNKNOWN:
        f.add(name, code=errno.ENOSYS)
    for flag in NAMESPACES:
        f.add("clone", (0, MASKED_EQ, flag, flag))
    for request in TERMINAL:
        f.add("ioctl", (1, MASKED_EQ, INT_MASK, request))
    # Unix and internet sockets, and what tells a program its addresses; no other protocol of the kernel.
    for family in [0, *range(3, AF_INET6), *range(AF_INET6 + 1, AF_NETLINK)]:
        f.add("socket", (0, EQ, family, 0), code=errno.EAFNOSUPPORT)
    f.add("socket", (0, GT, AF_NETLINK, 0), code=errno.EAFNOSUPPORT)
    f.add("socket", (0, EQ, AF_NETLINK, 0), (2, NE, 0, 0), code=errno.EAFNOSUPPORT)
    f.add("personality", (0, MASKED_EQ, READ_IMPLIES_EXEC, READ_IMPLIES_EXEC))
    return f.export()
