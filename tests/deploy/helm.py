"""Lints and installs a chart with the real Helm, against a Kubernetes API that only stores
objects. Prints the objects that Helm made there as one JSON list.

    helm.py CHART RELEASE NAMESPACE [VALUES.json]
"""

import asyncio
import http.server
import json
import os
import sys
import tempfile
import threading

KINDS = {
    "v1": {"serviceaccounts": "ServiceAccount", "configmaps": "ConfigMap", "secrets": "Secret"},
    "apps/v1": {"daemonsets": "DaemonSet"},
    "batch/v1": {"cronjobs": "CronJob"},
    "scheduling.k8s.io/v1": {"priorityclasses": "PriorityClass"},
    "monitoring.coreos.com/v1": {"podmonitors": "PodMonitor"},
}
CLUSTER_WIDE = {"priorityclasses"}
made = []


class Api(http.server.BaseHTTPRequestHandler):
    """Discovery, and objects by their paths."""

    protocol_version = "HTTP/1.1"
    objects = {}

    def log_message(self, *_):
        pass

    def answer(self, code, value):
        self.answer_with(code, json.dumps(value).encode(), "application/json")

    def answer_with(self, code, body, kind):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def resources(self, version):
        named = KINDS[version].items()
        verbs = ["create", "delete", "get", "list", "patch", "update"]
        listed = [
            {"name": n, "singularName": "", "namespaced": n not in CLUSTER_WIDE, "kind": k, "verbs": verbs}
            for n, k in named
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        groups = [v for v in KINDS if "/" in v]
        if path == "version":
            return self.answer(200, {"major": "1", "minor": "31", "gitVersion": "v1.31.0"})
        if path == "api":
            return self.answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        if path == "apis":
            version = lambda v: {"groupVersion": v, "version": v.split("/")[1]}
            listed = [
                {"name": v.split("/")[0], "versions": [version(v)], "preferredVersion": version(v)} for v in groups
            ]
            return self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
        if path == "api/v1" or path.removeprefix("apis/") in groups:
            return self.answer(200, self.resources("v1" if path == "api/v1" else path.removeprefix("apis/")))
        if path in self.objects:
            return self.answer(200, self.objects[path])
        if path.rsplit("/", 1)[-1] in {n for names in KINDS.values() for n in names}:
            return self.answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})
        self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Type"] != "application/json":
            # In protobuf Helm keeps what it did, for itself: it gets it back as it is.
            return self.answer_with(201, body, self.headers["Content-Type"])
        value = json.loads(body)
        self.objects[f"{self.path.split('?')[0].strip('/')}/{value['metadata']['name']}"] = value
        made.append(value)
        self.answer(201, value)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer_with(200, body, self.headers["Content-Type"])


def main():
    chart, release, namespace, *values = sys.argv[1:]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        # Nothing of the user who runs the test, no cluster of his least of all.
        os.environ["HOME"] = folder
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            del os.environ[name]
        kubeconfig = os.path.join(folder, "config")
        cluster = {"server": f"http://127.0.0.1:{server.server_port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        with open(kubeconfig, "w") as file:
            json.dump(config, file)
        os.environ["KUBECONFIG"] = kubeconfig
        import helm_sdkpy

        configuration = helm_sdkpy.Configuration(namespace=namespace, kubeconfig=kubeconfig)
        given = json.load(open(values[0])) if values else {}
        lint = asyncio.run(helm_sdkpy.Lint(configuration).run(chart))
        # 0 unknown, 1 a hint, 2 a warning, 3 an error.
        worst = max((m["Severity"] for m in lint["Messages"] or []), default=0)
        if worst > 1 or lint["Errors"]:
            sys.exit(f"lint: {lint}")
        install = helm_sdkpy.Install(configuration)
        asyncio.run(install.run(release, chart, values=given, wait=False, timeout=20))
    json.dump(made, sys.stdout)


main()
