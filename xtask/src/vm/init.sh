#!/bin/sh
# The first process of a guest. session.rs parses its output on the second serial port ($OUTPUT): a line
# that begins with @ starts a part.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
ip link set lo up
# Other modules are loaded on first use. This one answers SO_ORIGINAL_DST where sidetrack does not, and
# is loaded on every node with a kube-proxy.
modprobe nf_conntrack
# The limit that service managers and container runtimes set.
# shellcheck disable=SC3045 # the guest's shell is busybox's
ulimit -n 524288
cd /sidetrack || poweroff -f
# shellcheck source=/dev/null # xtask writes it
. ./variables
export SIDETRACK_BIN=/sidetrack/sidetrack
export SIDETRACK_TEST_IN_GUEST=1
# A parameter of the kernel's command line.
exec >"$OUTPUT" 2>&1

# Everything of BPF in the kernel.
inventory() {
    find /sys/fs/bpf /run/sidetrack.sock -mindepth 1 2>/dev/null
    bpftool prog list
    bpftool link list
    bpftool cgroup tree | grep -v -e '^CgroupPath' -e '^ID '
}
inventory >/tmp/before

echo "@doctor"
if $SIDETRACK_BIN doctor -o json; then
    accepted=true
else
    accepted=false
fi

# The agent must agree: it starts, or it refuses the kernel and leaves nothing behind.
echo "@agent"
mkdir /run/pods
$SIDETRACK_BIN agent --pods-dir /run/pods --socket /run/sidetrack.sock &
agent=$!
# The clock of the guest skips idle time.
sleep 30
$SIDETRACK_BIN status --check --socket /run/sidetrack.sock
started=$?
kill "$agent"
wait "$agent"
echo "@started $started"
if $accepted; then
    $SIDETRACK_BIN cleanup --socket /run/sidetrack.sock
fi
# The kernel frees programs a moment later.
sleep 1
echo "@remains"
inventory | grep -vxF -f /tmp/before

if $accepted; then
    echo "@tests"
    status=0
    # The test harness takes one filter.
    for filter in $FILTERS; do
        ./kernel --test-threads 1 --format json -Zunstable-options "$filter" || status=$?
    done
    echo "@ended $status"
else
    echo "@ended 0"
fi
poweroff -f
