#!/bin/sh
# The first process of a guest. What it says on the second serial port is read by machine.rs: lines
# that begin with @ say what follows.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
ip link set lo up
# Everything else loads itself when it is asked for. This one answers SO_ORIGINAL_DST where nobody
# else does, and is there on every node that has a kube-proxy.
modprobe nf_conntrack
# As service managers and container runtimes have it.
ulimit -n 524288
cd /sidetrack || poweroff -f
. ./variables
export SIDETRACK_BIN=/sidetrack/sidetrack
exec >/dev/ttyS1 2>&1

echo "@doctor"
if $SIDETRACK_BIN doctor -o json; then
    echo "@tests"
    ./kernel --test-threads 1 --format json -Zunstable-options $FILTER
    echo "@ended $?"
else
    # The agent must refuse as well, and leave nothing.
    echo "@agent"
    mkdir /run/pods
    $SIDETRACK_BIN agent --pods-dir /run/pods --socket /run/sidetrack.sock
    status=$?
    echo "@left"
    find /sys/fs/bpf /run/sidetrack.sock -mindepth 1 2>/dev/null
    bpftool prog list
    bpftool link list
    bpftool cgroup tree | grep -v -e '^CgroupPath' -e '^ID '
    echo "@ended $status"
fi
poweroff -f
