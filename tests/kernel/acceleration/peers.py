#!/usr/bin/python3
"""Both ends of an accelerated connection. peers.py serve ADDRESS PORT | dial SCENARIO FROM ADDRESS PORT

The server reads the scenario from its first line. Every scenario ends with "ok" on the client's standard
output, or with a traceback.
"""
import fcntl, hashlib, os, random, select, socket, struct, sys, tempfile, termios, threading, time

MANY = 24 << 20


def data(seed, length):
    return random.Random(seed).randbytes(length)


def send_all(sock, text, seed):
    """Sends it in pieces of all sizes."""
    sizes = random.Random(seed)
    at = 0
    while at < len(text):
        size = sizes.choice([1, 7, 64, 700, 4096, 16384, 70000, 300000])
        sock.sendall(text[at:at + size])
        at += size


def receive(sock, length, seed=None, pause=0.0):
    """Receives so many bytes, or until the end; with a pause now and then."""
    pauses = random.Random(seed)
    parts, count = [], 0
    while length is None or count < length:
        part = sock.recv(min(65536, length - count) if length else 65536)
        if not part:
            break
        parts.append(part)
        count += len(part)
        if pause and pauses.random() < 0.02:
            time.sleep(pause)
    return b"".join(parts)


def same(got, want):
    assert got == want, (len(got), len(want), hashlib.sha256(got).hexdigest())


def both_ways(sock, own, other):
    """Everything at once in both directions; the reader dawdles, so that TCP is used for a while."""
    sender = threading.Thread(target=send_all, args=(sock, data(own, MANY), own))
    sender.start()
    same(receive(sock, MANY, other, 0.003), data(other, MANY))
    sender.join()


def alternate(sock, first):
    """Requests and answers of all sizes."""
    for number in range(400):
        size = random.Random(number).choice([1, 64, 1000, 16384, 200000, 400000])
        for turn in (True, False):
            text = data((number, turn).__hash__(), size)
            if turn == first:
                sock.sendall(text)
            else:
                same(receive(sock, size), text)


def fill(sock):
    """Sends until it would have to wait; how much that was."""
    sock.setblocking(False)
    sent = 0
    block = data(5, 65536)
    last = time.monotonic()
    while time.monotonic() < last + 0.5 and sent < 200 << 20:
        try:
            sent += sock.send(block[sent % 65536:])
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    # Not blocking: see "a blocking read" in docs/acceleration.md.
    sock.settimeout(30)
    return sent


def repeated(length):
    block = data(5, 65536)
    return (block * (length // 65536 + 1))[:length]


def bytes_by_tcp(sock):
    """tcpi_bytes_sent of linux/tcp.h."""
    info = sock.getsockopt(socket.IPPROTO_TCP, 11, 256)
    return struct.unpack_from("Q", info, 200)[0]


class Server:
    def exchange(self, sock):
        both_ways(sock, 1, 2)

    def alternate(self, sock):
        alternate(sock, False)

    def stopped_reader(self, sock):
        length = int(receive_line(sock.other))
        same(receive(sock, length), repeated(length))
        sock.sendall(b"read")

    def half_close(self, sock):
        text = receive(sock, None)
        same(text, data(3, 3 << 20))
        send_all(sock, data(4, 3 << 20), 4)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""

    def speaks_first(self, sock):
        sock.sendall(b"220 ready\r\n")
        assert receive_line(sock) == "HELO"
        sock.sendall(b"250 hello\r\n")

    def peek(self, sock):
        assert sock.recv(3, socket.MSG_PEEK) == b"pee"
        assert sock.recv(10) == b"peek"
        sock.sendall(b"yes")

    def reset(self, sock):
        receive(sock, 1000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def sendfile(self, sock):
        same(receive(sock, 1 << 20), data(6, 1 << 20))
        sock.sendall(b"read")

    def unread(self, sock):
        time.sleep(0.3)
        ready, _, _ = select.select([sock], [], [], 1)
        assert ready
        same(receive(sock, 5000), data(7, 5000))
        sock.sendall(b"read")


def receive_line(sock):
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        assert byte, line
        line += byte
    return line.decode().strip()


class Plain(socket.socket):
    """With room for the connection that reports what the other end has done."""
    __slots__ = ("other",)


def dial(source, address):
    sock = Plain(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((source, 0))
    sock.settimeout(30)
    sock.connect(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Client:
    def exchange(self, sock):
        both_ways(sock, 2, 1)

    def alternate(self, sock):
        before = bytes_by_tcp(sock)
        alternate(sock, True)
        # Requests that fit went past TCP: of 34 MB at most the large ones' ends did not.
        assert bytes_by_tcp(sock) - before < 26 << 20, bytes_by_tcp(sock) - before

    def stopped_reader(self, sock):
        sent = fill(sock)
        assert 64 << 10 < sent < 16 << 20, sent
        print("sent before it had to wait:", sent)
        send_text(sock.other, f"{sent}\n")
        assert receive(sock, 4) == b"read"

    def half_close(self, sock):
        send_all(sock, data(3, 3 << 20), 3)
        sock.shutdown(socket.SHUT_WR)
        same(receive(sock, None), data(4, 3 << 20))

    def speaks_first(self, sock):
        assert receive_line(sock) == "220 ready"
        sock.sendall(b"HELO\r\n")
        assert receive_line(sock) == "250 hello"

    def peek(self, sock):
        sock.sendall(b"peek")
        assert receive(sock, 3) == b"yes"

    def reset(self, sock):
        sock.sendall(bytes(1000))
        try:
            while sock.recv(1):
                pass
        except ConnectionResetError:
            return
        raise AssertionError("no reset")

    def sendfile(self, sock):
        with tempfile.TemporaryFile() as file:
            file.write(data(6, 1 << 20))
            file.flush()
            at = 0
            while at < 1 << 20:
                at += os.sendfile(sock.fileno(), file.fileno(), at, 1 << 20)
        assert receive(sock, 4) == b"read"

    def unread(self, sock):
        sock.sendall(data(7, 5000))
        assert receive(sock, 4) == b"read"


def send_text(sock, text):
    sock.sendall(text.encode())


def serve_one(sock, others):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    scenario = receive_line(sock)
    if scenario == "other":
        others.append(sock)
        sock.sendall(b"here\n")
        return
    sock.sendall(b"go\n")
    sock.other = others.pop()
    getattr(Server(), scenario)(sock)
    # By hand: the loop in serve() refers to this socket until it has accepted another.
    sock.other.close()
    sock.close()


def serve(address):
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(64)
    print("listening", flush=True)
    others = []
    while True:
        accepted, _ = listener.accept()
        sock = Plain(fileno=accepted.detach())
        sock.settimeout(30)
        threading.Thread(target=serve_one, args=(sock, others)).start()


def run(scenario, source, address):
    other = dial(source, address)
    send_text(other, "other\n")
    assert receive_line(other) == "here"
    sock = dial(source, address)
    sock.other = other
    send_text(sock, f"{scenario}\n")
    assert receive_line(sock) == "go"
    getattr(Client(), scenario)(sock)
    print("ok")


if __name__ == "__main__":
    word, *rest, ip, port = sys.argv[1:]
    if word == "serve":
        serve((ip, int(port)))
    else:
        run(*rest, (ip, int(port)))
