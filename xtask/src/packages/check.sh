#!/bin/sh
# Installs a package in a root file system, runs the agent as the unit says, enrolls a pod, upgrades and downgrades, and
# removes everything. Runs in mount and network namespaces of its own.
#
# usage: check.sh ROOT deb|rpm PACKAGE [PREVIOUS_PACKAGE]
set -eu
root=$1 kind=$2 package=$3 previous=${4:-}
# /sys/fs/cgroup, or a directory below it on a machine that has both kinds.
cgroups=$(findmnt --noheadings --types cgroup2 --output TARGET | head -n 1)
cgroup=$cgroups/sidetrack-packages-$$
agent=

inside() { chroot "$root" "$@"; }
say() { echo "  ok    $*"; }
fail() {
    echo "  FAIL  $*"
    [ ! -f "$root/tmp/agent.log" ] || tail -n 20 "$root/tmp/agent.log"
    exit 1
}
finish() {
    [ -z "$agent" ] || kill -KILL "$agent" 2>/dev/null || true
    rmdir "$cgroup" 2>/dev/null || true
}
trap finish EXIT

mkdir "$cgroup"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t bpf bpf "$root/sys/fs/bpf"
# What the agent uses as the root of all cgroups, so that this machine's own stay untouched.
mount --bind "$cgroup" "$root$cgroups"
mount -t tmpfs tmpfs "$root/run"

# What a package could leave behind: files, and directories of its own name. Not the records of package managers and of
# systemd-analyze, nor directories that larger systems have anyway.
listing() {
    (cd "$root" && find . \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./run/systemd \
        -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./root/.rpmdb -o -path ./var/log -o -path ./var/cache \) \
        -prune -o \( ! -type d -o -path '*sidetrack*' \) -print) | sort
}
install() {
    cp "$1" "$root/tmp/package"
    case $kind in
    deb) inside dpkg --install /tmp/package ;;
    # Debian's rpm has no record of what dpkg has installed, such as /bin/sh.
    rpm) inside rpm --upgrade --nodeps --replacepkgs --oldpackage /tmp/package ;;
    esac >"$root/tmp/install.log" 2>&1 || { cat "$root/tmp/install.log"; fail "install $1"; }
}
purge() {
    # rpm leaves what the administrator has written.
    [ "$kind" = deb ] || rm "$root/etc/sidetrack/pods/web-0.yaml"
    case $kind in
    deb) inside dpkg --purge sidetrack ;;
    rpm) inside rpm --erase sidetrack ;;
    esac >"$root/tmp/install.log" 2>&1 || { cat "$root/tmp/install.log"; fail "remove the package"; }
}
unit=/usr/lib/systemd/system/sidetrack.service
setting() { sed -n "s/^$1=//p" "$root$unit"; }
start() {
    capabilities=$(setting CapabilityBoundingSet | sed 's/CAP_/,+/g; s/ //g' | tr '[:upper:]' '[:lower:]')
    # Words of a unit are separated as the shell does it.
    # shellcheck disable=SC2046
    chroot "$root" setpriv "--bounding-set=-all$capabilities" --inh-caps=-all --no-new-privs -- $(setting ExecStart) \
        >>"$root/tmp/agent.log" 2>&1 &
    agent=$!
    inside sidetrack status --wait shop/web-0 --timeout 30s >"$root/tmp/status" 2>&1 || {
        cat "$root/tmp/status"
        fail "the pod is not enrolled"
    }
}
stop() {
    kill "$agent"
    wait "$agent" || true
    agent=
}
enrolled() { inside sidetrack pods -o json | grep -q '"enrolled"'; }
commit() { inside sidetrack version -o json | sed -n 's/.*"commit": "\(.*\)".*/\1/p'; }

listing >"$root/tmp/before"
install "${previous:-$package}"
say "installed"
inside systemd-analyze verify --man=no "$unit" || fail "systemd does not accept the unit"
say "systemd accepts the unit"
# The unit's RuntimeDirectory.
mkdir -p "$root/run/sidetrack" "$root/run/netns"
touch "$root/run/netns/web-0"
unshare --net="$root/run/netns/web-0" ip link set lo up
cp "$root"/usr/share/doc/sidetrack/examples/*.yaml "$root/etc/sidetrack/pods/web-0.yaml"
start
enrolled || fail "no pod is enrolled"
say "the agent runs with the unit's capabilities, and has enrolled a pod from a manifest"
if [ -n "$previous" ]; then
    old=$(commit)
    install "$package"
    [ "$(commit)" != "$old" ] || fail "both packages are of one commit"
    enrolled || fail "an upgrade without a restart ends interception"
    stop
    start
    enrolled || fail "not enrolled after the upgrade"
    say "upgraded from $old to $(commit)"
    install "$previous"
    stop
    start
    enrolled || fail "not enrolled after the downgrade"
    say "and back"
    install "$package"
    stop
    start
fi
stop
[ -n "$(find "$root/sys/fs/bpf/sidetrack" -type f)" ] || fail "interception ends with the agent"
say "interception continues without an agent"
purge
umount "$root/run/netns/web-0"
rm -r "$root/run/netns"
# The kernel puts two files of its own there.
remains=$(find "$root/sys/fs/bpf" -mindepth 1 ! -name '*.debug')
[ -z "$remains" ] || fail "remains in the bpffs: $remains"
attached=$(bpftool cgroup tree "$cgroup" | grep -v -e '^CgroupPath' -e '^ID ' -e "^$cgroup\$" || true)
[ -z "$attached" ] || fail "remains at the cgroup: $attached"
listing >"$root/tmp/after"
diff "$root/tmp/before" "$root/tmp/after" || fail "the file system differs"
say "purged without a trace"
