"""Keys are made at the site; nothing that comes from the operator counts before it is approved."""

import contextlib
import gzip
import io
import json
import os
import py_compile
import stat
import tarfile
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.federation.test_federate_cli import GOOD, trimtab
from trimtab._importing import load
from trimtab.federation.setup.approval import approve, policy_of, problem_text, propose
from trimtab.federation.setup.operator import Federation, admit, create, register, renew
from trimtab.federation.setup.problem_file import ProblemFile
from trimtab.federation.setup.site import (
    KeyRequest,
    SiteFolder,
    read_archive,
    read_request,
    request_key,
    unpack,
)
from trimtab.federation.storage import keys
from trimtab.federation.storage.files import sealed_text
from trimtab.federation.storage.policy import digest_of
from trimtab.federation.storage.roster import RosterFile

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
    request_key(Path("oslo"), "oslo", operator.id)
    register(operator, read_request(Path("oslo/request.json")))
    approve(propose(Path("oslo"), operator.archive("oslo")))
    return SiteFolder.read(Path("oslo"))


def test_the_whole_way_on_the_command_line(capsys, operator):
    enroll = ("federate", "enroll", "oslo", "--federation", operator.id)
    code, out, err = trimtab(capsys, *enroll)
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
    assert "policy.toml, line 6: K = [1, 10000]" in out
    policy_of(SiteFolder.read(Path("oslo")))

    at_operator = trimtab(capsys, "federate", "fingerprint", "fed")[1].splitlines()
    at_site = trimtab(capsys, "federate", "fingerprint", "oslo")[1].splitlines()
    assert f'oslo = "{own}"' in at_operator
    assert f'(federation) = "{operator.id}"' in at_operator
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
    request_key(Path("oslo"), "oslo", operator.id)
    register(operator, read_request(Path("oslo/request.json")))
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, *_ = trimtab(capsys, "federate", "approve", "oslo", "fed/sites/oslo.tar.gz")
    assert code != 0
    assert not Path("oslo/site.json").exists()
    assert not Path("oslo/policy.toml").exists()


# -- rotation


def test_a_key_is_rotated_under_the_same_name(oslo, operator, refused):
    old = keys.fingerprint(keys.public_half(Path("oslo/site.key").read_bytes()))
    request = request_key(Path("oslo"), rotate=True)
    with refused("oslo has a next key already", "drop rotate to make the request for it again"):
        request_key(Path("oslo"), rotate=True)
    again = request_key(Path("oslo"))  # the same key, in a request of its own
    assert (again.fingerprint, again.nonce) != (request.fingerprint, request.nonce)
    assert again.fingerprint == request.fingerprint
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
    stranger = request_key(Path("elsewhere"), "oslo", operator.id)
    request = read_request(Path("elsewhere/request.json"))
    with refused("not signed with the key of oslo", "compare", "pass replace"):
        register(operator, request)
    federation = register(operator, request, replace=True)  # the operator has telephoned
    assert federation.roster.fingerprints == {"oslo": stranger.fingerprint}
    old = Path("oslo/request.json")
    with refused("was used before"):
        register(federation, read_request(old), replace=True)
    request_key(Path("lost"), "oslo", operator.id)
    Path("lost/site.key").write_bytes(Path("oslo/site.key").read_bytes())
    old = Path("lost/request.json")
    request_key(Path("lost"), "oslo", operator.id)
    with refused("was admitted before (oslo has another key now)"):
        register(federation, read_request(old), replace=True)


def test_a_key_has_one_name_and_a_site_that_left_does_not_come_back_with_it(operator, refused):
    for name in ("oslo", "rome"):
        request_key(Path(name), name, operator.id)
        register(operator, read_request(Path(name) / "request.json"))
    private = Path("oslo/site.key").read_bytes()
    public = keys.public_half(private)
    made = datetime.now(UTC).isoformat()
    request = KeyRequest("lima", operator.id, made, "0" * 32, public)
    request = replace(request, signature=keys.sign(private, request.signed))
    Path("lima.json").write_text(json.dumps(asdict(request)))
    with refused("is that of site oslo"):
        register(operator, read_request(Path("lima.json")))
    roster = RosterFile(operator.folder)
    roster.remove_site("oslo")
    roster.forget("oslo")
    with refused("oslo was removed from the federation", "pass readmit"):
        register(operator, read_request(Path("oslo/request.json")))
    with refused("the request of oslo was used before"):
        register(operator, read_request(Path("oslo/request.json")), readmit=True)
    with refused("oslo was removed from the federation"):
        admit(operator, "oslo")
    approve(propose(Path("oslo"), operator.archive("oslo")))
    request = request_key(Path("oslo"), rotate=True)
    back = register(operator, read_request(Path("oslo/request.json")), readmit=True)
    assert back.roster.fingerprints["oslo"] == request.fingerprint


