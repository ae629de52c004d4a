# A removal ends interception, while the program that can do it is there. An upgrade leaves it alone.
if [ "$1" -eq 0 ]; then
    if [ -d /run/systemd/system ]; then
        systemctl disable --now sidetrack.service
    fi
    /usr/bin/sidetrack cleanup
fi
