"""May this group come in? HELLO against the policy that is served, before any session exists."""

from shared.protocol.messages import Error, Hello, Reject
from shared.protocol.rows import EnvSpec, describe_difference
from shared.protocol.sessions import refuse_version

FIT = "give this actor the run's environment and [env] settings (its folder's config.toml), or start another run"


def judge(hello: Hello, served: EnvSpec | None, refused: Reject | None = None) -> Reject | Error | None:
    """Why this HELLO cannot be served (now, or ever), or None when it can.

    Args:
      served: the specification of the policy that is there.
      refused: what the learner said of this HELLO's specification when there was no policy yet.
    """
    version = refuse_version(hello)
    if version is not None:
        code, _, message, hint = version
        return _reject(hello, code, message, hint)
    if served is None and refused is not None:
        return _reject(hello, "spec", f"this environment is not the run's: {refused.message}", FIT)
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
        return _reject(hello, "spec", f"this environment does not fit the policy that is served: {difference}", FIT)
    if hello.mode == "eval" and "reset" not in hello.capabilities:
        return _reject(
            hello,
            "capability",
            "evaluation needs environments that reset when they are told to",
            "announce the capability 'reset' in HELLO and follow ACT's reset bit",
        )
    return None


def _reject(hello: Hello, code: str, message: str, hint: str) -> Reject:
    """For good."""
    return Reject(nonce=hello.nonce, code=code, retryable=False, message=message, hint=hint)
