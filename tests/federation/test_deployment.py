"""docker/: the image, the compose file and the systemd units, checked and run without Docker."""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trimtab.cli.federate import federate
from trimtab.federation.processes.ports import free_port
from trimtab.federation.setup.approval import problem_text

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
UNITS = sorted(DOCKER.glob("*.service"))
SANDBOX = {
    "NoNewPrivileges": "true",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "true",
    "PrivateTmp": "true",
    "PrivateDevices": "true",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "true",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
}


def instructions():
    """Return the instructions of the Dockerfile: name and rest, continued lines joined."""
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [line.split(None, 1) for line in lines if line and not line.startswith("#")]


def parsed(words):
    """Parse the words of a command of `trimtab federate` as click does; return its options."""
    command = federate.get_command(None, words[0])
    with command.make_context(words[0], list(words[1:])) as context:
        return context.params


def test_the_image_runs_without_root_and_installs_by_hashes():
    found = dict(instructions())
    assert found["USER"] == "10001:10001"
    assert json.loads(found["ENTRYPOINT"]) == ["trimtab", "federate"]
    assert found["VOLUME"] == "/data"
    assert [name for name, _ in instructions()][-1] == "CMD"
    installs = [part for part in found["RUN"].split("&&") if "pip install" in part]
    assert "TORCH" in installs[0]
    assert "--require-hashes -r /tmp/requirements-federation.txt" in installs[1]
    assert all("--no-deps" in part for part in installs[1:])
    for name, text in instructions():
        for source in text.split()[:-1] if name == "COPY" and "--from" not in text else ():
            assert (DOCKER.parent / source).exists(), source


def test_everything_that_the_federation_installs_has_hashes_but_torch():
    text = (DOCKER.parent / "requirements-federation.txt").read_text()
    pinned = re.findall(r"^([\w.-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.M)
    assert "torch" not in pinned
    assert len(pinned) == len(re.findall(r"^[\w.-]+==", text, re.M))


def test_nothing_is_missing_where_packages_are_installed_without_what_they_need():
    text = (DOCKER.parent / "requirements-federation.txt").read_text()
    pinned = {canonicalize_name(n): v for n, v in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["federation"]
    found, left = {"torch"}, [Requirement(each) for each in wanted]
    while left:
        each = left.pop()
        name = canonicalize_name(each.name)
        asked = [{"extra": extra} for extra in ("", *each.extras)]
        if f"{name}{each.extras or ''}" not in found:
            found |= {name, f"{name}{each.extras or ''}"}
            assert pinned[name] in each.specifier, each
            for line in requires(name) or ():
                needed = Requirement(line)
                if not needed.marker or any(map(needed.marker.evaluate, asked)):
                    left.append(needed)
    assert {"flwr", "cryptography", "httpx", "h11", "numpy", "safetensors"} <= found


@pytest.mark.parametrize("name", COMPOSE)
def test_a_service_has_a_read_only_root_and_no_privileges(name):
    service = COMPOSE[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "10001:10001"
    assert "privileged" not in service
    assert "ports" not in service
    if name != "prepare":
        assert parsed(service["command"])["metrics_port"] == 9464  # where the image looks


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_sandboxed_and_starts_a_command_that_exists(path):
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text())
    service = dict(unit["Service"])
    assert SANDBOX.items() <= service.items()
    assert service["User"] == "trimtab"
    program, group, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, group) == ("trimtab", "federate")
    folder = str(parsed(words)["folder"])
    assert folder.startswith(f"/var/lib/{service['StateDirectory']}/")


def test_the_problem_of_the_demo_can_be_approved():
    path = DOCKER / "problem.py"
    assert problem_text(path, path.read_bytes())


@pytest.mark.federation
def test_the_services_train_a_model_as_processes(tmp_path):
    """The commands of compose.yaml, in folders of this machine; the image's health check is run."""
    port, health = free_port(), {name: free_port() for name in COMPOSE}
    processes = {}

    def local(word, name):
        places = {"/data": str(tmp_path), "/demo": str(DOCKER), "0.0.0.0": "127.0.0.1"}
        places |= {
            "9464": str(health[name]),
            "9443": str(port),
            "--host server": "--host 127.0.0.1",
        }
        for there, here in places.items():
            word = word.replace(there, here)
        return word

    (tmp_path / "trimtab").write_text(f'#!/bin/sh\nexec {sys.executable} -m trimtab "$@"\n')
    (tmp_path / "trimtab").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    script = local(COMPOSE["prepare"]["command"][0], "prepare").replace("$$", "$")
    for _ in range(2):  # the second time everything is there
        subprocess.run(["sh", "-ec", script], env=environment, check=True, timeout=240)
    try:
        for name, service in COMPOSE.items():
            if name != "prepare":
                words = [local(word, name) for word in service["command"]]
                with open(tmp_path / f"{name}.log", "wb") as output:
                    processes[name] = subprocess.Popen(
                        ["trimtab", "federate", *words],
                        stdout=output,
                        stderr=output,
                        env=environment,
                    )
        check = next(text for name, text in instructions() if name == "HEALTHCHECK")
        command = json.loads(check.partition("CMD ")[2])
        until = time.monotonic() + 120
        while True:
            probe = [local(word, "rome") for word in [sys.executable, *command[1:]]]
            if not subprocess.run(probe, env=environment, stderr=subprocess.DEVNULL).returncode:
                break
            assert time.monotonic() < until, (tmp_path / "rome.log").read_text()
            time.sleep(0.5)
        said = tmp_path / "server.log"
        assert processes["server"].wait(timeout=300) == 0, said.read_text()
        assert "ran 5 rounds" in said.read_text()
        assert (tmp_path / "operator" / "report.html").exists()
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=60)
