# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A repository's password as dnf gets it: from a variable, whose file root alone may read (dnf.conf(5), Variables).

The file of a repository is everybody's to read, and names the variable. dnf takes the first line of a variable's file
for its value, whatever signs are in it; the second one says which repository it is for. The name of who logs in stands
in the repository's file, where dnf would take some signs for more than they are.
"""
from __future__ import annotations

from typing import Dict

from ..apt.credentials import MASK, Form
from ..model import Credentials

DIRECTORY = "/etc/dnf/vars"
# What dnf's configuration substitutes and, since dnf 4.20, escapes
_MEANS_MORE = "$\\"


def text(uri: str, told: Credentials) -> str:
    return "%s\n%s\n" % (told.password, uri)


def masked(written: str) -> str:
    return MASK + "\n" + written.partition("\n")[2]


def options(told: Credentials, variable: str) -> Dict[str, str]:
    """Options of the repository. Whoever cannot read the variable is not let in, and does without the repository."""
    return {"username": told.user, "password": "$" + variable, "skip_if_unavailable": "1"}


def objection(told: Credentials) -> str:
    """Why dnf could not be told them, '' where it can."""
    found = [sign for sign in _MEANS_MORE if sign in told.user]
    return "a user name with %s" % " and ".join(found) if found else ""


FORM = Form(text, masked, "dnf logs in to the repository with this password; no other file has it.")
