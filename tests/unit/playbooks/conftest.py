# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A controller for every test that wants one, and a server that answers as a cluster does."""
from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Iterator

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "cluster")]

from canned import Hosts  # noqa: E402
from cluster_api import Api  # noqa: E402
from controller import Controller  # noqa: E402

SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    server = Api(tmp_path)
    yield server
    server.close()


@pytest.fixture
def in_words(controller: Controller, api: Api) -> Hosts:
    return Hosts(controller, api)


@pytest.fixture
def now() -> datetime:
    """In whole seconds, as the record of rollouts has its instants."""
    return datetime.now(timezone.utc).replace(microsecond=0)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Path:
    """The system's Python, run as nobody: what modules meet on a host that is reached without become.

    It may read what root has put into the temporary directory of the task, as if that were its own.
    """
    if os.geteuid() != 0 or not os.path.exists(SYSTEM_PYTHON):
        pytest.skip("needs root, and a Python that nobody may run")
    path = tmp_path / "python-of-nobody"
    path.write_text("#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_read_search "
                    "--ambient-caps=+dac_read_search %s \"$@\"\n" % SYSTEM_PYTHON)
    path.chmod(0o755)
    return path
