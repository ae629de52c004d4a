# The first argument is the number of installed versions.
mkdir -p /etc/sidetrack/pods
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if [ "$1" -eq 1 ]; then
        systemctl enable --now sidetrack.service
    else
        systemctl try-restart sidetrack.service
    fi
fi
