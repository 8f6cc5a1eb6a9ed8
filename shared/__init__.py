"""The parts that several services share: messages, transport, runtime and, in `seedbed.shared.policy`, the policy."""

__version__ = "0.1.0"
