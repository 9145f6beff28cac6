"""Keys, certificates and the folders that hold them."""

import re
import stat
import tarfile
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from tests.helpers.operator_folder import operator_folder
from trimtab._files import Lock
from trimtab.errors import InUse
from trimtab.federation.setup.operator import Federation, admit
from trimtab.federation.setup.site import SiteFolder, unpack
from trimtab.federation.storage import keys, roster
from trimtab.federation.storage.roster import RosterFile


@pytest.fixture
def made(tmp_path):
    settings = {"weights": "samples", "batch": 0.5, "hosts": ["fed.example.org", "10.1.2.3"]}
    return operator_folder(tmp_path / "operator", **settings)


def test_everything_secret_is_readable_by_its_owner_alone(made):
    for path in (*made.keys.iterdir(), *(made.folder / "sites").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (made.folder, made.keys, made.folder / "sites"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_the_server_certificate_names_its_hosts_and_is_signed_by_the_authority(made):
    authority, server = (
        x509.load_pem_x509_certificate((made.keys / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert {str(a) for a in names.get_values_for_type(x509.IPAddress)} == {"10.1.2.3", "127.0.0.1"}
    assert keys.check_certificate(made.keys / "server.crt", "fed.example.org") > datetime.now(UTC)


def test_a_certificate_that_expired_or_is_for_another_host_is_refused(made):
    with pytest.raises(ValueError, match=r"was not made for elsewhere; .*federate renew"):
        keys.check_certificate(made.keys / "server.crt", "elsewhere")
    keys.make_server_certificate(made.keys, made.hosts, lasts=timedelta(days=-1))
    with pytest.raises(ValueError, match=r"server.crt expired on .*; .*federate renew"):
        keys.check_certificate(made.keys / "server.crt")
    keys.make_server_certificate(made.keys, made.hosts)
    keys.check_certificate(made.keys / "server.crt")


def test_an_archive_holds_what_its_site_needs_and_no_more(made, tmp_path):
    with tarfile.open(made.archive("oslo")) as file:
        assert {m.name for m in file.getmembers()} == {
            "oslo",
            *(f"oslo/{n}" for n in ("site.json", "site.key", "ca.crt", "problem.py")),
        }
        assert {m.mode for m in file.getmembers() if m.isfile()} == {0o600}
    there = unpack(made.archive("oslo"), tmp_path / "there")
    site = SiteFolder.read(there)
    assert (site.name, site.server, site.batch) == ("oslo", "fed.example.org:9443", 0.5)
    key = load_ssh_private_key((site.folder / "site.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)


def test_sites_have_different_keys_and_the_operator_their_public_halves(made, tmp_path):
    assert len(set(made.sites.values())) == 2
    for name in made.sites:
        folder = unpack(made.archive(name), tmp_path)
        text = "".join(
            p.read_text() for p in made.folder.rglob("*") if p.suffix in (".json", ".crt")
        )
        assert (folder / "site.key").read_text() not in text
    again = Federation.read(made.folder)
    assert again == made


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"names": ["a", "a"]}, "two sites have one name; name them apart."),
        ({"names": ["../a"]}, "'../a' is no name for a site; use small letters"),
        ({"hosts": ["a b"]}, "'a b' is no host name or address; pass host=NAME."),
    ],
)
def test_bad_names_are_refused(tmp_path, change, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        operator_folder(tmp_path / "op", **{"names": ["a"]} | change)
    assert not (tmp_path / "op").exists()


def test_a_site_leaves_in_two_steps_and_the_last_one_cannot(made):
    file = RosterFile(made.folder)
    file.remove_site("rome")
    assert Federation.read(made.folder).roster.leaving == ("rome",)
    with pytest.raises(ValueError, match="'oslo' is the only site left"):
        file.remove_site("oslo")
    file.forget("rome")
    assert list(Federation.read(made.folder).sites) == ["oslo"]
    with pytest.raises(ValueError, match="there is no site 'rome'; the sites are oslo"):
        file.remove_site("rome")


def test_a_site_that_could_not_be_admitted_leaves_no_archive(made, monkeypatch):
    monkeypatch.setattr(roster, "_PATIENCE", 0.1)
    with Lock(made.folder), pytest.raises(InUse):
        admit(made, "lima")
    assert not made.archive("lima").exists()
    assert list(admit(made, "lima").sites) == ["rome", "oslo", "lima"]
