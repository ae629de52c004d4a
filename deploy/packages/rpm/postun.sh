if [ "$1" -eq 0 ]; then
    rmdir /sys/fs/bpf/sidetrack /run/sidetrack /etc/sidetrack/pods /etc/sidetrack 2>/dev/null || true
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
