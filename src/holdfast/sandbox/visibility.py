"""What a confined command can see of the machine: programs, chosen settings, and this Python. Only this is bound into
its root, so what is forgotten here is missing, not leaked.
"""

import functools
import glob
import os
import sys

PLACE = "/sandbox"
"""Path of the private folder as commands see it."""
TEMPORARY = "/tmp"
"""Path of its temporary folder as commands see it."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Programs and libraries. Not /opt, /srv, /var, /run, /home and /root, where people and services keep their own."""
_LOADER = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_LOCALE = ("localtime", "timezone", "locale.alias", "locale.conf")
_LOOKUPS = ("nsswitch.conf", "host.conf", "protocols", "services", "shells", "os-release", "mime.types", "magic")
_TERMINAL = ("terminfo", "inputrc", "bash.bashrc", "fonts")
_JAVA = ("java-*",)
_CERTIFICATES = (
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "pki/ca-trust/source"),
)
"""Only public certificates: private keys are in folders beside them."""
SETTINGS = (*_LOADER, *_LOCALE, *_LOOKUPS, *_TERMINAL, *_JAVA, *_CERTIFICATES)
_NETWORK = ("hosts", "resolv.conf", "gai.conf")


@functools.cache
def settings(network: bool) -> list[str]:
    """Return the files of /etc that programs read."""
    names = (*SETTINGS, *(_NETWORK if network else ()))
    return [path for name in names for path in sorted(glob.glob(f"/etc/{name}"))]


@functools.cache
def homes_of_python() -> list[str]:
    """Return the paths that this Python needs: its virtual environment, the interpreter's folder, and each link to it
    by itself, because the folder of a link may be a home folder with secrets.
    """
    found = [sys.prefix, sys.base_prefix]
    path = sys.executable
    while os.path.islink(path):
        found.append(path)
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    found += [os.path.dirname(os.path.dirname(each)) for each in (path, os.path.realpath(path))]
    found = [os.path.abspath(each) for each in found]
    return sorted({each for each in found if each.count(os.sep) > 1 and not each.startswith("/usr/")}, key=len)


@functools.cache
def inner_folders() -> list[str]:
    """Return the folders directly below `/tmp` or `/sandbox` that hold a part of this Python. A command has its own
    folders under these two names, so these parts must be bound into them.
    """
    inside = [each for each in homes_of_python() if each.startswith((f"{TEMPORARY}/", f"{PLACE}/"))]
    return sorted({found for each in inside if os.path.isdir(found := os.sep.join(each.split(os.sep)[:3]))})