def test_a_key_that_is_not_the_registered_one_is_not_used(oslo, refused):
    Path("oslo/site.key").unlink()
    keys.write_secret(Path("oslo/site.key"), keys.make_site_key()[0])
    with refused("site.key is SHA256:", "but the operator registered", ROTATE):
        policy_of(oslo)
    Path("oslo/site.key").write_bytes(b"rubbish")
    with refused("site.key is no private key of a site"):
        policy_of(oslo)


def test_a_key_that_others_may_read_is_not_used(oslo, operator, refused):
    for path, use in (
        (Path("oslo/site.key"), lambda: policy_of(oslo)),
        (Path("oslo/policy.toml"), lambda: policy_of(oslo)),
        (Path("fed/keys/ca.key"), operator.check_keys),
        (Path("fed/keys/ca.key"), lambda: renew(operator, None)),
        (Path("fed/keys/server.key"), operator.check_keys),
    ):
        use()
        path.chmod(0o640)
        with refused(f"{path} can be read or changed by other users (mode 0640); run `chmod 600"):
            use()
        path.chmod(0o600)


def test_keys_are_encrypted_where_there_is_a_passphrase(tmp_path, monkeypatch, refused):
    """A restart reads the passphrase from a file, or from systemd; it needs no person."""
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(GOOD)
    file = tmp_path / "passphrase"
    file.touch(0o600)
    file.write_text("correct horse\n")
    monkeypatch.setenv("TRIMTAB_PASSPHRASE_FILE", str(file))
    hosts = {"hosts": ["127.0.0.1"], "port": 9443}
    operator = create(
        Path("fed"), ["rome"], Path("good.py"), weights="uniform", batch=None, **hosts
    )
    request_key(Path("oslo"), "oslo", operator.id)
    register(operator, read_request(Path("oslo/request.json")))
    approve(propose(Path("oslo"), operator.archive("oslo")))
    for path in (Path("oslo/site.key"), Path("fed/keys/ca.key")):
        assert b"ENCRYPTED" in path.read_bytes()
    uses = (lambda: policy_of(SiteFolder.read(Path("oslo"))), lambda: renew(operator, None))
    # The key of a site that is made at the operator's is read by the site, with its own passphrase.
    assert b"ENCRYPTED" not in read_archive(operator.archive("rome"))["site.key"]
    for use in uses:
        use()
    monkeypatch.delenv("TRIMTAB_PASSPHRASE_FILE")
    for use in uses:
        with refused("is encrypted; name the file of its passphrase in TRIMTAB_PASSPHRASE_FILE"):
            use()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "trimtab-passphrase").write_text("correct horse")
    for use in uses:
        use()
    for content, words in (("another", "its passphrase is another one"), ("\n", "is empty;")):
        (tmp_path / "credentials" / "trimtab-passphrase").write_text(content)
        with refused(words):
            uses[0]()
    monkeypatch.setenv("TRIMTAB_PASSPHRASE_FILE", str(file))
    file.chmod(0o644)
    with refused("passphrase can be read or changed by other users"):
        uses[0]()
    monkeypatch.setenv("TRIMTAB_PASSPHRASE_FILE", "nosuch")
    with refused("TRIMTAB_PASSPHRASE_FILE names nosuch, which is not a file"):
        uses[0]()


def test_what_expires_is_said_thirty_days_ahead(oslo, operator):
    assert (operator.expiring(), oslo.expiring()) == ([], [])
    keys.make_server_certificate(operator.keys, operator.hosts, lasts=timedelta(days=29))
    soon = (datetime.now(UTC) + timedelta(days=29)).isoformat()
    operator = Federation.read(operator.folder)
    RosterFile(operator.folder).note(until={"oslo": soon})
    certificate, key = Federation.read(operator.folder).expiring()
    assert "server.crt expires on" in certificate
    assert "federate renew" in certificate
    assert key.startswith("the key of oslo expires on")
    (said,) = replace(oslo, until=soon).expiring()
    assert "site.key expires on" in said


