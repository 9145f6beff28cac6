"""Keys and certificates: an authority, the server's certificate, one key for each site.

The authority signs the server's certificate and nothing else; with the authority's certificate a
site recognises its own server. A site is recognised by its key; the operator keeps public halves.

The private keys of sites and of the authority are encrypted if this machine has a passphrase: in
the file that TRIMTAB_PASSPHRASE_FILE names, or in the systemd credential trimtab-passphrase. So a
restart needs no person. The server's own key is not encrypted: Flower reads it.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
SITE_DAYS = SERVER_DAYS  # A site's key is used for as long as the server's certificate.
WARN_DAYS = 30
PASSPHRASE_FILE = "TRIMTAB_PASSPHRASE_FILE"
CREDENTIAL = "trimtab-passphrase"
LOOPBACK = ("localhost", "127.0.0.1")


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read; never one that is there already."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def check_private(path: Path) -> None:
    """Raise ValueError if other users of the machine may read or change a file, as ssh does."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"{path} can be read or changed by other users (mode {mode:04o}); run "
            f"`chmod 600 {path}`."
        )


def passphrase() -> bytes | None:
    """Return the passphrase of this machine's private keys; None if they are not encrypted."""
    named, credentials = os.environ.get(PASSPHRASE_FILE), os.environ.get("CREDENTIALS_DIRECTORY")
    if named:
        path = Path(named)
        if not path.is_file():
            raise ValueError(f"{PASSPHRASE_FILE} names {path}, which is not a file; write it.")
        check_private(path)
    elif credentials and (Path(credentials) / CREDENTIAL).is_file():
        # systemd protects the folder; the mode of its files shows the mask of an access list.
        path = Path(credentials) / CREDENTIAL
    else:
        return None
    content = path.read_bytes().rstrip(b"\r\n")
    if not content:
        raise ValueError(f"{path} is empty; write the passphrase of the private keys into it.")
    return content


