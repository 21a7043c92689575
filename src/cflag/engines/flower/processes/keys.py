"""Keys: an authority and a server certificate for TLS, and a key pair per client for node authentication."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cflag.errors import UserError

VALID = timedelta(days=3650)
CURVE = ec.SECP384R1()
_PEM = serialization.Encoding.PEM
_OPENSSH = serialization.Encoding.OpenSSH
_PLAIN = serialization.NoEncryption()


def make_server_keys(folder: Path, hosts: Sequence[str], authority: Path | None = None) -> list[Path]:
    """Make a certificate (server.key, server.pem) for these names and addresses, and ca.crt to check it with.

    The authority's own key vouches for any server. It is thrown away, unless there is a folder `authority`, which is
    made for it, or has one already.
    """
    names = [_refuse_existing(folder / name) for name in ("ca.crt", "server.key", "server.pem")]
    if authority is not None and authority.resolve() == folder.resolve():
        raise UserError(f"--authority {authority}: the server's own folder is no place for ca.key; choose another")
    ca_key, issuer, made = _authority(authority)
    key = ec.generate_private_key(CURVE)
    certificate = (
        _certificate(_name(hosts[0]), issuer.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    folder.mkdir(parents=True, exist_ok=True)
    names[0].write_bytes(issuer.public_bytes(_PEM))
    _write_private(names[1], key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN))
    names[2].write_bytes(certificate.public_bytes(_PEM))
    return [*made, *names]


def _authority(folder: Path | None) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, list[Path]]:
    """Return an authority's key and certificate: those in the folder, or new ones, and the files made for them."""
    if folder is not None and (folder / "ca.key").exists():
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"--authority {folder}: its ca.key and ca.crt cannot be read ({error})") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise UserError(f"--authority {folder}: its ca.key and ca.crt do not belong together")
        return key, certificate, []
    key, name = ec.generate_private_key(CURVE), _name("cflag authority")
    certificate = (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    if folder is None:
        return key, certificate, []
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = [folder / "ca.key", _refuse_existing(folder / "ca.crt")]
    _write_private(names[0], key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN))
    names[1].write_bytes(certificate.public_bytes(_PEM))
    return key, certificate, names


def check_server_keys(folder: Path) -> None:
    """Refuse a server's keys that are incomplete, that others can read, or that lie beside the authority's own key."""
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: there is no such file; 'cflag keys server {folder}' makes it")
    if (folder / "ca.key").exists():
        raise UserError(
            f"{folder / 'ca.key'} can vouch for any server, and a server does not need it; move it off this machine"
        )
    refuse_open(folder / "server.key")
    read_public_keys(folder / "clients")


def refuse_open(key: Path) -> None:
    """Refuse a private key that others on this machine can read."""
    if key.stat().st_mode & 0o077:
        raise UserError(f"{key} can be read by others; run: chmod 600 {key}")


def read_public_keys(folder: Path) -> list[bytes]:
    """Return the clients' public keys, which are the files *.pub, in the form that clients send."""
    found = sorted(folder.glob("*.pub"))
    if not found:
        raise UserError(f"{folder} holds no public key of a client (*.pub); make them with 'cflag keys client' there")
    return [read_public_key(path) for path in found]


def read_public_key(path: Path) -> bytes:
    """Return a client's public key in the form that clients send."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} is not a public key of 'cflag keys client' ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path} is not a public key of 'cflag keys client' (it is of another kind)")
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def make_client_key(folder: Path, name: str = "client") -> list[Path]:
    """Make a client's key pair: NAME.key stays with it, NAME.pub goes to the server."""
    names = [_refuse_existing(folder / f"{name}.key"), _refuse_existing(folder / f"{name}.pub")]
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(CURVE)
    _write_private(names[0], key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN))
    names[1].write_bytes(key.public_key().public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH) + b"\n")
    return names


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    # A day early: clocks of other machines may be behind.
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + VALID)
    return builder.serial_number(x509.random_serial_number())


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _refuse_existing(path: Path) -> Path:
    if path.exists():
        raise UserError(f"{path} already exists; keys are never replaced, choose another folder")
    return path


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
