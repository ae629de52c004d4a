"""Prints the addresses of a name, as Python finds them."""

import socket
import sys

for found in socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_STREAM):
    print(found[4][0])
