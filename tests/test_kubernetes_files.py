"""What the Kubernetes manifests say of pods, keys, names and links, by the schemas and our own code; no cluster."""

import copy
import re
import shutil
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from seedbed.services.tools.cli.settings import list_settings
from seedbed.services.tools.container.role import ContainerRole
from seedbed.shared.figures import learner as learner_figures
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.keys import bind_keys, dial_keys
from seedbed.shared.net.roles import Role as KeyRole

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development extra")
validator = pytest.importorskip("kubernetes_validate", reason="it comes with the development extra")

FOLDER = Path(__file__).resolve().parents[1] / "compose" / "kubernetes"
BASE = FOLDER / "base"
COMPONENTS = ("autoscaling", "gpu")
VERSIONS = ("1.27", "1.37")
KUSTOMIZATION = yaml.safe_load((BASE / "kustomization.yaml").read_text())
NAMESPACE = yaml.safe_load((BASE / "namespace.yaml").read_text())
WORKLOADS = ("Deployment", "StatefulSet")
LINKS = {
    ("actor", "inference"), ("evaluator", "inference"), ("monitor", "inference"), ("inference", "learner"),
    ("monitor", "learner"),
}  # fmt: skip
NAME = "app.kubernetes.io/name"
CHIEF = "learner-0."


def merge(base, patch):
    """As kustomize merges pods: tables by key, lists of named things by name or path."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {key: merge(base.get(key), patch.get(key)) for key in {**base, **patch}}
    if isinstance(base, list) and isinstance(patch, list):
        key = next((key for key in ("name", "mountPath") if all(key in item for item in base + patch)), None)
        if key == "name" and any("mountPath" in item for item in base + patch):
            key = "mountPath"
        if key is None:
            return patch
        found = {item[key]: item for item in base}
        for item in patch:
            found[item[key]] = merge(found.get(item[key]), item)
        return list(found.values())
    return copy.deepcopy(base if patch is None else patch)


def objects():
    """Every object of the base, its pods as they will be."""
    pod = yaml.safe_load((BASE / "pod.yaml").read_text())["spec"]
    found = []
    for file in KUSTOMIZATION["resources"]:
        for item in yaml.safe_load_all((BASE / file).read_text()):
            if item["kind"] in WORKLOADS:
                item["spec"] = merge(item["spec"], pod)
            found.append(item)
    return found


OBJECTS = objects()
PODS = {item["metadata"]["name"]: item["spec"]["template"] for item in OBJECTS if item["kind"] in WORKLOADS}
PLACES = {name: name for name in PODS} | {"monitor": "learner"}  # service → its pod
POLICIES = [item["spec"] for item in OBJECTS if item["kind"] == "NetworkPolicy"]


def container(name):
    """That of a service."""
    own = "service" if name in PODS else name
    (found,) = [item for item in PODS[PLACES[name]]["spec"]["containers"] if item["name"] == own]
    return found


def workload(name):
    """The Deployment or StatefulSet of a name."""
    (found,) = [item for item in OBJECTS if item["metadata"]["name"] == name and item["kind"] in WORKLOADS]
    return found


def variables(name):
    """The environment that its manifest gives it."""
    return {item["name"]: item["value"] for item in container(name)["env"] if "value" in item}


def selects(selector, name):
    """Whether a selector of labels means the pods of this name."""
    labels = PODS[name]["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


@pytest.mark.parametrize("item", [NAMESPACE, *OBJECTS], ids=lambda item: f"{item['kind']}-{item['metadata']['name']}")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_one_that_a_cluster_takes(item, version):
    """By Kubernetes' own schemas, of an old version and a new one; unknown fields are errors."""
    validator.validate(item, version, strict=True)


