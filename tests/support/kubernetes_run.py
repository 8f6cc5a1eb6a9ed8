"""A run in a cluster, by the manifests of compose/kubernetes/ and a kustomization of the user's own beside them."""

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.roles import Role
from tests.support.compose_stack import ROOT, progress
from tests.support.deployment import wait_until
from tests.support.kubernetes_cluster import ADDRESS, Cluster

NAMESPACE = "seedbed"
WAIT_S = 300.0
MANIFESTS = ROOT / "compose" / "kubernetes"
CLIENTS = "keys/inference/clients"
METRIC_PORT = 6500
FOR_TWO_CORES = {  # a cluster's requests add up to more
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"},
    "spec": {"template": {"spec": {"containers": [{"name": "service", "resources": {"requests": {"cpu": "50m"}}}]}}},
}  # fmt: skip
AT_ONCE = [  # the autoscaler's patience, which is minutes
    {"op": "replace", "path": "/spec/behavior", "value": {
        way: {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 8, "periodSeconds": 5}]}
        for way in ("scaleUp", "scaleDown")}},
    {"op": "replace", "path": "/spec/maxReplicas", "value": 4},
]  # fmt: skip


class Run:
    """A context manager that leaves nothing in the cluster. `settings` are SECTION__KEY=value."""

    def __init__(self, cluster: Cluster, folder: Path, *settings: str, ranks: int, autoscaled: bool = False) -> None:
        self.cluster = cluster
        self._folder, self._autoscaled = folder, autoscaled
        shutil.copytree(MANIFESTS, folder / "kubernetes", ignore=shutil.ignore_patterns("keys"))
        self._base = folder / "kubernetes" / "base"
        self.keyring = Keyring(self._base / "keys")
        self.keyring.init()
        (folder / "mine").mkdir()
        self.runs: list[Path] = []
        self.change(*settings, ranks=ranks)
        self.token = secrets.token_hex(16)

    def change(self, *settings: str, ranks: int) -> None:
        """Write the user's kustomization anew, for the next `apply`."""
        patches = [{"target": {"kind": "Deployment|StatefulSet"}, "patch": json.dumps(FOR_TWO_CORES)}]
        if self._autoscaled:
            patches.append({"target": {"kind": "HorizontalPodAutoscaler"}, "patch": json.dumps(AT_ONCE)})
        mine = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": NAMESPACE,
            "resources": ["../kubernetes/base"],
            "components": ["../kubernetes/autoscaling"] if self._autoscaled else [],
            "replicas": [{"name": "learner", "count": ranks}], "patches": patches,
            "configMapGenerator": [{
                "name": "run", "behavior": "merge",
                "literals": [f"WORLD_SIZE={ranks}", *(f"SEEDBED_{setting}" for setting in settings)],
            }],
        }  # fmt: skip
        (self._folder / "mine" / "kustomization.yaml").write_text(yaml.safe_dump(mine))
        self.runs += [self.cluster.offer_volume(f"runs-learner-{rank}") for rank in range(len(self.runs), ranks)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
        for rank, volume in enumerate(self.runs):
            self.cluster.kubectl("delete", "persistentvolume", f"{NAMESPACE}-runs-learner-{rank}", "--ignore-not-found")
            shutil.rmtree(volume)

    def apply(self) -> None:
        """As the page of documentation says."""
        self.cluster.kubectl("apply", f"--filename={self._base}/namespace.yaml")
        if self._autoscaled and not self.cluster.get("secret", "monitor-token"):
            words = ("create", "secret", "generic", f"--namespace={NAMESPACE}", "monitor-token")
            self.cluster.kubectl(*words, f"--from-literal=token={self.token}")
        self.cluster.apply(self._folder / "mine")

    def remove(self) -> None:
        """Delete everything, the claims too, and wait until it is gone."""
        if not self.cluster.get("namespace", NAMESPACE):
            return
        self.remove_pods()
        self.cluster.kubectl("delete", f"--namespace={NAMESPACE}", "persistentvolumeclaim", "--all")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, f"--timeout={WAIT_S:.0f}s")

    def remove_pods(self) -> None:
        """Delete what makes pods, and wait until they are gone."""
        self.cluster.kubectl("delete", f"--namespace={NAMESPACE}", "deployment,statefulset", "--all")
        wait_until(lambda: not self.cluster.get("pods"), "all pods are gone", WAIT_S)

    def replace_environments_key(self, name: str) -> None:
        """In the files: a new key for environments takes the place of the one that they have."""
        self.keyring.new(Role.ENVIRONMENT, name)
        file = self._base / "kustomization.yaml"
        text = file.read_text()
        for place in ("environment/{}/", f"{CLIENTS}/environment-{{}}.pub"):
            assert place.format("default") in text
            text = text.replace(place.format("default"), place.format(name))
        file.write_text(text)

    def progress(self) -> tuple[float, float]:
        """(epoch, trained steps) of the run."""
        return progress(self.runs[0] / "cartpole")

    def summary(self) -> dict[str, Any]:
        """The run's summary; empty before it has one."""
        try:
            return dict(json.loads((self.runs[0] / "cartpole" / "summary.json").read_text()))
        except FileNotFoundError:
            return {}

    def state(self) -> str:
        """As `seedbed runs` tells it in the chief's pod; empty while that does not answer, or there is no run."""
        words = ("exec", f"--namespace={NAMESPACE}", "learner-0", "--", "env", "-C", "/", "seedbed", "runs", "--json")
        try:
            found = json.loads(self.cluster.kubectl(*words, check=False))
        except ValueError:
            return ""
        return str(found[0]["state"]) if found else ""

    def logs(self, name: str) -> str:
        """What a pod has printed in its container's present life, or one of a Deployment as in deployment/NAME."""
        return self.cluster.kubectl("logs", f"--namespace={NAMESPACE}", name, "--container=service", check=False)

    def wait_ready(self, name: str, number: int, without: Sequence[str] = ()) -> None:
        """Wait until a service has exactly so many ready pods, none of them one of these lives."""

        def are_ready() -> bool:
            lives = self.lives(name)
            return len(lives) == number and not set(without) & set(lives)

        wait_until(are_ready, f"{number} new pods of {name} are ready", WAIT_S)

    def lives(self, name: str) -> list[str]:
        """Return which pods of a service are ready, and in which life of their container."""
        ready = self.cluster.ready(name)
        return [
            f"{pod['metadata']['uid']}/{_restarts(pod, 'service')}"
            for pod in self.cluster.pods(name)
            if pod["metadata"]["name"] in ready
        ]

    def monitor_life(self) -> int:
        """Return how often the monitor beside the chief was started again; -1 while its page does not answer."""
        check = ("python", "-S", "-m", "seedbed.shared.runtime.health")
        words = ("exec", f"--namespace={NAMESPACE}", "learner-0", "--container=monitor", "--", *check)
        if self.cluster.kubectl(*words, check=False).strip() != "ready":
            return -1
        return _restarts(self.cluster.get("pod", "learner-0"), "monitor")

    def wait_trained(self, epoch: float = 0.0) -> None:
        """Wait until more is trained than now, in this epoch of the learner or a later one."""
        before = self.progress()
        wait_until(lambda: self.progress() > max(before, (epoch, 0.0)), "training goes on", WAIT_S)


