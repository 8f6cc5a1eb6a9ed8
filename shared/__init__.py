"""What two services must agree on: messages, transport, runtime, and (in `shared.policy`) the policy."""