def test_an_authority_that_is_not_the_one_of_the_archive_is_not_trusted(oslo, refused):
    os.mkdir("ca")
    keys.make_authority(Path("ca"))
    Path("oslo/ca.crt").write_bytes(Path("ca/ca.crt").read_bytes())
    with refused("ca.crt is SHA256:", "came in the archive"):
        policy_of(oslo)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"federation": "0" * 12}, "is to the federation 000000000000, this is"),
        ({"made": "2026-01-01T00:00:00+00:00"}, "was made on 2026-01-01"),
        ({"made": "2226-01-01T00:00:00+00:00"}, "was made on 2226-01-01"),
    ],
)
def test_a_request_is_for_one_federation_and_thirty_days(operator, change, words, refused):
    request_key(Path("oslo"), "oslo", operator.id)
    private = Path("oslo/site.key").read_bytes()
    request = replace(read_request(Path("oslo/request.json")), **change)
    request = replace(request, signature=keys.sign(private, request.signed))
    Path("oslo/request.json").write_text(json.dumps(asdict(request)))
    with refused(words):
        register(operator, read_request(Path("oslo/request.json")))


# -- requests may come from any sender

_FIELDS = ("name", "federation", "made", "nonce", "public_key", "signature", "vouched")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.dictionaries(st.sampled_from((*_FIELDS, "more")), JSON, min_size=1))
def test_a_request_that_was_changed_is_one_sentence(tmp_path, changes):
    folder = tmp_path / "site"
    if not (folder / "request.json").exists():
        request_key(folder, "oslo", "0" * 12)
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
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for key in (ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)):
        with refused("not on the curve P-384"):
            keys.canonical(key.public_key().public_bytes(*form).decode())
    with refused("no public key in PEM"):
        keys.canonical("-----BEGIN PUBLIC KEY-----")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with refused("site.key is no private key of a site"):
        keys.load_site_key(private)


# -- archives may come from any sender


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
    with refused("evil.tar.gz cannot be read", "ours do not"):
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
    with refused("other.tar.gz cannot be read (it holds no ca.crt)"):
        few = {k: v for k, v in contents.items() if k != "ca.crt"}
        propose(Path("oslo"), packed(Path("other.tar.gz"), few))
    Path("broken.tar.gz").write_bytes(b"\x1f\x8b no")
    with refused("broken.tar.gz cannot be read"):
        propose(Path("oslo"), Path("broken.tar.gz"))


def bomb(name, entries=(), size=0, kind=tarfile.REGTYPE):
    """Write an archive with many entries, or with one that is large; return it."""
    path = Path(f"{name}.tar.gz")
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as file:
        for entry in map(tarfile.TarInfo, entries):
            entry.size, entry.type = size, kind
            file.addfile(entry, io.BytesIO(bytes(size)))
    return path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"entries": [f"oslo{i}" for i in range(9)], "kind": tarfile.DIRTYPE}, "more than 8 entr"),
        ({"entries": ["oslo/problem.py"], "size": 33 << 20}, "more than 32 MiB"),
        ({"entries": ["oslo/ca.crt"] * 2, "size": 1}, "it holds ca.crt twice"),
        ({"entries": ["oslo/ca.crt"], "kind": tarfile.GNUTYPE_SPARSE}, "ours do not"),
        ({"entries": ["oslo/ca.crt"], "kind": tarfile.SYMTYPE}, "ours do not"),
        ({"entries": ["o" * 200] * 9, "kind": tarfile.DIRTYPE}, "more than 8 entries"),
    ],
)
def test_an_archive_is_read_within_bounds(operator, options, words, refused):
    path = bomb("bomb", **options)
    assert path.stat().st_size < 1 << 17
    for read in (read_archive, lambda path: unpack(path, Path("there"))):
        with refused("bomb.tar.gz cannot be read", words):
            read(path)
    assert not Path("there").exists()


FIELDS = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "type": (156, 1)}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("size", b"\x80\0\0\0" + b"\xff" * 8, 1)  # no Python object is so long
@given(st.sampled_from(sorted(FIELDS)), st.binary(min_size=1, max_size=12), st.integers(0, 4))
def test_an_archive_whose_headers_are_odd_is_one_sentence(operator, field, value, number):
    good = io.BytesIO()
    with tarfile.open(fileobj=good, mode="w") as file:
        for name in ("site.json", "ca.crt", "problem.py", "site.key", "x"):
            file.addfile(tarfile.TarInfo(f"oslo/{name}"))
    content = bytearray(good.getvalue())
    head = memoryview(content)[512 * number : 512 * (number + 1)]
    begin, length = FIELDS[field]
    value = value[:length]
    head[begin : begin + len(value)] = value
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    Path("odd.tar.gz").write_bytes(gzip.compress(content, 1))
    with contextlib.suppress(ValueError):
        read_archive(Path("odd.tar.gz"))


