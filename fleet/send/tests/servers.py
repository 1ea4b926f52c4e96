# Servers that aiprof-send is tested against, and what they read with OpenTelemetry's own
# messages.
#
#     python servers.py certificates FOLDER
#     python servers.py http|grpc PORT ANSWERS [CERT KEY [CA]]
#     python servers.py metrics < TEXT
#
# A server prints `ready PORT`, then a line of JSON for each request. ANSWERS are separated by
# commas; the last is given for ever.
import datetime
import gzip
import http.server
import json
import ssl
import sys
import threading
import time
from concurrent import futures

lock = threading.Lock()
answers = []


def say(**line):
    with lock:
        print(json.dumps(line), flush=True)


def next_answer():
    with lock:
        return answers.pop(0) if len(answers) > 1 else answers[0]


def read_otlp(data):
    """Samples of a request, field by field."""
    from google.protobuf.unknown_fields import UnknownFieldSet
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

    request = profiles_service_pb2.ExportProfilesServiceRequest()
    request.ParseFromString(data)
    assert not len(UnknownFieldSet(request))
    d = request.dictionary
    samples = []
    for resource in request.resource_profiles:
        known = {one.key: getattr(one.value, one.value.WhichOneof("value"))
                 for one in resource.resource.attributes}
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                for sample in profile.samples:
                    names = [d.string_table[d.function_table[line.function_index].name_strindex]
                             for at in d.stack_table[sample.stack_index].location_indices
                             for line in d.location_table[at].lines]
                    samples.append({
                        "kind": d.string_table[profile.sample_type.type_strindex],
                        "service": known["service.name"], "host": known["host.name"],
                        "time": profile.time_unix_nano, "period": profile.period,
                        "values": list(sample.values), "frames": names[::-1],
                    })
    return samples


def body_of(path, data):
    if "profiles" in path.lower() and "parca" not in path:
        return {"samples": read_otlp(data)}
    return {"hex": data.hex()}


def partial():
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

    response = profiles_service_pb2.ExportProfilesServiceResponse()
    response.partial_success.rejected_profiles = 2
    response.partial_success.error_message = "two were too deep"
    return response


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, data=b"", **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        what = next_answer()
        length = int(self.headers["Content-Length"])
        data = b""
        while len(data) < length:
            part = self.rfile.read1(min(length - len(data), 1000 if what == "slow" else length))
            if not part:
                say(cut=len(data), path=self.path)
                return
            data += part
            if what == "slow":
                time.sleep(0.002)
        if self.headers["Content-Encoding"] == "gzip":
            data = gzip.decompress(data)
        headers = {name.lower(): value for name, value in self.headers.items()}
        say(path=self.path, headers=headers, answer=what, at=time.time(),
            connection=self.client_address[1], **body_of(self.path, data))
        if what.startswith("poison-"):
            fails = read_otlp(data)[0]["values"] == [1]
            what = what.removeprefix("poison-") if fails else "200"
        self.respond(what)

    def respond(self, what):
        if what == "hang":
            time.sleep(3600)
        elif what == "close":
            self.close_connection = True
        elif what == "mid":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            self.close_connection = True
        elif what == "half":
            self.wfile.write(b"HTTP/1.1 200 O")
            self.close_connection = True
        elif what == "garbage":
            self.wfile.write(b"\x00\xff" * 100 + b"\r\n\r\n")
            self.close_connection = True
        elif what == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            try:
                for _ in range(1000):
                    self.wfile.write(bytes(1 << 20))
                say(read_all=True)
            except OSError:
                say(hung_up=True)
            self.close_connection = True
        elif what == "echo":
            self.answer(401, ("no such user: " + self.headers["Authorization"]).encode())
        elif what == "old":
            text = "profile with labels '{}' is outside of ingestion window (profile " \
                "timestamp: then, the ingestion window starts at later)"
            error = {"code": "invalid_argument", "message": text}
            self.answer(400, json.dumps(error).encode(), Content_Type="application/json")
        elif what == "partial":
            self.answer(200, partial().SerializeToString(), Content_Type="application/x-protobuf")
        elif what == "redirect":
            self.answer(307, Location="http://127.0.0.1:1/stolen")
        else:
            status, _, wait = what.replace("slow", "200").partition("/")
            self.answer(int(status), **({"Retry_After": wait} if wait else {}))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass


def serve_http(port, tls):
    server = Server(("127.0.0.1", port), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls[0], tls[1])
        if len(tls) > 2:
            context.load_verify_locations(tls[2])
            context.verify_mode = ssl.CERT_REQUIRED
        # The handshake is then each connection's own.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False)
    print("ready", server.server_address[1], flush=True)
    server.serve_forever()


def respond_grpc(what, context):
    import grpc

    kind, _, value = what.partition("/")
    if kind == "hang":
        time.sleep(3600)
    elif kind == "partial":
        return partial().SerializeToString()
    elif kind == "huge":
        return bytes(8 << 20)
    elif kind == "pushback":
        context.set_trailing_metadata([("grpc-retry-pushback-ms", value)])
        context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
    elif kind == "echo":
        known = dict(context.invocation_metadata())
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no " + known["authorization"])
    elif kind != "ok":
        context.abort(getattr(grpc.StatusCode, kind), "said so: 100 % é")
    return b""


def serve_grpc(port, tls):
    import grpc

    class Raw(grpc.GenericRpcHandler):
        def service(self, details):
            path = details.method

            def method(data, context):
                what = next_answer()
                metadata = {key: value for key, value in context.invocation_metadata()}
                say(path=path, headers=metadata, answer=what, at=time.time(),
                    left=context.time_remaining(), **body_of(path, data))
                return respond_grpc(what, context)

            return grpc.unary_unary_rpc_method_handler(method)

    plain = "plain" in answers
    options = [("grpc.compression_enabled_algorithms_bitset", 1)] if plain else []
    if plain:
        answers.remove("plain")
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Raw()], options=options)
    address = "127.0.0.1:%d" % port
    if tls:
        read = [open(name, "rb").read() for name in tls]
        ca = read[2] if len(read) > 2 else None
        credentials = grpc.ssl_server_credentials([(read[1], read[0])], ca, ca is not None)
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    server.start()
    print("ready", port, flush=True)
    server.wait_for_termination()


def certificates(folder):
    """Two authorities; of the first a server's certificate and a client's."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.timezone.utc)

    def make(name, issuer=None):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder().subject_name(subject)
            .issuer_name(issuer[0].subject if issuer else subject)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(issuer is None, None), True))
        if issuer:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), False)
        certificate = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        open(f"{folder}/{name}.pem", "wb").write(certificate.public_bytes(pem))
        open(f"{folder}/{name}.key", "wb").write(key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return certificate, key

    ca = make("ca")
    make("other")
    make("server", ca)
    make("client", ca)


def read_metrics():
    """Checks what is served by Prometheus's own reader, and prints it."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(sys.stdin.read()):
        for sample in family.samples:
            print(json.dumps([sample.name, sample.labels, float(sample.value)]))


if sys.argv[1] == "certificates":
    certificates(sys.argv[2])
elif sys.argv[1] == "metrics":
    read_metrics()
else:
    answers = sys.argv[3].split(",")
    serve = {"http": serve_http, "grpc": serve_grpc}[sys.argv[1]]
    serve(int(sys.argv[2]), sys.argv[4:])
