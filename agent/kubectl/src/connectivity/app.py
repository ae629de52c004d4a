"""What runs in the pods of `kubectl sidetrack test`.

app.py serve PORT...               HTTP servers that answer whom they see
app.py call ADDRESS PORT SECONDS   one request; prints what came of it as JSON
"""

import errno
import http.client
import http.server
import json
import socket
import sys
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        peer, own = self.client_address, self.request.getsockname()
        body = json.dumps({"peer": f"{peer[0]}:{peer[1]}", "own": f"{own[0]}:{own[1]}"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def call(address, port, seconds):
    seen = {}
    try:
        stream = socket.create_connection((address, port), seconds)
        seen["peer"] = "%s:%d" % stream.getpeername()
        seen["own"] = "%s:%d" % stream.getsockname()
        connection = http.client.HTTPConnection(address, port)
        connection.sock = stream
        connection.request("GET", "/healthz/ready")
        answer = connection.getresponse()
        seen["status"] = answer.status
        seen["headers"] = {name.lower(): value for name, value in answer.getheaders()}
        seen["body"] = answer.read().decode(errors="replace")
    except OSError as error:
        seen["error"] = errno.errorcode.get(error.errno, f"{type(error).__name__} {error}")
    except http.client.HTTPException as error:
        seen["error"] = f"{type(error).__name__} {error}"
    print(json.dumps(seen))


if sys.argv[1] == "call":
    call(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
else:
    for port in sys.argv[2:]:
        server = http.server.ThreadingHTTPServer(("", int(port)), Handler)
        threading.Thread(target=server.serve_forever).start()
