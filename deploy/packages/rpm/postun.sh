if [ "$1" -eq 0 ]; then
    rmdir /usr/share/doc/sidetrack/examples /usr/share/doc/sidetrack /usr/share/licenses/sidetrack \
        /sys/fs/bpf/sidetrack /run/sidetrack /etc/sidetrack/pods /etc/sidetrack 2>/dev/null || true
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
