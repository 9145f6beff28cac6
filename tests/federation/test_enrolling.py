"""Keys are made at the site; nothing that comes from the operator counts before it is approved."""

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.federation.test_federate_cli import GOOD, trimtab
from trimtab.federation.setup.approval import approve, policy_of, propose
from trimtab.federation.setup.operator import Federation, create, register
from trimtab.federation.setup.site import SiteFolder, read_request, request_key, unpack
from trimtab.federation.storage import keys
from trimtab.federation.storage.roster import RosterFile
from trimtab.federation.storage.seal import sealed_text

ROTATE = "trimtab federate approve"


@pytest.fixture
def operator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(GOOD)
    hosts = {"hosts": ["127.0.0.1"], "port": 9443}
    return create(Path("fed"), [], Path("good.py"), weights="uniform", batch=None, **hosts)


@pytest.fixture
def oslo(operator):
    """A site that enrolled, was registered and has approved."""
    request_key(Path("oslo"), "oslo")
    register(operator, read_request(Path("oslo/request.json")))
    approve(propose(Path("oslo"), operator.archive("oslo")))
    return SiteFolder.read(Path("oslo"))


def test_the_whole_way_on_the_command_line(capsys, operator):
    code, out, err = trimtab(capsys, "federate", "enroll", "oslo")
    assert (code, err) == (0, "")
    own = keys.fingerprint(keys.public_half(Path("oslo/site.key").read_bytes()))
    assert f"The key of oslo is {own}; its private half stays in oslo." in out
    assert stat.S_IMODE(Path("oslo/site.key").stat().st_mode) == 0o600
    assert "PRIVATE" not in Path("oslo/request.json").read_text()

    code, out, err = trimtab(capsys, "federate", "register", "fed", "oslo/request.json")
    assert (code, err) == (0, "")
    assert f"oslo is admitted with key {own}" in out
    with tarfile.open("fed/sites/oslo.tar.gz") as file:
        assert not [m.name for m in file if "key" in m.name]
    for path in Path("fed").rglob("*"):
        assert not path.is_file() or Path("oslo/site.key").read_bytes() not in path.read_bytes()

    archive = "fed/sites/oslo.tar.gz"
    code, out, err = trimtab(capsys, "federate", "approve", "oslo", archive, "--yes")
    assert (code, err) == (0, "")
    assert "+def silo(data):" in out
    assert "server: 127.0.0.1:9443" in out
    assert "policy.toml, line 7: K = [1, 10000]" in out
    policy_of(SiteFolder.read(Path("oslo")))

    at_operator = trimtab(capsys, "federate", "fingerprint", "fed")[1].splitlines()
    at_site = trimtab(capsys, "federate", "fingerprint", "oslo")[1].splitlines()
    assert f'oslo = "{own}"' in at_operator
    assert f'key = "{own}"' in at_site
    assert at_operator[-2:] == at_site[-2:]  # authority and problem file
    code, _, err = trimtab(capsys, "federate", "enroll", "oslo")
    assert (code, err) == (
        2,
        "trimtab: oslo has a key already; pass --rotate to make its next one.\n",
    )


