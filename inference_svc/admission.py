"""May this group come in? HELLO against the run's tasks and the policy that is served, before any session exists."""

from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.shared.protocol.compatibility import judge_spec, judge_statistics
from seedbed.shared.protocol.messages import Error, Hello, Reject
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.sessions import refuse_size, refuse_version

FIT = "give this actor the run's environment and [env] settings (its folder's config.toml), or start another run"


def judge(
    hello: Hello, served: EnvSpec | None, learner_sessions: LearnerSessions, max_frame_bytes: int
) -> Reject | Error | None:
    """Why this HELLO cannot be served (now, or ever), or None when it can.

    Args:
      served: the specification of the policy that is there.
      learner_sessions: they know what the learner said of the run's tasks and of specifications.
    """
    refusal = refuse_version(hello) or refuse_size(hello, max_frame_bytes)
    if refusal is not None:
        code, _, message, hint = refusal
        return _reject(hello, code, message, hint)
    misfit = judge_statistics(hello.spec) or learner_sessions.judge(hello.task, hello.spec)
    if misfit is not None:
        return _reject(hello, misfit.code, misfit.message, misfit.hint)
    if served is None:
        return _without_policy(hello, learner_sessions)
    misfit = judge_spec(hello.task, hello.spec, served, learner_sessions.first_spec(hello.task))
    if misfit is not None and not hello.task:
        message = f"this environment does not fit the policy that is served: {misfit.message}"
        return _reject(hello, misfit.code, message, FIT)
    if misfit is not None:
        return _reject(hello, misfit.code, misfit.message, misfit.hint)
    if hello.mode == "eval" and "reset" not in hello.capabilities:
        return _reject(
            hello,
            "capability",
            "evaluation needs environments that reset when they are told to",
            "announce the capability 'reset' in HELLO and follow ACT's reset bit",
        )
    return None


def _without_policy(hello: Hello, learner_sessions: LearnerSessions) -> Reject | Error:
    """Not yet, or never if the learner has said so of this very specification."""
    refused = learner_sessions.main.refused.get(hello.spec)
    if refused is not None:
        return _reject(hello, "spec", f"this environment is not the run's: {refused.message}", FIT)
    return Error(
        code="starting",
        scope="connection",
        session=0,
        nonce=hello.nonce,
        retryable=True,
        message="inference has no weights yet; your specification was passed on to the learner",
        hint="nothing to do: it goes on when the learner is there",
    )


def _reject(hello: Hello, code: str, message: str, hint: str) -> Reject:
    """A REJECT that is not retryable: the actor ends with its message and hint."""
    return Reject(nonce=hello.nonce, code=code, retryable=False, message=message[:1000], hint=hint)
