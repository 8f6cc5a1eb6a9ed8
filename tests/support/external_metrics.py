"""`python external_metrics.py ADDRESS PORT PEM_FILE METRIC VALUE_FILE`: the API of external metrics, with one metric.

It stands for Prometheus and its adapter: an autoscaler that asks for the metric gets the number in the file.
"""

import json
import ssl
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GROUP_VERSION = "external.metrics.k8s.io/v1beta1"


def answer(path: str, metric: str, value: str) -> dict[str, Any] | None:
    """Return what the API answers to a path; None for a path that it does not have."""
    place = path.partition("?")[0].removeprefix(f"/apis/{GROUP_VERSION}").strip("/").split("/")
    if place == [""]:
        resource = {"name": metric, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION, "resources": [resource]}
    if place[0] == "namespaces" and place[2:] == [metric]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {"metricName": metric, "metricLabels": {}, "timestamp": now, "value": value}
        return {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": [item]}
    return None


def main() -> None:
    """Serve until killed."""
    address, port, pem_file, metric, value_file = sys.argv[1:]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(self.path, metric, Path(value_file).read_text().strip())
            body = json.dumps(found).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem_file)
    with ThreadingHTTPServer((address, int(port)), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
