# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Passwords in URLs among a module's options: what must not be shown, and the options without it."""
from __future__ import annotations

import re
from typing import Any, Iterator, Mapping
from urllib.parse import unquote

MASK = ":********@"
_PASSWORD = re.compile(r"(://[^/\s:@]*:)([^/\s]+)(@)")
# A token in the place of the user: nothing that apt could be told, but a secret in what is said about it
_TOKEN = re.compile(r"://([^/\s:@]+):?@")
# What a metalink or a store of objects is asked with
_PARAMETER = re.compile(r"([?&][^=&\s]*(?:token|key|sig|secret|passw|auth|cred)[^=&\s]*=)[^&\s]+", re.IGNORECASE)


def passwords(options: Any) -> Iterator[str]:
    """Every password in a URL of these options, as it is written there and as it is meant; nested ones too."""
    if isinstance(options, Mapping):
        options = list(options.values())
    if isinstance(options, (list, tuple)):
        for option in options:
            yield from passwords(option)
    elif isinstance(options, str):
        for _before, password, _after in _PASSWORD.findall(options):
            yield password
            yield unquote(password)
        for token in _TOKEN.findall(options):
            yield token
            yield unquote(token)


def without_passwords(options: Any) -> Any:
    """The options, for a digest that anybody may read."""
    if isinstance(options, Mapping):
        return {name: without_passwords(option) for name, option in options.items()}
    if isinstance(options, (list, tuple)):
        return [without_passwords(option) for option in options]
    return _PASSWORD.sub(r"\1\3", options) if isinstance(options, str) else options


def masked(data: Any, options: Any) -> Any:
    """The data with the passwords of these options hidden wherever one stands in a URL, their own values included."""
    ends = sorted({":%s@" % password for password in passwords(options)}, key=len, reverse=True)

    def mask(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {name: mask(value) for name, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [mask(value) for value in part]
        if isinstance(part, str):
            for end in ends:
                part = part.replace(end, MASK)
        return part

    return mask(data) if ends else data


def hidden(data: Any) -> Any:
    """The data with every password, and every token in its place or among the parameters, hidden wherever one stands in
    a URL: for those who know no options that it came from."""
    if isinstance(data, Mapping):
        return {hidden(name): hidden(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [hidden(value) for value in data]
    if isinstance(data, str) and "://" in data:
        known = _TOKEN.sub("://" + MASK[1:], _PASSWORD.sub(r"\1" + MASK[1:], data))
        return _PARAMETER.sub(r"\1" + MASK[1:-1], known)
    return data
