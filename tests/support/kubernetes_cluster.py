"""A real control plane and node of Kubernetes on this machine, for `tests/kubernetes/`; nothing of it stays.

etcd, API server, controller manager, scheduler, containerd and kubelet run in namespaces of their own (`Node`) and end
with them, and so do all pods. What a cluster usually has beside them is not here: no network plugin that enforces
policies, no kube-proxy (seedbed's services need no address of their own), no CoreDNS (`cluster_dns.py` stands in),
and no storage class (`Cluster.offer_volume` makes the volumes that claims are bound to).
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support import host
from tests.support.compose_stack import ROOT, USER, docker
from tests.support.deployment import wait_until
from tests.support.host import Host

PROGRAMS_HERE = Path(os.environ.get("KUBERNETES_BIN") or ROOT / ".kubernetes")  # what tests/kubernetes/build.sh makes
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "pause")
OTHERS = ("etcd", "containerd", "ctr", "runc", "kubectl", "openssl", "prometheus", "promtool")
PLUGINS = Path("/usr/lib/cni")
CGROUPS = Path("/sys/fs/cgroup")
SYSCTLS = {  # what a kubelet sets for the whole machine, unless it finds it so: it is shown files that say so
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000, "kernel/keys/root_maxbytes": 25_000_000,
}  # fmt: skip
ADDRESS, PODS, SERVICES = "10.77.0.1", "10.88.0.0/16", "10.96.0.0/16"
ETCD, API = "http://127.0.0.1:2379", "https://localhost:6443"
PAUSE = "seedbed-pause:test"
COMMAND_S, START_S = 300.0, 120.0
NEWER = {  # API versions that an old server does not know: what it has instead, and the fields that it has not
    "autoscaling/v2": ("autoscaling/v2beta2", ()),
    "policy/v1": ("policy/v1beta1", ("unhealthyPodEvictionPolicy",)),
}

CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/{pause}"
restrict_oom_score_adj = true  # root of a container may not lower it
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/network"
"""
NETWORK = {
    "cniVersion": "0.4.0", "name": "pods",
    "plugins": [
        {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
                  "dataDir": "/run/cni"}},
    ],
}  # fmt: skip
KUBELET = {
    "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"}, "clusterDomain": "cluster.local", "clusterDNS": [ADDRESS],
    "cgroupDriver": "cgroupfs", "failSwapOn": False, "resolvConf": "", "syncFrequency": "10s",
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100,
}  # fmt: skip


@cache
def why_not() -> str:
    """Return why there can be no cluster here; empty if there can."""
    if missing := [program for program in PROGRAMS if not (PROGRAMS_HERE / program).is_file()]:
        return f"{PROGRAMS_HERE} has no {', '.join(missing)}: tests/kubernetes/build.sh {PROGRAMS_HERE} makes them"
    if not (PLUGINS / "bridge").is_file():
        return f"there is no {PLUGINS}/bridge: install containernetworking-plugins"
    if not all((CGROUPS / name).is_dir() for name in ("memory", "cpu", "cpuset")):
        return "this version's kubelet needs control groups of version 1"
    return host.why_not(*OTHERS)


