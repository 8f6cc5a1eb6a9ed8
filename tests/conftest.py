"""Suite-wide settings."""

import logging

import pytest
import structlog

from seedbed.shared.runtime import logs


@pytest.fixture(autouse=True)
def own_logs():
    """What a test sets up for logs, by a service or a command in this process, ends with it."""
    level = logging.getLogger().level
    yield
    logs.close()
    structlog.reset_defaults()
    logging.getLogger().setLevel(level)
