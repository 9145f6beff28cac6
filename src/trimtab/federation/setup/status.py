"""What an operator wants to know of a federation, from its folder alone."""

import os
from pathlib import Path
from typing import Any

from trimtab._files import plain, read_json
from trimtab.federation.setup.job import progress
from trimtab.federation.setup.operator_folder import Federation
from trimtab.federation.storage.keys import check_certificate, fingerprint


def status_of(folder: Path) -> dict[str, Any]:
    """Return how far the experiment is, and what is known of each site."""
    federation = Federation.read(folder)
    run, found = folder / "run.json", progress(federation)
    job = read_json(run) if run.is_file() else {}
    standing = found.standing if found else None
    last: dict[str, int] = {}
    for line in found.rounds if found else ():
        last |= dict.fromkeys(line["cohort"], line["r"])
    p = standing.p if standing else {}
    sites = {
        name: {
            "weight": p.get(name, 0.0),
            "last": last.get(name),
            "member": name in p,
            "key": fingerprint(key),
        }
        for name, key in federation.sites.items()
    }
    facts = {
        "algorithm": repr(standing.algorithm) if standing else None,
        "server": "running" if _runs(folder) else "stopped",
        "round": standing.r if standing else 0,
        "R": job.get("R"),
        "epoch": standing.epoch if standing else 0,
        "metrics": found.rounds[-1]["metrics"] if found and found.rounds else {},
        "bytes_up": found.bytes_up if found else 0,
        "certificate": _certificate(federation),
        "sites": sites,
    }
    return dict(plain(facts))


def summary_of(folder: Path, told: dict[str, Any], state: str = "state") -> dict[str, Any]:
    """Return what came of a run, and a sentence that says it."""
    found, end = progress(Federation.read(folder), state), told.get("end", {})
    assert found is not None
    metrics = end.get("metrics", {})
    name = "accuracy" if "accuracy" in metrics else "loss"
    audit = told.get("audit", {})
    shown = f"{name} {metrics[name]:.4g}" if name in metrics else "no metric"
    reached = " and reached its target" if end.get("reached") else ""
    sentence = f"{found.standing.algorithm} ran {found.standing.r} rounds{reached}: {shown}."
    if audit.get("deviation") is not None:
        sentence += f" |c - sum p_i c_i| = {audit['deviation']:.3g}."
    return {
        "sites": [member.name for member in found.standing.members],
        "rounds": found.standing.r,
        "reached": bool(end.get("reached")),
        "metric": metrics.get(name),
        "metrics": metrics,
        "bytes_up": found.bytes_up,
        "audit": {k: v for k, v in audit.items() if k in ("deviation", "largest", "missing")},
        "sentence": sentence,
    }


def _certificate(federation: Federation) -> str:
    try:
        return f"valid until {check_certificate(federation.keys / 'server.crt'):%Y-%m-%d}"
    except ValueError:
        return "expired; write a new one with `trimtab federate renew`"


def _runs(folder: Path) -> bool:
    try:
        os.kill(int(read_json(folder / "run" / "live.json")["pid"]), 0)
    except (ValueError, KeyError, OSError):
        return False
    return True
