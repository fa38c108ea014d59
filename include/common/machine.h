/* How much of the machine is this process's: the whole of it, or what its container was given. */
#ifndef SANDPIPER_COMMON_MACHINE_H
#define SANDPIPER_COMMON_MACHINE_H

struct machine {
    long long cores;      /* at least 1; part of a core counts as one */
    long long memory_kib; /* of RAM */
};

/* Reads affinity, RAM, and the limits of the process's control group and those above it (v1 or v2:
 * cgroups(7), proc(5)). root: "" but in tests, where /proc and /sys are looked for below it. What
 * cannot be read limits nothing. */
void machine_read(const char *root, struct machine *out);

#endif
