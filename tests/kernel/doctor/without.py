# Runs a program on a kernel that refuses a system call, by a seccomp filter. Arguments: "CALL ARGUMENT=VALUE... ERRNO",
# then the program and its arguments. Without "ARGUMENT=VALUE" every such call is refused.
import ctypes, os, struct, sys

NUMBERS = {
    "x86_64": {"socket": 41, "getsockopt": 55, "bpf": 321, "inotify_init1": 294},
    "aarch64": {"socket": 198, "getsockopt": 209, "bpf": 280, "inotify_init1": 26},
}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x00050000, 0x7FFF0000
call, *wanted, errno = sys.argv[1].split()
checks = [(0, NUMBERS[os.uname().machine][call])]
for check in wanted:
    argument, value = check.split("=")
    checks.append((16 + 8 * int(argument), int(value)))
rules = []
for number, (offset, value) in enumerate(checks):
    to_end = 2 * (len(checks) - number) - 1
    rules += [(LOAD, 0, 0, offset), (EQUAL, 0, to_end, value)]
rules += [(RETURN, 0, 0, ERRNO | int(errno)), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) == 0
os.execv(sys.argv[2], sys.argv[2:])