def test_init_without_sites_says_how_they_come_and_with_them_what_it_means(capsys, operator):
    command = ("federate", "init", "other", "--problem", "good.py")
    code, out, _ = trimtab(capsys, *command)
    assert code == 0
    assert "admit it with `trimtab federate register other REQUEST`" in out
    code, _, err = trimtab(
        capsys, *["federate", "server", "other", "--algorithm", "sgd", "--eta", "1", "-R", "1"]
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "the federation has no sites yet; let one in with `federate register`." in err
    command = ("federate", "init", "demo", "--problem", "good.py", "--sites", "a")
    assert "The private keys of these sites were made here" in trimtab(capsys, *command)[1]


def test_without_a_yes_nothing_is_taken_in(capsys, operator, monkeypatch):
    request_key(Path("oslo"), "oslo")
    register(operator, read_request(Path("oslo/request.json")))
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, *_ = trimtab(capsys, "federate", "approve", "oslo", "fed/sites/oslo.tar.gz")
    assert code != 0
    assert not Path("oslo/site.json").exists()
    assert not Path("oslo/policy.toml").exists()


# -- rotation


def test_a_key_is_rotated_under_the_same_name(oslo, operator):
    old = keys.fingerprint(keys.public_half(Path("oslo/site.key").read_bytes()))
    request = request_key(Path("oslo"), "oslo", rotate=True)
    policy_of(oslo)  # until the operator has registered it, the site goes on with the key it has
    federation = register(operator, read_request(Path("oslo/request.json")))
    assert federation.roster.fingerprints == {"oslo": request.fingerprint}
    assert federation.roster.former == {old: "oslo has another key now"}
    approve(propose(Path("oslo"), federation.archive("oslo")))
    assert not Path("oslo/site.key.next").exists()
    assert keys.fingerprint(keys.public_half(Path("oslo/site.key").read_bytes())) == (
        request.fingerprint
    )
    policy_of(SiteFolder.read(Path("oslo")))
    federation.archive("oslo").unlink()
    again = register(federation, read_request(Path("oslo/request.json")))  # the archive anew
    assert again.roster == federation.roster
    assert not propose(Path("oslo"), again.archive("oslo")).changes


def test_nobody_else_rotates_a_key_or_takes_one_that_was_let_in(oslo, operator, refused):
    stranger = request_key(Path("elsewhere"), "oslo")
    request = read_request(Path("elsewhere/request.json"))
    with refused("not signed with the key of oslo", "compare", "pass replace"):
        register(operator, request)
    federation = register(operator, request, replace=True)  # the operator has telephoned
    assert federation.roster.fingerprints == {"oslo": stranger.fingerprint}
    old = Path("oslo/request.json")
    with refused("was let in once (oslo has another key now)"):
        register(federation, read_request(old), replace=True)


def test_a_key_has_one_name_and_a_site_that_left_does_not_come_back_with_it(operator, refused):
    for name in ("oslo", "rome"):
        request_key(Path(name), name)
        register(operator, read_request(Path(name) / "request.json"))
    private = Path("oslo/site.key").read_bytes()
    public = keys.public_half(private)
    said = f"trimtab federation: lima asks to be let in with\n{public}".encode()
    request = {"name": "lima", "public_key": public, "signature": keys.sign(private, said)}
    Path("lima.json").write_text(json.dumps(request | {"vouched": ""}))
    with refused("is that of site oslo"):
        register(operator, read_request(Path("lima.json")))
    roster = RosterFile(operator.folder)
    roster.remove_site("oslo")
    roster.forget("oslo")
    with refused("was let in once (oslo was let go)"):
        register(operator, read_request(Path("oslo/request.json")))


def test_a_key_that_is_not_the_registered_one_is_not_used(oslo, refused):
    Path("oslo/site.key").unlink()
    keys.write_secret(Path("oslo/site.key"), keys.make_site_key()[0])
    with refused("site.key is SHA256:", "but the operator registered", ROTATE):
        policy_of(oslo)
    Path("oslo/site.key").write_bytes(b"rubbish")
    with refused("site.key is no private key of a site"):
        policy_of(oslo)


def test_an_authority_that_is_not_the_one_of_the_archive_is_not_trusted(oslo, refused):
    os.mkdir("ca")
    keys.make_authority(Path("ca"))
    Path("oslo/ca.crt").write_bytes(Path("ca/ca.crt").read_bytes())
    with refused("ca.crt is SHA256:", "came in the archive"):
        policy_of(oslo)


# -- requests may be anybody's


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.dictionaries(
        st.sampled_from(("name", "public_key", "signature", "vouched", "more")), JSON, min_size=1
    )
)
def test_a_request_that_was_changed_is_one_sentence(tmp_path, changes):
    folder = tmp_path / "site"
    if not (folder / "request.json").exists():
        request_key(folder, "oslo")
    honest = json.loads((folder / "request.json").read_text())
    changed = honest | changes
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    if {k: v for k, v in changed.items() if k != "vouched"} == {
        k: v for k, v in honest.items() if k != "vouched"
    } and isinstance(changed["vouched"], str):
        read_request(tmp_path / "changed.json")
        return
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read_request(tmp_path / "changed.json")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * 20_000, "more than 10,000 bytes"),
        (b"\xff", "it is no JSON"),
        (b"[" * 9000, "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (b"{}", "it has no 'name'"),
    ],
)
def test_what_is_no_request_is_one_sentence(tmp_path, content, words, refused):
    (tmp_path / "a.json").write_bytes(content)
    with refused("a.json", words):
        read_request(tmp_path / "a.json")


def test_a_key_of_another_kind_is_refused(refused):
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for key in (ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)):
        with refused("not on the curve P-384"):
            keys.canonical(key.public_key().public_bytes(*form).decode())
    with refused("no public key in PEM"):
        keys.canonical("-----BEGIN PUBLIC KEY-----")


