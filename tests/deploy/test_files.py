"""The files that run the daemon: valid, in step with each other and with the daemon's settings.

`make check-chart` checks the chart with helm, `make check-unit` the unit with systemd-analyze.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from tailer.config.options import option_names
from tailer.config.settings import load
from tailer.config.shapes import FileShape
from tailer.errors import TailerError
from tests.deploy.files import DEPLOY, ROOT, read_yaml
from tests.generate_docs import error_classes
from tests.jars.where import versitygw
from tests.test_readme import make_orders, run

COMPOSE: Final = DEPLOY / "compose.yaml"
UNIT: Final = DEPLOY / "lake-tailer.service"
VALUES: Final = DEPLOY / "chart" / "values.yaml"
DRAIN_S: Final = FileShape().drain_s
BIN: Final = Path(sys.executable).parent


def services() -> dict[str, dict[str, Any]]:
    """Return the services of the compose file."""
    found: dict[str, dict[str, Any]] = read_yaml(COMPOSE)["services"]
    return found


def directives() -> dict[str, str]:
    """Return the settings of the systemd unit; those that are there several times, joined."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found[name] = f"{found[name]} {value}" if name in found else value
    return found


def test_the_compose_file_is_valid() -> None:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_images_are_pinned_and_ports_are_for_this_machine() -> None:
    for name, service in services().items():
        if service["image"] != "lake-tailer":
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert services()["s3"]["image"] == f"versity/versitygw:{versitygw().parent.name}"


def test_commands_in_the_daemons_container_find_its_store() -> None:
    """`tailer tail` and `tailer doctor` there read no configuration, only the variables."""
    store = tomllib.loads((DEPLOY / "compose" / "tailer.toml").read_text())["stores"]["lake"]
    assert services()["daemon"]["environment"]["AWS_ENDPOINT_URL"] == store["endpoint"]


def test_what_the_compose_file_mounts_exists() -> None:
    for name, service in services().items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in read_yaml(COMPOSE)["volumes"] or (DEPLOY / source).exists(), f"{name}: {source}"


def test_passwords_are_examples() -> None:
    for path in (COMPOSE, DEPLOY / "lake-tailer.env.example"):
        secrets = re.findall(r"^\W*(\w*(?:PASSWORD|SECRET|ACCESS_KEY)\w*)[:=] ?(.+)$", path.read_text(), re.MULTILINE)
        assert secrets
        assert not [name for name, value in secrets if not value.startswith("example-")], path


def test_the_configuration_of_the_compose_file_is_accepted() -> None:
    settings = load(DEPLOY / "compose" / "tailer.toml")
    assert [each.table for each in settings.pipelines] == ["s3://lake/shop/orders"]


def test_the_configuration_of_the_chart_is_accepted(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(read_yaml(VALUES)["config"])
    assert len(load(config).pipelines) == 1


def test_everything_waits_longer_than_the_daemon_drains() -> None:
    assert int(directives()["TimeoutStopSec"]) > DRAIN_S
    assert int(services()["daemon"]["stop_grace_period"].removesuffix("s")) > DRAIN_S
    assert read_yaml(VALUES)["drainSeconds"] == DRAIN_S
    deployment = (DEPLOY / "chart" / "templates" / "deployment.yaml").read_text()
    assert "terminationGracePeriodSeconds: {{ add .Values.drainSeconds 15 }}" in deployment


def test_systemd_starts_nothing_again_that_a_person_has_to_mend() -> None:
    # Pipelines begin again by themselves after an error that may pass, so a daemon that ended with one will not mend.
    stays = {int(code) for code in directives()["RestartPreventExitStatus"].split()}
    assert directives()["Restart"] == "on-failure"
    assert stays == {kind.exit_code for kind in error_classes(TailerError)}


def test_variables_that_are_set_are_settings() -> None:
    files = ["Dockerfile", "lake-tailer.env.example", "chart/templates/deployment.yaml"]
    found = {name for file in files for name in re.findall(r"\bTAILER_(\w+)", (DEPLOY / file).read_text())}
    tables = {name.partition("__")[0].lower() for name in found}
    assert {"metrics", "control", "drain_s", "pipelines"} <= tables
    assert tables <= set(option_names(FileShape))


def test_the_chart_and_the_project_have_one_version() -> None:
    chart = read_yaml(DEPLOY / "chart" / "Chart.yaml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_the_chart_holds_the_same_alerts_and_dashboard(name: str) -> None:
    link = DEPLOY / "chart" / "files" / name
    assert link.is_symlink()
    assert link.resolve().is_relative_to(DEPLOY)
    assert link.exists()


def test_the_chart_refuses_values_that_it_does_not_know() -> None:
    schema = json.loads((DEPLOY / "chart" / "values.schema.json").read_text())
    values = read_yaml(VALUES)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == {*values, "global"}
    jsonschema.validate(values, schema)
    jsonschema.validate(read_yaml(ROOT / "tests" / "deploy" / "everything.yaml"), {**schema, "required": []})
    for table in ("image", "serviceAccount", "persistence", "podMonitor"):
        assert set(schema["properties"][table]["properties"]) == set(values[table])
        with pytest.raises(jsonschema.ValidationError, match="tpyo"):
            jsonschema.validate({**values, table: {"tpyo": 1}}, schema)


def test_the_mirror_is_verified_every_night(tmp_path: Path) -> None:
    """The command of the timer's unit runs, on a mirror in SQLite; that of the job of Kubernetes is the same."""
    folder = DEPLOY / "verify"
    unit = (folder / "lake-tailer-verify@.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit.replace("%i", "orders"), re.MULTILINE)
    program, *arguments = command.split()
    (container,) = read_yaml(folder / "cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == arguments[:4]
    assert program == "/opt/lake-tailer/bin/tailer"
    assert "OnCalendar=*-*-* 03:00" in (folder / "lake-tailer-verify@.timer").read_text()
    config, metrics = tmp_path / "tailer.toml", tmp_path / "orders.prom"
    shipped = (folder / "tailer.toml").read_text()
    assert load(folder / "tailer.toml").pipelines[0].name == "orders"
    config.write_text(
        shipped.replace("postgresql://tailer@db:5432/shop", "sqlite:///shop.db")
        .replace('schema = "lake"\n', "")
        .replace("s3://lake/shop/orders", "orders")
    )
    make_orders(tmp_path)
    run([str(BIN / "tailer"), "run", "--config", str(config)], tmp_path)
    places = {
        "/etc/lake-tailer/tailer.toml": str(config),
        "/var/lib/node_exporter/lake-tailer-orders.prom": str(metrics),
    }
    shown = run([str(BIN / "tailer"), *(places.get(argument, argument) for argument in arguments)], tmp_path)
    assert "orders: equals" in shown
    assert 'lake_tailer_verify_equal{pipeline="orders"} 1' in metrics.read_text()
