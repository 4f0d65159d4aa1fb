"""A secured cluster: a certificate authority, users, and listeners that require them.

Needs only Java: `keytool` makes the keys. It does not export private keys, but clients need theirs as PEM. So the old
store format is read here: it protects keys only by a hash of the password.
"""

import base64
import hashlib
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.kafka.cluster import KafkaCluster, Listener
from tests.support.servers.oauth_tokens import TokenServer, serving_tokens

__all__ = [
    "PASSWORD",
    "USER",
    "Certificates",
    "SecureKafka",
    "make_certificates",
    "secure_listeners",
    "serving_secure",
]

USER: Final = "ada"
PASSWORD: Final = "open-sesame-4711"
_SCRAM_USERS: Final = tuple(f"{kind}=[name={USER},password={PASSWORD}]" for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512"))

_STORE_PASSWORD: Final = "of-the-store"
_KEYTOOL_S: Final = 60
_HASH_SIZE: Final = 20
_LOGIN: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Certificates:
    """PEM files of one authority. `ca_file`: the authority's certificate.

    `broker_file`: the broker's key and certificate, valid for 127.0.0.1 and localhost. `certificate_file`, `key_file`:
    the client's; its key is not encrypted.
    """

    ca_file: Path
    broker_file: Path
    certificate_file: Path
    key_file: Path


def make_certificates(directory: Path) -> Certificates:
    """Make a new authority with a broker and a client; the folder need not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "keys.jks"
    _make_key(store, "authority", "-ext", "bc:c=ca:true")
    _make_key(store, "broker", "-signer", "authority", "-ext", "san=ip:127.0.0.1,dns:localhost")
    _make_key(store, "client", "-signer", "authority")
    entries = dict(_read_store(store.read_bytes()))
    certificates = Certificates(*(directory / name for name in ("ca.pem", "broker.pem", "client.pem", "client.key")))
    certificates.ca_file.write_text(entries["authority"].chain)
    certificates.broker_file.write_text(entries["broker"].key + entries["broker"].chain)
    certificates.certificate_file.write_text(entries["client"].chain)
    certificates.key_file.write_text(entries["client"].key)
    return certificates


def secure_listeners(certificates: Certificates) -> list[Listener]:
    """Return listeners: `SASL` and `SASL_TLS` for `USER` by every mechanism, `TLS` for all, `MUTUAL_TLS` by
    certificate.

    With OAUTHBEARER tokens are unsigned.
    """
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker_file),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca_file),
    }
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "plain.sasl.jaas.config": f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        "scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        "oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="broker";',
    }
    return [
        Listener("SASL", "SASL_PLAINTEXT", sasl),
        Listener("SASL_TLS", "SASL_SSL", sasl | tls),
        Listener("TLS", "SSL", tls),
        Listener("MUTUAL_TLS", "SSL", tls | {"ssl.client.auth": "required"}),
    ]


@dataclass(frozen=True)
class SecureKafka:
    """A cluster with `secure_listeners`, and the client's credentials. `tokens`: the token endpoint."""

    cluster: KafkaCluster
    certificates: Certificates
    tokens: TokenServer


@contextmanager
def serving_secure(directory: Path) -> Iterator[SecureKafka]:
    """Run a cluster of one node with authentication, stopped when left.

    Without an ACL everything is allowed to everybody; ACLs are created over the plain listener.
    """
    certificates = make_certificates(directory / "certificates")
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    listeners = secure_listeners(certificates)
    with (
        serving_tokens() as tokens,
        KafkaCluster(directory, properties=rules, listeners=listeners, scram_users=_SCRAM_USERS) as cluster,
    ):
        yield SecureKafka(cluster, certificates, tokens)


@dataclass(frozen=True)
class _Entry:
    """A private key and its certificates, the authority's last, as PEM."""

    key: str
    chain: str


def _make_key(store: Path, alias: str, *options: str) -> None:
    command = ["keytool", "-genkeypair", "-storetype", "JKS", "-keystore", str(store), "-storepass", _STORE_PASSWORD]
    of_key = ["-alias", alias, "-keyalg", "RSA", "-keysize", "2048", "-dname", f"CN={alias}", "-validity", "3650"]
    # A certificate that begins an hour ago tolerates a clock that is set back a little.
    done = subprocess.run(
        [*command, *of_key, "-startdate", "-1H", *options],
        capture_output=True,
        text=True,
        timeout=_KEYTOOL_S,
        check=False,
    )
    if done.returncode:
        message = f"keytool: {done.stdout}{done.stderr}"
        raise RuntimeError(message)


def _read_store(data: bytes) -> Iterator[tuple[str, _Entry]]:
    """Read the entries of a key store in Java's old format, by their names."""
    at = 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f">{form}", data, at)
        at += struct.calcsize(f">{form}")
        return int(value)

    def piece(form: str) -> bytes:
        nonlocal at
        size = number(form)
        at += size
        return data[at - size : at]

    number("I"), number("I")  # magic number and version
    for _ in range(number("I")):
        number("I"), (alias := piece("H").decode()), number("Q")  # kind and date
        key = _reveal(piece("I"))
        chain = []
        for _ in range(number("I")):
            piece("H")
            chain.append(_pem("CERTIFICATE", piece("I")))
        yield alias, _Entry(_pem("PRIVATE KEY", key), "".join(chain))


def _reveal(hidden: bytes) -> bytes:
    """Decrypt a private key: it is mixed with a chain of hashes of the password that begins with a salt."""
    _algorithm, content = _elements(next(_elements(hidden)))
    password = _STORE_PASSWORD.encode("utf-16-be")
    link, mixed = content[:_HASH_SIZE], content[_HASH_SIZE:-_HASH_SIZE]
    stream = b""
    while len(stream) < len(mixed):
        link = hashlib.sha1(password + link, usedforsecurity=False).digest()
        stream += link
    return bytes(a ^ b for a, b in zip(mixed, stream, strict=False))


def _elements(data: bytes) -> Iterator[bytes]:
    """Return the contents of the elements of an ASN.1 sequence."""
    at = 0
    while at < len(data):
        size = data[at + 1]
        at += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(data[at : at + digits], "big")
            at += digits
        yield data[at : at + size]
        at += size


def _pem(kind: str, data: bytes) -> str:
    text = base64.encodebytes(data).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"