def test_an_archive_brings_no_key_but_the_registered_one(operator, refused):
    site = admit(operator, "rome")
    contents = contents_of(site.archive("rome"))
    for content, words in (
        (keys.make_site_key()[0], "the operator registered the key"),
        (b"no key", "site.key is no private key of a site"),
    ):
        odd = packed(Path("odd.tar.gz"), contents | {"site.key": content}, "rome")
        with refused(words):
            propose(Path("rome"), odd)
    certificate = contents["ca.crt"].replace(b"M", b"N", 1)
    with refused("ca.crt is"):
        odd = packed(Path("odd.tar.gz"), contents | {"ca.crt": certificate}, "rome")
        propose(Path("rome"), odd)


# -- the problem file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("import torch\n", "import torch" + " " * 190 + "; import os\n"), "has 213 characters"),
        (("import torch\n", "# coding: latin-1\nimport torch\n"), "declares an encoding"),
        (("import torch\n", "import torch\t# x\n"), "unprintable character '\\t'"),
        (("import torch\n", "import torch\r\n"), "unprintable character '\\r'"),
        (("import torch\n", "import torch  # \u202e\n"), "unprintable character '\\u202e'"),
        (("import torch\n", "\ufeffimport torch\n"), "unprintable character '\\ufeff'"),
        (("import torch\n", "import torch; \x00\n"), "unprintable character '\\x00'"),
        (("def silo", "\uff45val = 1\ndef silo"), "has '\\uff45val' outside of a comment"),
        (("def silo", "f'{\uff45val}'\ndef silo"), "outside of a comment or plain string"),
        (("def silo", "def silo("), "cannot be compiled"),
        (("def silo", "'" * 3 + "\ndef silo"), "cannot be compiled"),
        (("def silo", "(" * 3000 + ")" * 3000 + "\ndef silo"), "has 6000 characters"),
    ],
)
def test_what_a_reader_could_overlook_is_refused(oslo, operator, change, words, refused):
    text = GOOD.replace(*change)
    assert text != GOOD
    Path("odd.py").write_text(text, newline="")
    with refused("odd.py", words):
        propose(Path("oslo"), problem=Path("odd.py"))
    with refused(words):  # the operator learns it at once
        ProblemFile(Path("odd.py"))
    Path("odd.py").write_bytes(b"\xff")
    with refused("odd.py is not UTF-8"):
        propose(Path("oslo"), problem=Path("odd.py"))


def test_strings_and_comments_may_be_in_any_language(operator):
    text = GOOD + "a = 'Gr\u00f6\u00dfe'  # Mod\u00e8le\n"
    assert problem_text(Path("a.py"), text.encode()) == text


def test_what_runs_is_the_text_that_was_shown(oslo, tmp_path):
    """Neither cached bytecode, nor a file beside it, nor another reading of the bytes is run."""
    path = tmp_path / "own" / "problem.py"
    path.parent.mkdir()
    path.write_text("raise RuntimeError('another text')\n")
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_text(GOOD)
    with pytest.raises(ValueError, match="another text"):  # as Python imports it
        load(path)
    ProblemFile(path, digest_of(GOOD.encode()))
    (tmp_path / "own" / "beside_it.py").write_text("")
    path.write_text(GOOD + "import beside_it\n")
    with pytest.raises(ValueError, match="No module named 'beside_it'"):
        ProblemFile(path)
    path.write_text(GOOD + "#")
    with pytest.raises(ValueError, match="is not the file that was approved"):
        ProblemFile(path, digest_of(GOOD.encode()))


def test_a_problem_file_that_has_changed_is_not_run_before_it_is_approved(capsys, oslo, refused):
    Path("oslo/problem.py").write_text(GOOD.replace("X[:4]", "X[:5]"))
    with refused("problem.py is not the file that was approved", "federate approve oslo"):
        policy_of(oslo)
    code, out, _ = trimtab(capsys, "federate", "approve", "oslo", "--yes")
    assert code == 0
    assert "-    return TensorDataset(X[:4], y[:4])" in out
    assert "+    return TensorDataset(X[:5], y[:4])" in out
    policy_of(oslo)
    Path("new.py").write_text(GOOD)
    code, out, _ = trimtab(capsys, "federate", "approve", "oslo", "--problem", "new.py", "--yes")
    assert "+    return TensorDataset(X[:4], y[:4])" in out
    code, out, _ = trimtab(capsys, "federate", "approve", "oslo", "--yes")
    assert "Nothing has changed since it was approved." in out


def test_a_site_without_a_policy_gets_one_and_its_log_shows_it(operator, caplog):
    caplog.set_level("INFO", logger="trimtab.federation")
    made = admit(Federation.read(operator.folder), "rome")
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