class Node(Host):
    """A context manager: the host of the whole cluster, with daemons that last as long as it."""

    BOOT = (
        "ip link add eth0 type bridge", f"ip address add {ADDRESS}/24 dev eth0", "ip link set eth0 up",
        "mount --make-rshared /", "mount -t tmpfs none /var/lib", "mount -t tmpfs none /var/log",
        "mkdir -p /var/lib/kubelet",
        "printf '127.0.0.1 localhost node1\\n' >/run/hosts", "mount --bind /run/hosts /etc/hosts",
        f"printf 'nameserver {ADDRESS}\\nsearch cluster.local\\n' >/run/resolv.conf",
        "mount --bind /run/resolv.conf /etc/resolv.conf",
        *(f"echo {value} >/run/sysctl-{number} && mount --bind /run/sysctl-{number} /proc/sys/{name}"
          for number, (name, value) in enumerate(SYSCTLS.items())),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__("node1")
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
            self.run("sh", "-c", " && ".join(self.BOOT))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in self._daemons:
            process.wait()

    def start_daemon(self, log: Path, *words: str) -> None:
        """Start a program that lasts as long as the node."""
        with log.open("ab") as file:
            self._daemons.append(
                subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
            )


class Cluster:
    """A context manager. The folder keeps the state, the volumes and the logs of the daemons."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node()
        self._token = secrets.token_hex(16)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder / "containerd", ignore_errors=True)  # gigabytes of images
            stack.callback(_remove_cgroups)
            self._write_files()
            stack.enter_context(self.node)
            self._start_control_plane()
            self._start_node()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # What a user does

    def kubectl(self, *words: str, check: bool = True, stdin: str = "", timeout_s: float = COMMAND_S) -> str:
        """Return what a kubectl command prints: its output, or if it fails without `check` its errors."""
        done = subprocess.run(
            self.node.command("kubectl", f"--kubeconfig={self.folder}/kubeconfig", *words), input=stdin,
            capture_output=True, text=True, timeout=timeout_s, check=False, env=self._environment(),
        )  # fmt: skip
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout if done.returncode == 0 else done.stderr

    def apply(self, folder: Path) -> None:
        """As `kubectl apply -k`, with the API versions that this server knows."""
        objects = yaml.safe_load_all(self.kubectl("kustomize", str(folder)))
        known = self.kubectl("api-versions").split()
        self.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(older(objects, known)))

    def get(self, kind: str, name: str = "", namespace: str = "seedbed") -> Any:
        """Return an object as the API has it, {} if there is none; without a name, the list of all of the kind."""
        words = ("get", kind, *([name] if name else ()), f"--namespace={namespace}", "--output=json")
        try:
            found = json.loads(self.kubectl(*words, check=False))
        except ValueError:
            found = {}
        return found if name else found.get("items", [])

    def pods(self, name: str, namespace: str = "seedbed") -> list[dict[str, Any]]:
        """Return the pods that a Deployment or StatefulSet of this name made, without those that are being deleted."""
        return [
            pod
            for pod in self.get("pods", namespace=namespace)
            if pod["metadata"]["labels"].get("app.kubernetes.io/name") == name
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def ready(self, name: str) -> list[str]:
        """Return the names of those of a Deployment's or StatefulSet's pods that are ready."""
        return [pod["metadata"]["name"] for pod in self.pods(name) if _is_ready(pod)]

    def offer_volume(self, claim: str, namespace: str = "seedbed") -> Path:
        """Make a folder the volume of a claim, and return it."""
        folder = self.folder / "volumes" / namespace / claim
        folder.mkdir(parents=True)
        os.chown(folder, USER, USER)
        volume = {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{namespace}-{claim}"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}, "hostPath": {"path": str(folder)},
                "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"name": claim, "namespace": namespace},
            },
        }  # fmt: skip
        self.kubectl("apply", "--filename=-", stdin=json.dumps(volume))
        return folder

    def kill_process(self, pod: str, variable: str) -> None:
        """`kill -9` to the service of a pod that has this variable, as when memory is short. It is started again."""
        for entry in filter(lambda entry: entry.name.isdecimal(), Path("/proc").iterdir()):
            with suppress(OSError):  # it has ended, or is the kernel's
                items = (entry / "environ").read_bytes().split(b"\0")
                found = dict(item.partition(b"=")[::2] for item in items)
                if found.get(b"HOSTNAME") == pod.encode() and variable.encode() in found:
                    os.kill(int(entry.name), signal.SIGKILL)

    def load_image(self, image: str) -> None:
        """Copy an image from the Docker engine, which made it, to the node."""
        file = self.folder / "image.tar"
        docker("save", "--output", str(file), image)
        try:
            self._ctr("images", "import", str(file))
        finally:
            file.unlink()

    def start(self, name: str, *words: str) -> None:
        """Start a program on the node, with a log of this name; it lasts as long as the cluster."""
        self.node.start_daemon(self.folder / "logs" / f"{name}.log", *words)

    def run(self, *words: str) -> str:
        """Return what a program prints that is run on the node; empty if it fails."""
        done = subprocess.run(self.node.command(*words), capture_output=True, text=True, timeout=COMMAND_S, check=False)
        return done.stdout if done.returncode == 0 else ""

    # How it is started

    def _environment(self) -> dict[str, str]:
        mine = {name: text for name, text in os.environ.items() if not name.startswith(("KUBE", "SEEDBED_"))}
        return mine | {"HOME": str(self.folder), "NO_PROXY": "*"}

    def _write_files(self) -> None:
        folder = self.folder
        for name in ("network", "containerd", "certificates", "etcd", "logs"):
            (folder / name).mkdir(parents=True)
        (folder / "network" / "pods.conflist").write_text(json.dumps(NETWORK))
        (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, pause=PAUSE, plugins=PLUGINS))
        (folder / "kubelet.json").write_text(json.dumps(KUBELET))
        (folder / "tokens.csv").write_text(f'{self._token},admin,admin,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", f"{folder}/accounts.key", "2048"], check=True, capture_output=True)
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": API, "certificate-authority": self._authority}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
        }  # fmt: skip
        (folder / "kubeconfig").write_text(json.dumps(config))
        for name in ("tokens.csv", "kubeconfig"):
            (folder / name).chmod(0o600)

    @property
    def _authority(self) -> str:
        return f"{self.folder}/certificates/apiserver.crt"  # the API server makes it

    def _start(self, program: str, *words: str) -> None:
        path = PROGRAMS_HERE / program if program in PROGRAMS else program
        self.start(program, str(path), *words)

    def _start_control_plane(self) -> None:
        folder, certificates = self.folder, f"--cert-dir={self.folder}/certificates"
        self._start(
            "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}",
            "--logger=zap", "--unsafe-no-fsync",
        )  # fmt: skip
        self._start(
            "kube-apiserver", certificates, f"--etcd-servers={ETCD}", f"--advertise-address={ADDRESS}",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={SERVICES}", "--service-account-issuer=https://kubernetes",
            f"--service-account-key-file={folder}/accounts.key", "--enable-aggregator-routing=true",
            f"--service-account-signing-key-file={folder}/accounts.key",
            "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        wait_until(lambda: self.kubectl("get", "--raw=/readyz", check=False) == "ok", "the API answers", START_S)
        alike = (certificates, f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false")
        self._start(
            "kube-controller-manager", *alike, f"--root-ca-file={self._authority}",
            f"--service-account-private-key-file={folder}/accounts.key", "--horizontal-pod-autoscaler-sync-period=3s",
        )  # fmt: skip
        self._start("kube-scheduler", *alike)

    def _start_node(self) -> None:
        folder = self.folder
        self._start("containerd", f"--config={folder}/containerd.toml")
        wait_until(lambda: self._ctr("version", check=False), "containerd answers", START_S)
        _make_pause_image(folder / "pause")
        self.load_image(PAUSE)
        dns = ROOT / "tests" / "support" / "cluster_dns.py"
        self.start("dns", sys.executable, str(dns), ADDRESS, API, self._token, self._authority)
        self._start(
            "kubelet", f"--cert-dir={folder}/certificates", f"--kubeconfig={folder}/kubeconfig",
            f"--config={folder}/kubelet.json", "--container-runtime=remote",
            "--container-runtime-endpoint=unix:///run/containerd.sock", "--hostname-override=node1",
            f"--node-ip={ADDRESS}",
        )  # fmt: skip
        wait_until(lambda: _is_ready(self.get("node", "node1")), f"the node is ready; see {folder}/logs", START_S)

    def _ctr(self, *words: str, check: bool = True) -> str:
        command = self.node.command("ctr", "--address=/run/containerd.sock", "--namespace=k8s.io", *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout if done.returncode == 0 else ""


def older(objects: Iterable[dict[str, Any]], known: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Yield objects in API versions that a server knows, without the fields that these do not have."""
    for item in objects:
        version, without = NEWER.get(item["apiVersion"], ("", ()))
        if version and item["apiVersion"] not in known:
            item["apiVersion"] = version
            for field in without:
                item["spec"].pop(field, None)
        yield item


def _is_ready(item: dict[str, Any]) -> bool:
    """Return whether a pod or a node is ready."""
    conditions = item.get("status", {}).get("conditions", ())
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def _make_pause_image(folder: Path) -> None:
    """Make the image of the process that holds a pod's namespaces."""
    folder.mkdir()
    shutil.copy(PROGRAMS_HERE / "pause", folder / "pause")
    (folder / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
    docker("build", "--tag", PAUSE, str(folder))


def _remove_cgroups() -> None:
    """Remove the empty control groups that the kubelet's pods leave."""
    for top in CGROUPS.glob("*/kubepods"):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
