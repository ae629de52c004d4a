"""Queries over UDP as programs send them. Prints a line for each: its name, a colon, and what became of it."""

import errno
import socket
import struct
import sys

_, own, target, *servers = sys.argv
V6 = ":" in own
FAMILY = socket.AF_INET6 if V6 else socket.AF_INET
LEVEL = socket.IPPROTO_IPV6 if V6 else socket.IPPROTO_IP
RECVERR, PKTINFO, UNICAST_IF = (25, 50, 76) if V6 else (11, 8, 50)
SO_REUSEPORT, SO_BINDTODEVICE = 15, 25
ETH0 = socket.if_nametoindex("eth0")
TIMEOUT = 0.4


def outcome(ask):
    try:
        return ask()
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return errno.errorcode[error.errno]


def case(name, ask):
    print(f"{name}: {outcome(ask)}", flush=True)


def opened(prepare):
    new = socket.socket(FAMILY, socket.SOCK_DGRAM)
    new.settimeout(TIMEOUT)
    if prepare:
        prepare(new)
    return new


def answer(asking):
    text, sender = asking.recvfrom(100)
    return f"{text.decode()} from {sender[0]}:{sender[1]}"


def connected(prepare=None, control=(), server=servers[0]):
    def ask():
        with opened(prepare) as asking:
            asking.connect((server, 53))
            asking.sendmsg([b"query"], control)
            peer = asking.getpeername()[:2]
            assert peer == (server, 53), peer
            return answer(asking)

    return ask


def unconnected(prepare=None, control=(), server=servers[0]):
    def ask():
        with opened(prepare) as asking:
            asking.sendmsg([b"query"], control, 0, (server, 53))
            return answer(asking)

    return ask


def one_port():
    """A socket for each server, all with one port: an answer is for the socket that asked."""
    sockets = []
    for server in servers:
        asking = opened(lambda new: new.setsockopt(socket.SOL_SOCKET, SO_REUSEPORT, 1))
        asking.bind(("", 40503))
        asking.connect((server, 53))
        sockets.append(asking)
    for number, asking in enumerate(sockets):
        asking.send(b"query of socket %d" % number)
    return [outcome(lambda: answer(asking)) for asking in sockets]


def option(level, name, value):
    return lambda new: new.setsockopt(level, name, value)


def pktinfo(index, source):
    source = socket.inet_pton(FAMILY, source or ("::" if V6 else "0.0.0.0"))
    index = struct.pack("i", index)
    return source + index if V6 else index + source + bytes(4)


def control(index, source):
    return [(LEVEL, PKTINFO, pktinfo(index, source))]


recverr = option(LEVEL, RECVERR, 1)
unicast = option(LEVEL, UNICAST_IF, struct.pack("!I", ETH0))
device = option(socket.SOL_SOCKET, SO_BINDTODEVICE, b"eth0")
for name, ask in ("connected", connected), ("unconnected", unconnected):
    case(name, ask())
    case(f"{name}, IP_RECVERR", ask(recverr))
    case(f"{name}, bound to a port", ask(lambda new: new.bind(("", 0))))
    case(f"{name}, bound to the pod's address", ask(lambda new: new.bind((own, 0))))
    case(f"{name}, IP_UNICAST_IF", ask(unicast))
    case(f"{name}, IP_PKTINFO with an index", ask(control=control(ETH0, None)))
    case(f"{name}, IP_PKTINFO with a source", ask(control=control(0, own)))
    case(f"{name}, IP_PKTINFO with both", ask(control=control(ETH0, own)))
    if V6:
        case(f"{name}, bound to loopback", ask(lambda new: new.bind(("::1", 0))))
        case(f"{name}, IP_PKTINFO of the socket", ask(option(LEVEL, PKTINFO, pktinfo(ETH0, None))))
    case(f"{name}, SO_BINDTODEVICE", ask(device))
    if target:
        case(f"{name}, to a target", ask(server=target))
case("one port", one_port)
