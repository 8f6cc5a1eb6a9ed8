"""What the compose files promise about security, read from them and the images' recipe; no engine is needed.

`tests/compose/` shows the same of running containers.
"""

import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development extra")

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for path in (ROOT / "compose").glob("*.yaml") if "services" in (yaml.safe_load(path.read_text()) or {})
)
MAIN = ROOT / "compose" / "compose.yaml"
ROLES = {
    "learner": "learner", "inference": "inference", "actor": "environment", "evaluator": "environment",
    "monitor": "monitor",
}  # fmt: skip
DATA_PORTS = ("5555", "5556")


def services(path: Path) -> dict:
    """Services as written, merge keys resolved."""
    return yaml.safe_load(path.read_text())["services"]


def own_services() -> list:
    """(file, name, service) of everything that is ours: built from this tree."""
    return [
        (path.name, name, service)
        for path in FILES
        for name, service in services(path).items()
        if path == MAIN or "build" in service
    ]


@pytest.mark.parametrize("name", sorted(services(MAIN)))
def test_whoever_gets_into_a_container_can_do_nothing_there(name):
    """No root, nothing to write but /tmp, no capabilities and no way to gain any; but the learner must become so."""
    service = services(MAIN)[name]
    assert service["user"] == f"${{SEEDBED_UID:-{0 if name == 'learner' else 1000}}}:${{SEEDBED_GID:-1000}}"
    needed = ["CHOWN", "SETUID", "SETGID", "SETPCAP", "KILL"] if name == "learner" else None
    assert service.get("cap_add") == needed
    assert ("--as-owner" in service["command"]) == (name == "learner")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]


@pytest.mark.parametrize("name", sorted(services(MAIN)))
def test_no_service_takes_the_whole_machine(name):
    """Memory, processes and logs have a limit each."""
    service = services(MAIN)[name]
    assert service["mem_limit"] == "${MEMORY:-8g}"
    assert service["pids_limit"] > 0
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize(("file", "name", "service"), own_services(), ids=lambda item: str(item)[:20])
def test_no_file_takes_protection_away(file, name, service):
    """Neither the main file nor an override; only the page has a port, and only the address that the user names."""
    forbidden = {"privileged", "cap_add", "user", "pid", "ipc", "devices"}
    if file == MAIN.name:
        forbidden -= {"user", "cap_add"} if name == "learner" else {"user"}
    assert not set(service) & forbidden
    assert service.get("network_mode") in (None, "none")
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))
    if name == "monitor":
        assert service["ports"] == ["${MONITOR_ADDRESS:-127.0.0.1}:${MONITOR_PORT:-8080}:8080"]
        assert service["environment"]["SEEDBED_MONITOR__PUBLISHED"] == "${MONITOR_ADDRESS:-127.0.0.1}"
        assert service["environment"]["SEEDBED_MONITOR__PUBLISHED_PORT"] == "${MONITOR_PORT:-8080}"
    else:
        assert "ports" not in service, f"{file}: {name} publishes a port"


def test_links_have_no_way_out_and_no_published_port():
    """The network of the links is internal, and what binds on it is published by nobody."""
    assert yaml.safe_load(MAIN.read_text())["networks"]["links"] == {"internal": True}
    for path in FILES:
        for name, service in services(path).items():
            for port in service.get("ports", ()):
                assert port.startswith(("127.0.0.1:", "${MONITOR_ADDRESS:-127.0.0.1}:")), f"{path.name}: {name}"
                assert not any(number in port for number in DATA_PORTS), f"{path.name}: {name}"


@pytest.mark.parametrize(("name", "role"), ROLES.items())
def test_a_service_sees_the_keys_of_its_role_alone_and_cannot_change_them(name, role):
    """A volume for each role; every link has keys."""
    service = services(MAIN)[name]
    mounted = [volume for volume in service["volumes"] if "/keys" in volume]
    assert mounted == [f"keys-{role}:/keys/{role}:ro"]
    assert service["environment"]["SEEDBED_RUNTIME__KEYS"].startswith(f"/keys/{role}")
    assert set(service["networks"]) == ({"links", "page"} if name == "monitor" else {"links"})