def _restarts(pod: dict[str, Any], container: str) -> int:
    """Return how often a container of a pod was started again."""
    (found,) = [item for item in pod["status"]["containerStatuses"] if item["name"] == container]
    return int(found["restartCount"])


class ExternalMetric:
    """A number that the cluster's autoscalers ask for, in place of Prometheus and its adapter. A context manager."""

    def __init__(self, cluster: Cluster, folder: Path, metric: str) -> None:
        self._cluster, self._folder, self._metric = cluster, folder, metric
        self._file = folder / "value"

    def set(self, value: str) -> None:
        """What the next one who asks is told, a quantity of Kubernetes such as 1150m."""
        self._file.write_text(value)

    def __enter__(self) -> Self:
        pem = self._folder / "server.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=metrics", "-keyout", str(pem),
             "-out", str(pem)], check=True, capture_output=True,
        )  # fmt: skip
        program = ROOT / "tests" / "support" / "external_metrics.py"
        self._cluster.start(
            "external-metrics", sys.executable, str(program), ADDRESS, str(METRIC_PORT), str(pem), self._metric,
            str(self._file),
        )  # fmt: skip
        self._cluster.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(self._objects()))
        return self

    def __exit__(self, *_: object) -> None:
        made = yaml.safe_dump_all(self._objects())
        self._cluster.kubectl("delete", "--ignore-not-found", "--filename=-", stdin=made)

    def _objects(self) -> list[dict[str, Any]]:
        place = {"name": "external-metrics", "namespace": "kube-system"}
        return [
            {"apiVersion": "v1", "kind": "Service", "metadata": place, "spec": {"ports": [{"port": METRIC_PORT}]}},
            {"apiVersion": "v1", "kind": "Endpoints", "metadata": place,
             "subsets": [{"addresses": [{"ip": ADDRESS}], "ports": [{"port": METRIC_PORT}]}]},
            {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
             "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
             "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
                      "versionPriority": 100, "insecureSkipTLSVerify": True,
                      "service": {"name": place["name"], "namespace": place["namespace"], "port": METRIC_PORT}}},
        ]  # fmt: skip


def measure(run: Run, folder: Path) -> float:
    """Return what the adapter would tell the autoscaler: its rule, computed by a Prometheus that asks the monitor."""
    files = MANIFESTS / "autoscaling"
    config = yaml.safe_load((files / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "5s", "scrape_timeout": "4s"}
    config["scrape_configs"][0]["authorization"]["credentials_file"] = str(folder / "token")
    (folder / "token").write_text(run.token)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (rule,) = yaml.safe_load((files / "adapter.yaml").read_text())["rules"]["external"]
    run.cluster.start(
        "prometheus", "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:9090",
    )  # fmt: skip
    ask = ("promtool", "query", "instant", "http://127.0.0.1:9090", rule["metricsQuery"])
    said = wait_until(lambda: run.cluster.run(*ask).strip(), "Prometheus has a value", WAIT_S)
    return float(said.split("=>")[1].split("@")[0])
