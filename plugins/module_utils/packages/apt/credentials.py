# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Credentials of a repository: out of its URL, into a file of apt_auth.conf(5), and nowhere else.

A step shows that file with the password masked; who writes it has the password from the module's parameters.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple
from urllib.parse import unquote, urlsplit, urlunsplit

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import Executor, restore_step
from ..model import Credentials

DIRECTORY = "/etc/apt/auth.conf.d"
MASK = "********"
MODE = 0o600
WRITE = "credentials.write"


@dataclass(frozen=True)
class AuthFile:
    """Our file of credentials as it is.

    shown:   its text with every password masked, None when it is not there.
    current: whether it is, to the byte and the mode, as the policy wants it.
    """

    shown: Optional[str] = None
    current: bool = False


@dataclass(frozen=True)
class Form:
    """How a package manager has credentials in a file.

    text:   (where the repository is, who we are): the file.
    masked: (such a file): the same for people.
    why:    why it is written.
    """

    text: Callable[[str, Credentials], str]
    masked: Callable[[str], str]
    why: str


def split(url: str) -> Tuple[str, Optional[Credentials]]:
    """(URL without credentials, credentials or None).

    Raises GpuOpsError when apt could not be told them: its file knows no quotes, so they hold neither white space nor
    '#' at their beginning.
    """
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    told, host = parts.netloc.rsplit("@", 1)
    user, _colon, password = (unquote(word) for word in told.partition(":"))
    bare = urlunsplit(parts._replace(netloc=host))
    if any(word.split() != [word] or word.startswith("#") for word in (user, password)):
        raise GpuOpsError(
            "packages.credentials_malformed",
            found="credentials for %s that apt cannot be told" % bare,
            wanted="user:password@ without white space and without # at the beginning of either",
            remedy="choose another password for this repository, or put the credentials into a file of "
                   "/etc/apt/auth.conf.d yourself and leave them out of the URL",
        )
    return bare, Credentials(user, password)


def text(uri: str, told: Credentials) -> str:
    """A line of apt_auth.conf(5); with its scheme, without which apt sends nothing by plain http."""
    return "machine %s login %s password %s\n" % (uri, told.user, told.password)


def masked(written: str) -> str:
    """The text of such a file for people."""
    return re.sub(r"(\bpassword\s+)\S+", r"\1" + MASK, written)


AUTH_CONF = Form(text, masked, "apt logs in to the repository with these credentials; no other file has them.")


def observe(
    host: Host, journal: Journal, capability: str, path: str, uri: str, wanted: Optional[Credentials],
    form: Form = AUTH_CONF
) -> AuthFile:
    """A file of this name that we did not write is somebody's, and stays."""
    there = host.read(path)
    ours = any(original.path == path for original in journal.originals(capability))
    if there is None or (wanted is None and not ours):
        return AuthFile(None, wanted is None)
    return AuthFile(form.masked(there),
                    wanted is not None and there == form.text(uri, wanted) and host.mode(path) == MODE)


def steps(
    capability: str, path: str, uri: str, wanted: Optional[Credentials], seen: AuthFile, form: Form = AUTH_CONF,
    **parameters: Any
) -> List[Step]:
    """Pure: write the credentials, or put back what was there before them."""
    if seen.current:
        return []
    if wanted is None:
        return [removal(capability, path, seen)]
    shown = form.masked(form.text(uri, wanted))
    return [Step(
        capability=capability,
        action=WRITE,
        subject=path,
        why=form.why,
        change={"before": seen.shown, "after": shown if shown != seen.shown else shown + "# another password\n"},
        parameters={"uri": uri, **parameters},
    )]


def removal(capability: str, path: str, seen: AuthFile) -> Step:
    return restore_step(capability, path, seen.shown, None)


class _WithCredentials(Protocol):
    @property
    def credentials(self) -> Optional[Credentials]:
        """What the repository asks for."""


_NO_OTHERS: Mapping[str, Form] = MappingProxyType({})


def executors(policy: _WithCredentials, forms: Mapping[str, Form] = _NO_OTHERS) -> Dict[str, Executor]:
    """The executor of WRITE: it has from the policy what no step, plan or journal carries.

    forms: those of other package managers, by the name that a step has in 'manager'.
    """
    return {WRITE: writer(policy.credentials, forms)}


def writer(wanted: Optional[Credentials], forms: Mapping[str, Form] = _NO_OTHERS) -> Executor:
    def write(host: Host, journal: Journal, step: Step) -> None:
        uri = step.parameters["uri"]
        if wanted is None:
            raise GpuOpsError(
                "packages.credentials_missing",
                found="no credentials for %s in this policy" % uri,
                wanted="those that step %s was planned with" % step.id,
                remedy="name the repository with user:password@ again, or make a new plan",
            )
        journal.keep_original(step.capability, step.subject)
        if host.mode(step.subject) not in (None, MODE):
            host.remove(step.subject)
        form = forms.get(step.parameters.get("manager", ""), AUTH_CONF)
        host.write(step.subject, form.text(uri, wanted), MODE)

    return write
