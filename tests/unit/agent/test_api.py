# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a host verifies the API server that it tells of itself."""
from __future__ import annotations

import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.api import conversation
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host

CONFIG = "/etc/kubernetes/kubelet.conf"


def test_an_authority_that_the_kubelet_takes_is_taken_by_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key identifier, as EKS has made them: a Python since 3.13 begins with the rules that refuse it."""
    made = ssl.create_default_context

    def strictly(*words: Any, **named: Any) -> ssl.SSLContext:
        context = made(*words, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strictly)
    host = Host(str(tmp_path))
    host.write(CONFIG, json.dumps({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://k"}}],
        "users": [{"name": "u", "user": {"token": "t"}}]}))
    with conversation(host, CONFIG, time.monotonic() + 1) as api:
        trusting = api._context
    assert not trusting.verify_flags & ssl.VERIFY_X509_STRICT
    assert trusting.verify_mode == ssl.CERT_REQUIRED and trusting.check_hostname
