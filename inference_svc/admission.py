"""May this group come in? HELLO against the policy that is served, before any session exists."""

from shared.protocol.messages import Error, Hello, Reject
from shared.protocol.rows import EnvSpec, describe_difference


def judge(hello: Hello, served: EnvSpec | None) -> Reject | Error | None:
    """Why this HELLO cannot be served (now, or ever), or None when it can."""
    if served is None:
        return Error(
            code="starting",
            scope="connection",
            session=0,
            nonce=hello.nonce,
            retryable=True,
            message="inference has no weights yet; your specification was passed on to the learner",
            hint="nothing to do: it goes on when the learner is there",
        )
    difference = describe_difference(served, hello.spec)
    if difference is not None:
        return Reject(
            nonce=hello.nonce,
            code="spec",
            retryable=False,
            message=f"this environment does not fit the policy that is served: {difference}",
            hint="give the actor the run's own experiment file, or start another run for this environment",
        )
    if hello.mode == "eval" and "reset" not in hello.capabilities:
        return Reject(
            nonce=hello.nonce,
            code="capability",
            retryable=False,
            message="evaluation needs environments that reset when they are told to",
            hint="announce the capability 'reset' in HELLO and follow ACT's reset bit",
        )
    return None
