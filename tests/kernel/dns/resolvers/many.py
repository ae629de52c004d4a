"""Sends queries to several servers from one socket, many before the first answer, and checks who answers each.

The arguments: how many queries, and the servers. Prints how many answers came from the server that was asked, from
another one, and not at all.
"""

import select
import socket
import struct
import sys

COUNT, SERVERS = int(sys.argv[1]), sys.argv[2:]
AT_ONCE = 60
QUESTION = b"\x04name\x07example\x00\x00\x01\x00\x01"

family = socket.AF_INET6 if ":" in SERVERS[0] else socket.AF_INET
sock = socket.socket(family, socket.SOCK_DGRAM)
right = wrong = lost = 0
for first in range(0, COUNT, AT_ONCE):
    asked = {}
    for number in range(first, min(first + AT_ONCE, COUNT)):
        server = SERVERS[number % len(SERVERS)]
        query = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + QUESTION
        sock.sendto(query, (server, 53))
        asked[number] = server
    while asked and select.select([sock], [], [], 2)[0]:
        answer, sender = sock.recvfrom(4096)
        server = asked.pop(struct.unpack("!H", answer[:2])[0], None)
        if sender[:2] == (server, 53):
            right += 1
        else:
            wrong += 1
    lost += len(asked)
print(right, wrong, lost)
