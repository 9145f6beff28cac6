"""docs/federation.md, "From nothing to a model", as it is written, by processes of this machine."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from trimtab.federation.processes.ports import free_port
from trimtab.federation.setup.operator import Federation

PAGE = (Path(__file__).parents[2] / "docs" / "federation.md").read_text()
SITES = ("cleveland", "hungarian", "switzerland")
ROW = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,{}\n"

pytestmark = pytest.mark.federation


@pytest.fixture
def way(tmp_path, monkeypatch):
    """The files that the page starts from; return its blocks."""
    monkeypatch.chdir(tmp_path)
    part = PAGE.partition("## From nothing to a model")[2].partition("## Several")[0]
    (problem,) = re.findall(r"```python\n# heart.py\n(.*?)```", part, re.S)
    Path("heart.py").write_text(problem)
    there = Path(os.environ.get("TRIMTAB_DATA", "."), "heart-disease")
    for site in SITES:
        name = f"processed.{site}.data"
        if (there / name).exists():
            shutil.copyfile(there / name, name)
        else:
            Path(name).write_text("".join(ROW.format(i % 3) for i in range(60)))
    return re.findall(r"```sh\n(.*?)```", part, re.S)


def test_the_way_from_nothing_to_a_model(way):
    port, running = str(free_port()), []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRIMTAB_OFFLINE": "1"}

    def words_of(line, site):
        identity = Federation.read(Path("heart")).id if Path("heart").exists() else ""
        for written, here in (
            ("fed.example.org", "127.0.0.1"),
            ("9443", port),
            ("cleveland", site),
            ("ID", identity),
        ):
            line = line.replace(written, here)
        words = shlex.split(line, comments=True)
        assert words[:2] == ["trimtab", "federate"]
        return [sys.executable, "-m", *words, *(["--yes"] if words[2] == "approve" else [])]

    def start(line, site):
        with open(f"{site}.log", "wb") as output:
            process = subprocess.Popen(
                words_of(line, site), stdout=output, stderr=output, env=environment
            )
        running.append(process)
        return process

    started = time.monotonic()
    (init, keys, site, server, result) = way
    try:
        for block, sites in ((init, SITES[:1]), (keys, SITES)):
            for name in sites:
                for line in block.splitlines():
                    command = words_of(line, name)
                    subprocess.run(command, env=environment, check=True, timeout=240)
        for name in SITES:
            start(site.strip(), name)
        code = start(server.strip(), "server").wait(timeout=400)
        assert code == 0, Path("server.log").read_text()
        for line in result.splitlines():
            subprocess.run(words_of(line, ""), env=environment, check=True, timeout=240)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=60)
    print(f"{time.monotonic() - started:.0f} seconds")
    print(Path("server.log").read_text()[-2000:])
    weights = load_file("out.safetensors")
    assert {name: tuple(w.shape) for name, w in weights.items()} == {
        "weight": (2, 13),
        "bias": (2,),
    }
    assert "only" not in Path("server.log").read_text()  # three sites: no warning
