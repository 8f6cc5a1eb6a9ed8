"""Suite-wide settings."""

import logging
import tempfile
from pathlib import Path

import pytest
import structlog

from seedbed.shared.protocol.segment import FOLDER
from seedbed.shared.runtime import logs


def pytest_collection_modifyitems(items):
    """Tests that start processes come first: they take longest, and so all workers are busy to the end."""
    items.sort(key=lambda item: "system" not in item.path.parts)


@pytest.fixture(autouse=True)
def own_logs():
    """What a test sets up for logs, by a service or a command in this process, ends with it."""
    level = logging.getLogger().level
    yield
    logs.close()
    structlog.reset_defaults()
    logging.getLogger().setLevel(level)


@pytest.fixture
def shm_folder():
    """A folder in shared memory, as segments need one: not every file system has files without a name."""
    with tempfile.TemporaryDirectory(prefix="test-seedbed-", dir=FOLDER) as folder:
        yield Path(folder)