@pytest.mark.parametrize("name", PLACES)
def test_a_pod_satisfies_the_restricted_standard_and_writes_nowhere_but_its_volumes(name):
    """And the namespace enforces it."""
    pod = PODS[PLACES[name]]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])
    writable = {mount["mountPath"] for mount in container(name)["volumeMounts"] if not mount.get("readOnly")}
    others = {"learner": {"/runs"}, "actor": {"/dev/shm"}, "evaluator": {"/dev/shm"}}
    assert writable == {"/tmp"} | others.get(name, set())
    assert NAMESPACE["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def laid_out(name, keys, folder):
    """What a pod finds below /keys, as the cluster puts it there, from a folder of keys."""
    secrets = {item["name"]: item["files"] for item in KUSTOMIZATION["secretGenerator"]}
    volumes = {volume["name"]: volume.get("secret", {}) for volume in PODS[PLACES[name]]["spec"]["volumes"]}
    for mount in container(name)["volumeMounts"]:
        if not mount["mountPath"].startswith("/keys/"):
            continue
        assert mount["readOnly"] is True
        files = {
            Path(file).name: keys / Path(file).relative_to("keys")
            for file in secrets[volumes[mount["name"]]["secretName"]]
        }
        is_secret = any(file.suffix == ".key" for file in files.values())
        assert volumes[mount["name"]].get("defaultMode") == (0o440 if is_secret else None)
        chosen = {mount["subPath"]: files[mount["subPath"]]} if "subPath" in mount else files
        place = folder / mount["mountPath"].removeprefix("/")
        for file, source in chosen.items():
            target = place if "subPath" in mount else place / file
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)
    return folder / variables(name)["SEEDBED_RUNTIME__KEYS"].removeprefix("/")


def test_a_pod_has_the_keys_that_its_links_need_and_no_others_secrets(tmp_path):
    """Those of `seedbed keys init`, read as the service reads them."""
    keys = tmp_path / "keys"
    Keyring(keys).init()
    found = {name: laid_out(name, keys, tmp_path / name) for name in PLACES}
    assert bind_keys(found["learner"], KeyRole.LEARNER)
    assert bind_keys(found["inference"], KeyRole.INFERENCE)
    assert dial_keys(found["inference"], KeyRole.INFERENCE, KeyRole.LEARNER)
    for name in ("actor", "evaluator"):
        assert dial_keys(found[name], KeyRole.ENVIRONMENT, KeyRole.INFERENCE)
    for server in (KeyRole.LEARNER, KeyRole.INFERENCE):
        assert dial_keys(found["monitor"], KeyRole.MONITOR, server)
    for server, clients in (("learner", 2), ("inference", 2)):
        assert len(list((found[server] / "clients").iterdir())) == clients
    secrets = {name: sorted(path.name for path in (tmp_path / name).rglob("*.key")) for name in PLACES}
    assert secrets == {
        "learner": ["server.key"], "inference": ["client.key", "server.key"], "actor": ["client.key"],
        "evaluator": ["client.key"], "monitor": ["client.key"],
    }  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_what_a_service_is_told_is_what_its_service_understands(name):
    """Its role, and settings that exist."""
    assert "command" not in container(name)  # which would take the place of the image's init
    words = container(name)["args"]
    assert words == ["monitor"] if name == "monitor" else words[:2] == ["container", ContainerRole(name)]
    known = {setting.name for setting in list_settings("")}
    given = [key for key in variables(name) if key.startswith("SEEDBED_") and "__" in key]
    assert {key.removeprefix("SEEDBED_").lower().replace("__", ".") for key in given} <= known


