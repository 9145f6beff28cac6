"""The workflows: their syntax, the targets that they call, the versions that they promise."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = [
    classifier.rpartition(" ")[2]
    for classifier in PROJECT["project"]["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", classifier)
]
SYSTEMS = ("manylinux_x86_64", "macosx_arm64")
every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def read(path):
    workflow = yaml.safe_load(path.read_text())
    workflow["on"] = workflow.pop(True)  # YAML takes the word on for a truth value
    return workflow


def jobs(path):
    return read(path)["jobs"].values()


def steps(path):
    return [step for job in jobs(path) for step in job["steps"]]


def commands(path):
    """Return all commands, with each value of the matrix in its place."""
    for job in jobs(path):
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            command = step.get("run", "")
            name = next((n for n in matrix if f"${{{{ matrix.{n} }}}}" in command), None)
            for value in matrix.get(name, [""]):
                yield command.replace(f"${{{{ matrix.{name} }}}}", value)


def made():
    """Return the targets that the workflows make."""
    text = [command for path in WORKFLOWS for command in commands(path)]
    return [target for command in text for target in re.findall(r"\bmake ([\w-]+)", command)]


def test_there_are_workflows():
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests", "weekly"]


@every_workflow
def test_a_workflow_may_do_little_and_ends(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["on"]
    for job in jobs(path):
        assert 0 < job["timeout-minutes"] <= 60
        assert "latest" not in job["runs-on"], "an image that changes by itself"
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@every_workflow
def test_every_action_is_pinned_by_a_tag_or_a_hash(path):
    for step in steps(path):
        if "uses" in step:
            owner, _, pin = step["uses"].partition("@")
            assert owner.split("/")[0] in {"actions", "pypa"}, owner
            assert re.fullmatch(r"v\d+(\.\d+)*|release/v1|[0-9a-f]{40}", pin), step["uses"]


def test_every_target_that_is_made_exists():
    assert made()
    assert set(made()) <= TARGETS


def test_what_ci_runs_the_workflows_run_too():
    ran = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.M)
    assert set(ran) <= set(made())


def test_the_pythons_are_those_of_the_classifiers():
    (tests,) = [path for path in WORKFLOWS if path.name == "tests.yml"]
    assert read(tests)["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert oldest == PYTHONS[0]
    for path in WORKFLOWS:
        for step in steps(path):
            version = step.get("with", {}).get("python-version", oldest)
            assert version in {oldest, "${{ matrix.python }}"}, "elsewhere the oldest"
    built = [f"cp{python.replace('.', '')}" for python in PYTHONS]
    wheels = [f"{one}-{system}" for system in SYSTEMS for one in built]
    assert PROJECT["tool"]["cibuildwheel"]["build"] == wheels


def test_who_publishes_has_been_asked_and_holds_no_token():
    (release,) = [path for path in WORKFLOWS if path.name == "release.yml"]
    assert "secrets." not in release.read_text()
    publish = read(release)["jobs"]["publish"]
    assert publish["environment"] == "release"
    assert set(publish["needs"]) == {"sdist", "wheels", "windows"}
    assert publish["permissions"]["id-token"] == "write"
    others = [job for name, job in read(release)["jobs"].items() if name != "publish"]
    assert not any("permissions" in job for job in others)


def test_the_site_is_published_from_main_alone():
    (docs,) = [path for path in WORKFLOWS if path.name == "docs.yml"]
    made, publish = (read(docs)["jobs"][name] for name in ("docs", "publish"))
    assert publish["needs"] == "docs"
    assert publish["if"] == "github.event_name == 'push'"
    assert read(docs)["on"]["push"] == {"branches": ["main"]}
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert "permissions" not in made


@pytest.mark.parametrize(
    "name",
    [
        *(".pre-commit-config.yaml", ".github/dependabot.yml", "CITATION.cff"),
        *(".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/algorithm.yml"),
        ".github/ISSUE_TEMPLATE/config.yml",
    ],
)
def test_other_settings_are_yaml(name):
    assert yaml.safe_load((ROOT / name).read_text())


def test_pre_commit_runs_what_is_installed_here():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        assert hook["entry"].startswith(".venv/bin/")
        for path in re.findall(r"tests/\S+", hook["entry"]):
            assert (ROOT / path).exists(), path


def test_the_release_page_names_what_there_is():
    text = (ROOT / "RELEASING.md").read_text()
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert target in TARGETS
    for name in re.findall(r"`([\w./]+\.(?:py|md|toml|cff|yml))`", text):
        assert (ROOT / name).exists() or (ROOT / ".github/workflows" / name).exists(), name