def make_authority(folder: Path) -> None:
    """Write ca.key and ca.crt."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trimtab federation")])
    usages = [
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "encipher_only", "decipher_only"),
    ]
    usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(usages, False))
    certificate = (
        _certificate(name, name, key.public_key(), timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    write_secret(folder / "ca.key", _private(key, passphrase()))
    write_secret(folder / "ca.crt", certificate.public_bytes(Encoding.PEM))


def make_server_certificate(
    folder: Path, hosts: Iterable[str], lasts: timedelta = timedelta(days=SERVER_DAYS)
) -> None:
    """Write server.key and server.crt for these host names and addresses, in place of older ones.

    The authority in the same folder signs; sites that trust it trust the new certificate at once.
    """
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    check_private(folder / "ca.key")
    signer = _load_pem("ca.key", (folder / "ca.key").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    named = list(dict.fromkeys((*hosts, *LOOPBACK)))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, named[0][:64])])
    certificate = (
        _certificate(name, authority.subject, key.public_key(), lasts)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in named]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
        )
        .sign(signer, hashes.SHA256())
    )
    for name_, content in (
        ("server.key", _private(key)),
        ("server.crt", certificate.public_bytes(Encoding.PEM)),
    ):
        part = folder / f"{name_}.part"
        part.unlink(missing_ok=True)
        write_secret(part, content)
        os.replace(part, folder / name_)


def make_site_key(passphrase: bytes | None = None) -> tuple[bytes, str]:
    """Return a site's private key and its public half in PEM.

    passphrase: encrypts the private key (PKCS #8); default None, not encrypted (OpenSSH).
    """
    key = ec.generate_private_key(ec.SECP384R1())
    if passphrase is not None:
        return _private(key, passphrase), _public(key)
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _public(key)


def load_site_key(private_key: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the key in the file of a site's private key, which may be encrypted."""
    if b"ENCRYPTED" in private_key:
        return _load_pem("site.key", private_key)
    with suppress(ValueError, UnsupportedAlgorithm):
        key = load_ssh_private_key(private_key, password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    raise ValueError("site.key is no private key of a site; restore it.")


def public_half(private_key: bytes) -> str:
    """Return the public half (PEM) of a site's private key."""
    return _public(load_site_key(private_key))


def canonical(public_key: str) -> str:
    """Return the public key of a site in the one form in which it is known; refuse any other."""
    try:
        key = load_pem_public_key(public_key.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("it holds no public key in PEM.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError("its public key is not on the curve P-384.")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def sign(private_key: bytes, data: bytes) -> str:
    """Return a site's signature of some data, in hexadecimal digits."""
    return load_site_key(private_key).sign(data, ec.ECDSA(hashes.SHA384())).hex()


def is_signed(public_key: str, data: bytes, signature: str) -> bool:
    """Return whether the holder of a site's key has signed some data."""
    key = load_pem_public_key(public_key.encode("ascii"))
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(bytes.fromhex(signature), data, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public_key: str | bytes) -> str:
    """Return a short name for a public key, to compare over the telephone.

    >>> fingerprint("a key")
    'SHA256:8fa3aab2faa9b79e0a0398da5b5abd07'
    """
    text = public_key.encode("ascii") if isinstance(public_key, str) else public_key
    return f"SHA256:{sha256(text.strip()).hexdigest()[:32]}"


def authority_fingerprint(certificate: bytes) -> str:
    """Return a short name for an authority's certificate; refuse what is none."""
    try:
        known = x509.load_pem_x509_certificate(certificate)
        known.verify_directly_issued_by(known)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise ValueError("ca.crt is no certificate of an authority; ask the operator.") from None
    return f"SHA256:{known.fingerprint(hashes.SHA256()).hex()[:32]}"


def expires(path: Path) -> datetime:
    """Return until when a certificate is valid."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def expiry_warning(what: str, until: datetime, remedy: str) -> str:
    """Return a sentence if something expires within 30 days or has expired; else nothing."""
    left = until - datetime.now(UTC)
    if left > timedelta(days=WARN_DAYS):
        return ""
    verb = "expires" if left > timedelta() else "expired"
    return f"{what} {verb} on {until:%Y-%m-%d}; {remedy}."


def check_certificate(path: Path, host: str | None = None) -> datetime:
    """Return until when a certificate is valid; refuse one that is not, or that names no host."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.now(UTC)
    if now < since:
        raise ValueError(
            f"{path} is valid from {since:%Y-%m-%d %H:%M} UTC on, but it is {now:%Y-%m-%d %H:%M}; "
            "set this machine's clock, or write a new one with `trimtab federate renew`."
        )
    if now > until:
        raise ValueError(
            f"{path} expired on {until:%Y-%m-%d}; write a new one with `trimtab federate renew`."
        )
    if host is not None:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if _general(host) not in list(names):
            raise ValueError(
                f"{path} was not made for {host}; write one that is with `trimtab federate renew`."
            )
    return until


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lasts: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    start = min(now - timedelta(minutes=5), now + lasts - timedelta(minutes=5))  # clocks differ
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _load_pem(name: str, content: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a PEM file, which may be encrypted."""
    encrypted = b"ENCRYPTED" in content
    secret = passphrase() if encrypted else None
    if encrypted and secret is None:
        raise ValueError(
            f"{name} is encrypted; name the file of its passphrase in {PASSPHRASE_FILE}, or give "
            f"the service the credential {CREDENTIAL}."
        )
    try:
        key = load_pem_private_key(content, secret)
    except (ValueError, UnsupportedAlgorithm):
        why = "its passphrase is another one" if encrypted else "it is damaged"
        raise ValueError(f"{name} cannot be read ({why}); restore it.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{name} is a key of another kind; restore it.")
    return key


def _public(key: ec.EllipticCurvePrivateKey) -> str:
    form = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return form.decode("ascii")


def _private(key: ec.EllipticCurvePrivateKey, secret: bytes | None = None) -> bytes:
    how = NoEncryption() if secret is None else BestAvailableEncryption(secret)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
