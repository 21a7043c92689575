"""Keys: an authority and a server certificate for TLS, and a key pair per client for node authentication."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cflag.errors import UserError

VALID = timedelta(days=3650)
CURVE = ec.SECP384R1()
_PEM = serialization.Encoding.PEM
_OPENSSH = serialization.Encoding.OpenSSH
_PLAIN = serialization.NoEncryption()


def make_server_keys(folder: Path, hosts: Sequence[str]) -> list[Path]:
    """Make an authority (ca.key, ca.crt) and a certificate (server.key, server.pem) for these names and addresses."""
    names = [_refuse_existing(folder / name) for name in ("ca.key", "ca.crt", "server.key", "server.pem")]
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)
    issuer = _name("cflag authority")
    authority = (
        _certificate(issuer, issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    certificate = (
        _certificate(_name(hosts[0]), issuer, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write_private(names[0], ca_key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN))
    names[1].write_bytes(authority.public_bytes(_PEM))
    _write_private(names[2], key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN))
    names[3].write_bytes(certificate.public_bytes(_PEM))
    return names


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
