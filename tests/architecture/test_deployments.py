"""compose.yaml and the Kubernetes manifests say what is understood: by their schemas, the command line, the service and
the image.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadmaster.api import serve
from loadmaster.api.cli.app import parser
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import PREFIX, Settings
from loadmaster.api.worker import supervisor
from tests.architecture.dockerfile import stages
from tests.architecture.sources import ROOT

yaml = pytest.importorskip("yaml")

COMPOSE = ROOT / "compose.yaml"
KUBERNETES = ROOT / "deploy" / "kubernetes"
# Read by libpq.
OF_POSTGRESQL = {"PGPASSWORD"}
SETTINGS = {PREFIX + field.name.upper() for field in dataclasses.fields(Settings)}
Document = dict[str, Any]


def services() -> dict[str, Document]:
    found = yaml.safe_load(COMPOSE.read_text())["services"]
    assert isinstance(found, dict)
    return found


def ours() -> dict[str, Document]:
    return {name: service for name, service in services().items() if service["image"] == "loadmaster"}


def resources() -> list[Document]:
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [document for name in names for document in yaml.safe_load_all((KUBERNETES / name).read_text())]


def deployments() -> list[Document]:
    return [resource for resource in resources() if resource["kind"] == "Deployment"]


def containers() -> list[Document]:
    return [container for d in deployments() for container in d["spec"]["template"]["spec"]["containers"]]


def image(word: str) -> str:
    (found,) = [i.rest for i in stages()[-1] if i.word == word]
    return found


def expect_command(words: list[str]) -> None:
    """The entry point takes them."""
    assert json.loads(image("ENTRYPOINT")) == ["loadmaster"]
    parser().parse_args(words)


def variables(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_compose_is_of_its_schema() -> None:
    compose_spec = pytest.importorskip("compose_spec")
    found = compose_spec.PyOptions(apply_merge=True).from_yaml(COMPOSE.read_text())
    assert set(found.service_names()) == {"database", "server", "worker"}


def test_compose_has_a_server_and_two_workers_on_one_database() -> None:
    assert {name: service["command"] for name, service in ours().items()} == {"server": ["serve"], "worker": ["worker"]}
    assert ours()["worker"]["deploy"]["replicas"] == 2
    assert len({service["environment"]["LOADMASTER_DATABASE_URL"] for service in ours().values()}) == 1


@pytest.mark.parametrize("name", ours())
def test_compose_services_are_ours_to_run(name: str) -> None:
    service = ours()[name]
    expect_command(service["command"])
    environment = service["environment"]
    assert environment.keys() <= SETTINGS | OF_POSTGRESQL
    known = {key: value for key, value in environment.items() if key in SETTINGS and "${" not in value}
    settings = Settings.from_environment(known)
    host = settings.database_url.rpartition("@")[2].partition("/")[0]
    assert service["depends_on"] == {host: {"condition": "service_healthy"}}
    assert "healthcheck" in services()[host]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    # What the read-only root lacks: the image's volume, and where temporary files go.
    assert {mount.partition(":")[0] for mount in service["tmpfs"]} == {"/data", "/tmp"}
    user, group = image("USER").split(":")
    assert f"/data:uid={user},gid={group},mode=0700" in service["tmpfs"]


def test_compose_lets_in_whom_it_knows() -> None:
    server = ours()["server"]
    assert server["environment"]["LOADMASTER_KEYS"] == "required"
    assert server["ports"] == [f"127.0.0.1:{image('EXPOSE')}:{image('EXPOSE')}"]
    assert all("ports" not in service for name, service in services().items() if name != "server")
    asked = [service["environment"].get(name) for service in services().values() for name in ("POSTGRES_PASSWORD",)]
    assert [value for value in asked if value] == ["${POSTGRES_PASSWORD:?put it into .env}"]


def test_a_server_has_the_time_to_stop_in_good_order() -> None:
    needed_s = serve._FINISH_REQUESTS_S + supervisor._STOP_WITHIN_S
    assert {service["stop_grace_period"] for service in ours().values()} == {"30s"}
    assert {d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for d in deployments()} == {30}
    assert needed_s < 30


def test_compose_keeps_the_database() -> None:
    mounts = dict(mount.split(":") for mount in services()["database"]["volumes"])
    assert mounts.keys() == yaml.safe_load(COMPOSE.read_text())["volumes"].keys()


@pytest.mark.parametrize("resource", resources(), ids=lambda r: f"{r['kind']}-{r['metadata']['name']}")
def test_manifests_are_of_their_schemas(resource: Document) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_manifests_are_put_together(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "database.env").write_text((KUBERNETES / "database.env.example").read_text())
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    assert sorted(document["kind"] for document in found) == sorted(
        [*(resource["kind"] for resource in resources()), "ConfigMap", "Secret"]
    )
    made = {d["metadata"]["name"] for d in found if d["kind"] in ("ConfigMap", "Secret")}
    for document in (d for d in found if d["kind"] == "Deployment"):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        assert {source[kind]["name"] for source in container["envFrom"] for kind in source} == made


def test_every_manifest_is_listed() -> None:
    listed = set(yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"])
    assert listed == {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}


def test_manifests_are_of_this_version() -> None:
    import loadmaster

    (image,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert (image["name"], image["newTag"]) == ("loadmaster", loadmaster.__version__)


@pytest.mark.parametrize("deployment", deployments(), ids=lambda d: d["metadata"]["name"])
def test_pods_are_confined(deployment: Document) -> None:
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    user, group = map(int, image("USER").split(":"))
    context = pod["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"]) == (True, user, group)
    # A Service named loadmaster would set LOADMASTER_PORT otherwise.
    assert pod["enableServiceLinks"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted.values()) == {"/data", "/tmp"}
    assert {volume["name"] for volume in pod["volumes"]} == mounted.keys()


@pytest.mark.parametrize("container", containers(), ids=lambda c: c["name"])
def test_containers_are_ours_to_run(container: Document) -> None:
    expect_command(container["args"])
    assert {entry["name"] for entry in container.get("env", [])} <= SETTINGS
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    made = {entry["name"] for kind in ("secretGenerator", "configMapGenerator") for entry in kustomization[kind]}
    assert {source[kind]["name"] for source in container["envFrom"] for kind in source} == made


def test_settings_of_the_manifests_are_settings() -> None:
    given = variables(KUBERNETES / "settings.env")
    secret = variables(KUBERNETES / "database.env.example")
    assert secret.keys() == {"LOADMASTER_DATABASE_URL", *OF_POSTGRESQL}
    assert given.keys() <= SETTINGS
    (service,) = [resource for resource in resources() if resource["kind"] == "Service"]
    assert service["metadata"]["name"] in Settings.from_environment(given).allowed_host_names


def test_probes_ask_what_the_server_answers(tmp_path: Path) -> None:
    (server,) = [container for container in containers() if container["name"] == "server"]
    assert [port["containerPort"] for port in server["ports"]] == [int(image("EXPOSE"))]
    paths = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'service.db'}", workers=0)).openapi()["paths"]
    asked = {probe: server[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
    assert {probe: get["path"] for probe, get in asked.items()} == {
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz",
    }
    assert {get["path"] for get in asked.values()} <= paths.keys()
    (service,) = [resource for resource in resources() if resource["kind"] == "Service"]
    (port,) = service["spec"]["ports"]
    assert {port["targetPort"], *(get["port"] for get in asked.values())} == {port["name"] for port in server["ports"]}
    (deployment,) = [d for d in deployments() if d["metadata"]["name"] == "loadmaster-server"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
