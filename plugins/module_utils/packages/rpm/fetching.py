# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A repository's key, or any other file, by its address, through curl, which every system with rpm has."""
from __future__ import annotations

from typing import Optional

from ...core.errors import GpuOpsError
from ...core.host import CommandResult, Host
from ..given_key import read_given
from ..model import Credentials

_SECONDS = 120
# curl's output is text to us: a binary key passes as a file
_OPTIONS = ("--fail", "--silent", "--show-error", "--location", "--connect-timeout", "20", "--speed-time", "60")


def read_key(
    host: Host, key: str, told: Optional[Credentials] = None, proxy: str = "", login: Optional[Credentials] = None
) -> str:
    """A repository's public key, armoured from what was read of it: a URL, a path on the host or armoured text.

    told: who we are for that address; proxy: what the package manager goes through, '' for none; login: who we are for
    that proxy.
    """
    return read_given(host, key, lambda url: _fetch(host, url, told, proxy, login))


def _fetch(
    host: Host, url: str, told: Optional[Credentials], proxy: str, login: Optional[Credentials]
) -> bytes:
    with host.scratch() as scratch:
        target = scratch + "/key"
        done = download(host, url, target, told, _SECONDS, proxy, login)
        if done.rc != 0:
            raise GpuOpsError(
                "packages.key_not_fetched",
                found="%s cannot be read: %s" % (url, " | ".join(done.stderr.splitlines()[:2]) or "no output"),
                wanted="the repository's public key",
                remedy="check the key's address, and this host's network and proxy, or give the key as a path on the "
                       "host, or as ASCII-armoured text",
                rc=done.rc, stderr=done.stderr)
        with open(target, "rb") as handle:
            return handle.read()


def download(
    host: Host, url: str, target: str, told: Optional[Credentials], timeout: float, proxy: str = "",
    login: Optional[Credentials] = None
) -> CommandResult:
    """Fetch a file into a real path; curl's end tells whether it came. See read_key()."""
    # Neither a password nor a proxy's stands among the words of a process (curl(1), --config)
    lines = ['url = "%s"' % url, 'output = "%s"' % target]
    lines += ['user = "%s:%s"' % (_quoted(told.user), _quoted(told.password))] if told else []
    lines += ['proxy = "%s"' % _quoted(proxy)] if proxy else []
    lines += ['proxy-user = "%s:%s"' % (_quoted(login.user), _quoted(login.password)), "proxy-anyauth"] \
        if proxy and login else []
    return host.run(["curl", *_OPTIONS, "--max-time", "%d" % timeout, "--config", "-"], check=False,
                    timeout=timeout + 10, stdin="\n".join(lines) + "\n")


def _quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')
