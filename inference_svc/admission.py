"""Decides whether a group may open a session: compares its HELLO with the run's tasks and the policy served."""

from collections.abc import Sequence

from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.shared.protocol.compatibility import check_spec, check_statistics
from seedbed.shared.protocol.messages import Error, Hello, Reject
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.sessions import refuse_size, refuse_version

USE_RUN_ENV = "give this actor the environment and [env] settings of the run's config.toml, or start another run"


def check_hello(
    hello: Hello,
    served: EnvSpec | None,
    learner_sessions: LearnerSessions,
    max_frame_bytes: int,
    known_tasks: Sequence[str] = (),
) -> Reject | Error | None:
    """Return the answer to a HELLO that cannot be served, now or ever; None if it can.

    Args:
      served: the specification of the policy served; None while there is no policy.
      known_tasks: those that the policy served tells apart; empty if it does not.
      learner_sessions: they know the run's tasks, and which specifications the learner refused.
    """
    refusal = refuse_version(hello) or refuse_size(hello, max_frame_bytes)
    if refusal is not None:
        code, _, message, hint = refusal
        return _reject(hello, code, message, hint)
    problem = check_statistics(hello.spec) or learner_sessions.check_env(hello.task, hello.spec)
    if problem is not None:
        return _reject(hello, problem.code, problem.message, problem.hint)
    if served is None:
        return _without_policy(hello, learner_sessions)
    problem = check_spec(hello.task, hello.spec, served, learner_sessions.first_spec(hello.task))
    if problem is not None and not hello.task:
        message = f"this environment does not fit the policy served here: {problem.message}"
        return _reject(hello, problem.code, message, USE_RUN_ENV)
    if problem is not None:
        return _reject(hello, problem.code, problem.message, problem.hint)
    if known_tasks and hello.task not in known_tasks:
        message = f"the policy served here must know its task, and {hello.task!r} is none of {', '.join(known_tasks)}"
        return _reject(hello, "task", message, "set actor.task to one of them")
    if hello.mode == "eval" and "reset" not in hello.capabilities:
        return _reject(
            hello,
            "capability",
            "an evaluation needs environments that reset on request",
            "announce the capability 'reset' in HELLO and follow ACT's reset bit",
        )
    return None


def _without_policy(hello: Hello, learner_sessions: LearnerSessions) -> Reject | Error:
    """Return "try again", or a final refusal if the learner has refused this very specification."""
    refused = learner_sessions.main.refused.get(hello.spec)
    if refused is not None:
        return _reject(hello, "spec", f"this environment is not the run's: {refused.message}", USE_RUN_ENV)
    return Error(
        code="starting",
        scope="connection",
        session=0,
        nonce=hello.nonce,
        retryable=True,
        message="inference has no weights yet; it has passed this specification on to the learner",
        hint="wait: it continues once the learner is running",
    )


def _reject(hello: Hello, code: str, message: str, hint: str) -> Reject:
    """Return a REJECT that is not retryable: the actor ends with its message and hint."""
    return Reject(nonce=hello.nonce, code=code, retryable=False, message=message[:1000], hint=hint)
