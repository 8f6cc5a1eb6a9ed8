"""What two services must agree on: messages, transport, runtime, and (in `seedbed.shared.policy`) the policy."""

__version__ = "0.1.0"