def test_links_go_where_the_services_are_and_the_network_lets_nothing_else_through():
    """Each dialled name is a Service without an address of its own, so that all replicas are found."""
    services = {item["metadata"]["name"]: item["spec"] for item in OBJECTS if item["kind"] == "Service"}
    dialled = {
        (name, re.split(r"[:.]", value.removeprefix("tcp://").removeprefix(CHIEF))[0], int(value.rpartition(":")[2]))
        for name in PLACES
        for key, value in variables(name).items()
        if value.startswith("tcp://") and not key.endswith(("BIND", "ADVERTISE"))
    }
    assert {(name, server) for name, server, _ in dialled} == LINKS
    for _, server, port in dialled:
        assert services[server]["clusterIP"] == "None"
        assert selects({"matchLabels": services[server]["selector"]}, server)
        assert [item["port"] for item in services[server]["ports"]] == [port]
        assert variables(server)[f"SEEDBED_{server.upper()}__BIND"] == f"tcp://0.0.0.0:{port}"
    for way, far in (("ingress", "from"), ("egress", "to")):
        let = {
            (own, peer, port["port"])
            for policy in POLICIES
            for rule in policy.get(way, ())
            for own in PODS
            if selects(policy["podSelector"], own)
            for side in rule[far]
            for peer in PODS
            if "podSelector" in side and selects(side["podSelector"], peer)
            for port in rule.get("ports", [{"port": "any"}])
        }
        ends = {(PLACES[name], server, port) for name, server, port in dialled if PLACES[name] != server}
        links = {(a, b, port) if way == "egress" else (b, a, port) for a, b, port in ends}
        assert let == links | {("learner", "learner", "any")}
    assert any(policy["podSelector"] == {} and "Ingress" in policy["policyTypes"] for policy in POLICIES)


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_every_pod_reaches_the_dns_of_the_cluster(protocol):
    """As a pod, whose port is 5353 on OpenShift, or on the node itself: NodeLocal DNSCache."""
    (every,) = [policy for policy in POLICIES if policy["podSelector"] == {}]
    to_pods, to_node = set(), set()
    for rule in every["egress"]:
        ports = {item["port"] for item in rule["ports"] if item["protocol"] == protocol}
        for peer in rule["to"]:
            if peer.get("namespaceSelector") == {}:
                to_pods |= ports
            elif ip_address("169.254.20.10") in ip_network(peer["ipBlock"]["cidr"]):
                to_node |= ports
    assert to_pods == {53, 5353}
    assert to_node == {53}


def test_ranks_meet_at_the_chief_and_say_where_inference_finds_each():
    """By the names of the pods in their service; the number of ranks is the number of replicas."""
    learner = workload("learner")
    given = variables("learner")
    assert given["MASTER_ADDR"] == f"{CHIEF}{learner['spec']['serviceName']}"
    assert given["SEEDBED_LEARNER__ADVERTISE"] == f"tcp://$(POD).{learner['spec']['serviceName']}:5556"
    (pod,) = [item["valueFrom"] for item in container("learner")["env"] if item["name"] == "POD"]
    assert pod == {"fieldRef": {"fieldPath": "metadata.name"}}
    (run,) = KUSTOMIZATION["configMapGenerator"]
    assert f"WORLD_SIZE={learner['spec']['replicas']}" in run["literals"]
    for name in ("inference", "monitor"):
        assert f"tcp://{CHIEF}learner:5556" in variables(name).values()