# -- archives may be anybody's


def packed(path, contents, folder="oslo"):
    with tarfile.open(path, "w:gz") as file:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"{folder}/{name}" if folder else name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path


def contents_of(archive):
    with tarfile.open(archive) as file:
        return {Path(m.name).name: file.extractfile(m).read() for m in file if m.isfile()}


@pytest.mark.parametrize("name", ["policy.toml", "state/x", "../evil", "site.key.next", "secret"])
def test_an_archive_brings_nothing_that_is_the_sites_own(oslo, operator, name, refused):
    contents = contents_of(operator.archive("oslo")) | {name: b"evil"}
    before = {p: p.read_bytes() for p in Path("oslo").rglob("*") if p.is_file()}
    with refused("evil.tar.gz holds", "ours do not"):
        propose(Path("oslo"), packed(Path("evil.tar.gz"), contents))
    assert {p: p.read_bytes() for p in Path("oslo").rglob("*") if p.is_file()} == before


def test_an_archive_for_others_or_with_other_keys_is_refused(oslo, operator, refused):
    contents = contents_of(operator.archive("oslo"))
    facts = json.loads(contents["site.json"])
    for change, words in (
        ({"name": "rome"}, "the archive is for rome; oslo is the site oslo"),
        ({"key": "SHA256:0"}, "the operator registered the key SHA256:0, but this site has"),
        ({"authority": "SHA256:0"}, "but the archive is made for SHA256:0"),
        ({"format": 9}, "is of another trimtab"),
        ({"port": 1}, "its entry 'port' is unknown"),
    ):
        text = sealed_text(facts | change).encode()
        with refused(words):
            propose(Path("oslo"), packed(Path("other.tar.gz"), contents | {"site.json": text}))
    with refused("holds a private key, but oslo has its own"):
        propose(Path("oslo"), packed(Path("other.tar.gz"), contents | {"site.key": b"x"}))
    with refused("other.tar.gz holds no ca.crt"):
        few = {k: v for k, v in contents.items() if k != "ca.crt"}
        propose(Path("oslo"), packed(Path("other.tar.gz"), few))
    Path("broken.tar.gz").write_bytes(b"\x1f\x8b no")
    with refused("broken.tar.gz cannot be read"):
        propose(Path("oslo"), Path("broken.tar.gz"))


# -- the problem file


def test_a_problem_file_that_has_changed_is_not_run_before_it_is_approved(capsys, oslo, refused):
    Path("oslo/problem.py").write_text(GOOD.replace("X[:4]", "X[:5]") + "\x1b[2Kprint('hi')\n")
    with refused("problem.py is not the file that was approved", "federate approve oslo"):
        policy_of(oslo)
    code, out, _ = trimtab(capsys, "federate", "approve", "oslo", "--yes")
    assert code == 0
    assert "-    return TensorDataset(X[:4], y[:4])" in out
    assert "+    return TensorDataset(X[:5], y[:4])" in out
    assert "+\\x1b[2Kprint('hi')" in out  # what would hide a line on a terminal is shown
    policy_of(oslo)
    Path("new.py").write_text(GOOD)
    code, out, _ = trimtab(capsys, "federate", "approve", "oslo", "--problem", "new.py", "--yes")
    assert "+    return TensorDataset(X[:4], y[:4])" in out
    code, out, _ = trimtab(capsys, "federate", "approve", "oslo", "--yes")
    assert "Nothing has changed since it was approved." in out


def test_a_site_without_a_policy_gets_one_and_its_log_shows_it(operator, caplog):
    caplog.set_level("INFO", logger="trimtab.federation")
    made = Federation.read(operator.folder)
    from trimtab.federation.setup.operator import admit

    made = admit(made, "rome")
    site = SiteFolder.read(unpack(made.archive("rome"), Path("sites")))
    policy = policy_of(site)
    assert "sites/rome/policy.toml is written; read it" in caplog.text
    assert "K = [1, 10000]" in caplog.text
    assert len(policy.problem) == 64
    caplog.clear()
    assert policy_of(site) == policy
    assert not caplog.text
    old = json.loads((site.folder / "site.json").read_text())
    kept = {k: old[k] for k in ("trimtab", "name", "federation", "server", "batch")}
    (site.folder / "site.json").write_text(json.dumps(kept | {"format": 1}))  # as 0.1 wrote it
    assert policy_of(SiteFolder.read(site.folder)) == policy