def test_keys_are_made_by_a_service_that_nobody_can_reach_and_that_keeps_what_is_there():
    """All roles' volumes are in one place for that moment alone."""
    keys = services(MAIN)["keys"]
    assert keys["network_mode"] == "none"
    assert keys["command"].endswith("--keep")
    assert "restart" not in keys
    names = {volume.partition(":")[0] for volume in keys["volumes"]}
    assert names == {volume for volume in yaml.safe_load(MAIN.read_text())["volumes"] if volume.startswith("keys-")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_has_a_default(path):
    """Nothing must be set before the first start; and nothing that docker-compose 1.29 or Compose v2 alone knows."""
    text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE)
    used = re.findall(r"\$\{([^}]*)\}", text)
    assert all(re.fullmatch(r"[A-Z_]+:-[^${}]*", variable) for variable in used), used
    assert not set(yaml.safe_load(text)) & {"version", "name", "include"}


@pytest.mark.parametrize("name", sorted(ROLES))
def test_every_service_logs_in_the_format_that_is_asked_for(name):
    """Readable by default."""
    assert services(MAIN)[name]["environment"]["SEEDBED_RUNTIME__LOG_FORMAT"] == "${LOG_FORMAT:-text}"


def test_prometheus_may_write_where_it_keeps_what_it_gathers():
    """A tmpfs is root's, with the mode of the image's folder, where only the owner may write."""
    (place,) = services(ROOT / "compose" / "metrics.yaml")["prometheus"]["tmpfs"]
    assert place == "/prometheus:uid=${SEEDBED_UID:-1000},gid=${SEEDBED_GID:-1000}"


def test_images_run_as_nobody_and_hold_no_more_than_they_need():
    """Every image ends with a user that is not root and has a health check; the context is a list of what is let in."""
    recipe = (ROOT / "compose" / "Dockerfile").read_text()
    for target in ("actor", "compute"):
        stage = re.search(rf"^FROM \S+ AS {target}\n(.*?)(?=^FROM |\Z)", recipe, re.MULTILINE | re.DOTALL)
        assert stage.group(1).strip().endswith("USER 1000:1000")
    assert "HEALTHCHECK" in recipe
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


def test_a_service_that_still_starts_can_be_stopped():
    """A container's first process is not ended by a signal that it does not handle yet, so an init comes first."""
    recipe = (ROOT / "compose" / "Dockerfile").read_text()
    assert re.findall(r"^ENTRYPOINT (.*)", recipe, re.MULTILINE) == ['["tini", "-s", "--", "seedbed"]']


def test_debian_packages_of_a_service_are_installed_by_its_image():
    """One name a line; where a folder has no such file, nothing is asked of Debian's mirror."""
    recipe = (ROOT / "compose" / "Dockerfile").read_text()
    assert "COPY services/${SERVICE}/requirements.txt services/${SERVICE}/packages.tx[t] /build/service/" in recipe
    assert "if [ -f service/packages.txt ]" in recipe
    listed = {path.parent.name: path.read_text().splitlines() for path in (ROOT / "services").glob("*/packages.txt")}
    assert "procgen" in listed
    names = [line for lines in listed.values() for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) for name in names)


def test_plain_up_in_the_root_finds_the_files():
    """`.env` names them; that of compose/, which Compose v2 reads with -f, is the same file."""
    variables = dict(
        line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if line and not line.startswith("#")
    )
    assert (ROOT / variables["COMPOSE_FILE"]).is_file()
    assert (ROOT / "compose" / ".env").resolve() == ROOT / ".env"


def test_the_tree_holds_no_secret_and_no_way_around_the_keys():
    """No key file, and no compose file that makes a link without one; folders for keys are left out of both."""
    tracked = subprocess.run(["git", "ls-files", "*.key"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert tracked.stdout == ""
    assert {"/keys/", "/compose/kubernetes/base/keys/"} <= set((ROOT / ".gitignore").read_text().splitlines())
    for path in FILES:
        assert 'SEEDBED_RUNTIME__KEYS: ""' not in path.read_text()
