"""The pods' app.

app.py serve            an HTTP server on 8080 that says whom it sees
app.py load URL RATE    calls URL, each time with a new connection; a line of JSON for each second
app.py listen           listens where a sidecar does, and does nothing else
app.py refused URL N    calls URL N times; exits with 0 if every connection was refused
app.py first URL        calls URL at once; exits with 0 if both sidecars were on the way, 3 if one was missing
"""

import http.client
import http.server
import json
import socket
import sys
import threading
import time
import urllib.parse

OUT, IN = "x-outbound-sidecar", "x-inbound-sidecar"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        body = json.dumps({"client": self.client_address[0]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512


def call(url, timeout=5):
    """Which sidecars were on the way."""
    connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=timeout)
    try:
        connection.request("GET", url.path or "/")
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        return answer.getheader(OUT) is not None, answer.getheader(IN) is not None
    finally:
        connection.close()


def load(url, rate, workers=8):
    lock, seconds, start = threading.Lock(), {}, time.time()

    def work(number):
        due = start + number / rate
        while True:
            time.sleep(max(0, due - time.time()))
            due += workers / rate
            second = int(time.time())
            try:
                out, into = call(url)
                what = ("ok", "past_out" * (not out), "past_in" * (not into))
            except Exception as error:
                what = ("failed", f"error {type(error).__name__} {error}")
            with lock:
                entry = seconds.setdefault(second, {})
                for name in filter(None, what):
                    entry[name] = entry.get(name, 0) + 1

    for number in range(workers):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    while True:
        time.sleep(1)
        # A call that waits for its timeout belongs to the second in which it began.
        with lock:
            for second in sorted(second for second in seconds if second < time.time() - 7):
                print(json.dumps({"t": second, **seconds.pop(second)}), flush=True)


url = urllib.parse.urlparse(sys.argv[2]) if len(sys.argv) > 2 else None
if sys.argv[1] == "serve":
    Server(("", 8080), Handler).serve_forever()
elif sys.argv[1] == "listen":
    listener = socket.create_server(("", 15006))
    threading.Event().wait()
elif sys.argv[1] == "refused":
    for _ in range(int(sys.argv[3])):
        try:
            sys.exit(f"answered: {call(url)}")
        except ConnectionRefusedError:
            pass
elif sys.argv[1] == "load":
    load(url, float(sys.argv[3]))
else:
    # Until the sidecar listens, connections are refused; what counts is that none goes past it.
    deadline = time.time() + 60
    while True:
        try:
            out, into = call(url, 2)
            print(json.dumps({"out": out, "in": into}), flush=True)
            sys.exit(0 if out and into else 3)
        except OSError as error:
            if time.time() > deadline:
                sys.exit(f"never answered: {error}")
            time.sleep(0.005)
