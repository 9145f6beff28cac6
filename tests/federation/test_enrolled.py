"""Sites that made their own keys, over real processes: let in, refused, rotated, let go, told."""

import json
import re
import time
import urllib.request

import pytest

from tests.federation.test_federate_cli import trimtab
from tests.helpers.whole_federation import Whole
from trimtab.federation.setup.operator import Federation

pytestmark = pytest.mark.federation

RUN = ("--algorithm", "scaffold", "--eta-l", "0.3", "--K", "4", "-R", "900")
RUN += ("--min-sites", "2", "--round-timeout", "60")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Enrolled(Whole):
    """Sites of real processes, whose keys were made at the sites."""

    def __init__(self, folder, capsys, names):
        super().__init__(folder, "")
        self.capsys, self.names = capsys, list(names)
        for number, name in enumerate(names):
            (folder / "data" / name / str(number)).mkdir(parents=True)
            self.enrol(name)

    def command(self, *words, code=0):
        """Run a command of `trimtab federate` to its end; return what it printed."""
        got, out, err = trimtab(self.capsys, "federate", *words)
        assert got == code, out + err
        return out

    def enrol(self, name, *options):
        """Let a site make a key, the operator register it, and the site approve what comes."""
        site = self.folder / "sites" / name
        self.command("enroll", site, "--federation", self.federation.id, *options)
        self.command("register", self.operator, site / "request.json")
        self.command("approve", site, self.federation.archive(name), "--yes")


def test_from_enrolment_to_dismissal(tmp_path, capsys):
    whole = Enrolled(tmp_path, capsys, "abc")
    policy = tmp_path / "sites" / "c" / "policy.toml"
    policy.write_text(policy.read_text().replace("K = [1, 10000]", "K = [5, 10]"))
    try:
        for name in "abc":
            whole.start_site(name)
        started = ("server", str(whole.operator), *RUN, "--log-json", "--metrics-port", "0")
        whole.start_server(*started)
        whole.wait_for_rounds(2)

        # what is outside a policy is refused with its line, in both logs
        line = "policy.toml, line 6: K = [5, 10]; the server asks for 4 local steps"
        whole.wait_for(f"site c sits out: {line}")
        whole.wait_for(line, "c")
        watched(whole)
        rotated(whole)

        # whom the operator lets go is told so
        policy.write_text(policy.read_text().replace("K = [5, 10]", "K = [1, 10]"))
        whole.stop(whole.sites.pop("c"))
        whole.start_site("c")
        until(whole, lambda: "c" in last_round(whole)["cohort"])
        whole.command("leave", whole.operator, "b")
        whole.wait_for("site b has left")
        whole.wait_for("the server lets this site in no more: b was removed.", "b")
        audited(whole)
    finally:
        whole.close()


def watched(whole):
    """Rounds are in the log, metrics on loopback, contacts in the status."""
    assert set(last_round(whole)["cohort"]) == {"a", "b"}
    (address,) = set(re.findall(r"http://127\.0\.0\.1:\d+/", whole.log()))
    assert DIRECT.open(f"{address}healthz", timeout=60).read() == b"ok\n"
    until(whole, lambda: 'contact_seconds{site="a"}' in metrics(address))
    assert re.search(r"^trimtab_round \d+\.0$", metrics(address), re.M)
    read = ("status", whole.operator, "--json")
    until(whole, lambda: json.loads(whole.command(*read))["sites"]["a"]["contact"])


def rotated(whole):
    """A site has another key under its name, and the run goes on."""
    whole.stop(whole.sites.pop("a"))
    before = Federation.read(whole.operator).roster.fingerprints
    whole.enrol("a", "--rotate")
    after = Federation.read(whole.operator).roster.fingerprints
    assert (before["a"] != after["a"], before["b"] == after["b"]) == (True, True)
    r = whole.standing().r
    whole.start_site("a")
    whole.wait_for_rounds(r + 2, seconds=240)  # min_sites is 2, so a takes part in them
    assert "a has another key from now on" in whole.log()
    assert whole.standing().member("a").index == 0


def audited(whole):
    """The audit judges, and names the site whose control has changed on its disk."""
    whole.stop(whole.server)
    standing = whole.standing()
    folder = whole.folder / "sites" / "c" / "state" / standing.experiment
    (path,) = folder.glob(f"*-{standing.member('c').accepted.tag}-*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    process = whole.start_server("audit", str(whole.operator), "--json")
    out, _ = process.communicate(timeout=240)
    found = json.loads(out)
    assert (process.returncode, found["ok"], set(found["missing"])) == (1, False, {"c"})


def metrics(address):
    return DIRECT.open(f"{address}metrics", timeout=60).read().decode()


def last_round(whole):
    lines = [json.loads(line) for line in whole.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "round"][-1]


def until(whole, holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, whole.logs()
        time.sleep(0.5)