def test_evictions_leave_most_of_a_run_and_hold_no_node_back_when_it_is_over():
    """One learner or inference at a time; pods that are not ready, as all are at the end, may be evicted."""
    budgets = {item["metadata"]["name"]: item["spec"] for item in OBJECTS if item["kind"] == "PodDisruptionBudget"}
    assert {name: budget["maxUnavailable"] for name, budget in budgets.items()} == {
        "learner": 1, "inference": 1, "actor": "25%",
    }  # fmt: skip
    for name, budget in budgets.items():
        assert selects(budget["selector"], name)
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_autoscaler_asks_for_a_metric_that_is_made_of_one_of_ours():
    """Autoscaler and adapter use one name for it, and it is computed from a metric of the learner."""
    scaler = yaml.safe_load((FOLDER / "autoscaling" / "actors.yaml").read_text())["spec"]
    (rule,) = yaml.safe_load((FOLDER / "autoscaling" / "adapter.yaml").read_text())["rules"]["external"]
    (metric,) = scaler["metrics"]
    assert scaler["scaleTargetRef"]["name"] in PODS
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    series = f"seedbed_{learner_figures.UPDATE_SECONDS.name}"
    assert rule["seriesQuery"] == f"{series}_sum"
    assert set(re.findall(r"seedbed_\w+", rule["metricsQuery"])) == {f"{series}_sum", f"{series}_count"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    ("busy", "updates", "ratio"), [(1.0, 1, 1.0), (0.5, 1, 2.0), (0.001, 1, 50.0), (0.0, 0, None)], ids=str
)
def test_the_autoscaler_is_told_how_long_the_learner_waits_and_nothing_if_nothing_is_trained(
    busy, updates, ratio, tmp_path
):
    """Computed by Prometheus; `busy` is the share of time that updates take."""
    (rule,) = yaml.safe_load((FOLDER / "autoscaling" / "adapter.yaml").read_text())["rules"]["external"]
    series = f"seedbed_{learner_figures.UPDATE_SECONDS.name}"
    samples = [] if ratio is None else [{"labels": "{}", "value": ratio}]
    case = {
        "interval": "15s",
        "input_series": [
            {"series": f"{series}_sum", "values": f"0+{15 * busy}x20"},
            {"series": f"{series}_count", "values": f"0+{updates}x20"},
        ],
        "promql_expr_test": [{"expr": rule["metricsQuery"], "eval_time": "5m", "exp_samples": samples}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [case]}))
    subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], check=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_makes_objects_that_a_cluster_takes_with_all_components(tmp_path):
    """As a user combines them, with two learner ranks."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes", ignore=shutil.ignore_patterns("keys"))
    Keyring(tmp_path / "kubernetes" / "base" / "keys").init()
    mine = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../kubernetes/base"],
        "components": [f"../kubernetes/{name}" for name in COMPONENTS], "replicas": [{"name": "learner", "count": 2}],
        "configMapGenerator": [{"name": "run", "behavior": "merge", "literals": ["WORLD_SIZE=2"]}],
    }  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    made = subprocess.run(
        ["kubectl", "kustomize", tmp_path / "mine"], check=True, capture_output=True, text=True
    ).stdout
    found = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(made)}
    for item in found.values():
        for version in VERSIONS:
            validator.validate(item, version, strict=True)
    assert found["StatefulSet", "learner"]["spec"]["replicas"] == 2
    (run,) = [item["data"] for (kind, _), item in found.items() if kind == "ConfigMap"]
    assert run["WORLD_SIZE"] == "2"
    assert run["EXPERIMENT"] == "cartpole"
    assert "replicas" not in found["Deployment", "actor"]["spec"]
    pods = {name: item["spec"]["template"]["spec"] for (kind, name), item in found.items() if kind in WORKLOADS}
    parts = {(name, item["name"]): item for name, pod in pods.items() for item in pod["containers"]}
    assert {place for place, item in parts.items() if item["resources"]["limits"].get("nvidia.com/gpu")} == {
        ("learner", "service"), ("inference", "service"),
    }  # fmt: skip
    rolling = found["Deployment", "inference"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}  # no GPU needs to be spare
    assert "SEEDBED_MONITOR__TOKEN" in {item["name"] for item in parts["learner", "monitor"]["env"]}


def test_nobody_is_started_again_when_the_run_is_over_and_one_learner_writes_a_run():
    """A Deployment starts whoever ends; so they stay."""
    assert all(variables(name)["SEEDBED_STAY"] == "1" for name in PODS)
    assert workload("learner")["spec"]["replicas"] == 1


def test_the_runs_stay_when_the_deployment_is_deleted():
    """`kubectl delete -k` deletes every object of the base: a namespace among them would take the claims with it."""
    assert KUSTOMIZATION["namespace"] == NAMESPACE["metadata"]["name"]
    assert not {"Namespace", "PersistentVolumeClaim"} & {item["kind"] for item in OBJECTS}
    assert "persistentVolumeClaimRetentionPolicy" not in workload("learner")["spec"]  # by default it retains them


def test_no_pod_uses_the_claim_of_another():
    """It would hold the claim's volume on its node when the other has to move."""
    assert not any("persistentVolumeClaim" in volume for pod in PODS.values() for volume in pod["spec"]["volumes"])


@pytest.mark.parametrize("name", PLACES)
def test_a_service_that_hangs_or_takes_too_much_is_started_anew(name):
    """Readiness alone would leave it standing."""
    found = container(name)
    check = container("learner")["readinessProbe"]["exec"]["command"]
    assert found["livenessProbe"]["exec"]["command"] == [*check, "--alive"]
    assert "memory" in found["resources"]["limits"]
