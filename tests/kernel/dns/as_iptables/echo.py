"""A sidecar's DNS server, as far as sockets see it: it sends what it receives back."""

import select
import socket

sockets = []
for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
    one = socket.socket(family, socket.SOCK_DGRAM)
    one.bind((address, 15053))
    sockets.append(one)
print("ready", flush=True)
while True:
    for one in select.select(sockets, [], [])[0]:
        text, sender = one.recvfrom(100)
        one.sendto(b"sidecar: " + text, sender)
