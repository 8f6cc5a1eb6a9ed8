"""What inference shows at /metrics: its tally, read when scraped, and two histograms."""

from collections.abc import Callable

from prometheus_client import Histogram

from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.server import Server
from seedbed.inference_svc.serving import ServedStatistics
from seedbed.inference_svc.tally import Tally
from seedbed.inference_svc.upstream import LearnerLink
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.messages import unpack_version
from seedbed.shared.runtime.metrics import Metrics


def register(
    metrics: Metrics, tally: Tally, server: Server, learner_sessions: LearnerSessions, reactor: Reactor
) -> Histogram:
    """Register everything; the histogram of forward times, which the shell fills."""

    def total(read: Callable[[LearnerLink], float]) -> Callable[[], float]:
        return lambda: learner_sessions.total(read)

    counters: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("acted_steps_total", "Training transitions acted (agent steps).", lambda: tally.acted_steps),
        ("eval_steps_total", "Evaluation transitions acted (agent steps).", lambda: tally.eval_steps),
        ("requests_total", "STEP messages accepted.", lambda: tally.requests),
        ("batches_total", "Forward passes.", lambda: tally.batches),
        ("batch_lanes_total", "Lanes of all forward passes.", lambda: tally.batch_lanes),
        ("queue_wait_seconds_total", "Time that groups waited for their batch, summed.", lambda: tally.wait_s),
        ("queue_waits_total", "Groups that waited for a batch.", lambda: tally.waits),
        ("compute_seconds_total", "Time in the compute thread.", lambda: tally.compute_s),
        ("held_no_credit_total", "Times that a group was held for the learner.", lambda: tally.held_no_credit),
        (
            "refused_messages_total",
            "Messages that broke the protocol.",
            lambda: tally.refused_messages + reactor.statistics().oversized,
        ),
        (
            "dropped_messages_total",
            "Messages dropped unread: their senders had wasted too much time.",
            lambda: reactor.statistics().dropped,
        ),
        ("lost_groups_total", "Groups whose lease ended.", lambda: tally.lost_groups),
        ("out_of_bounds_total", "Rows with observations outside their bounds.", lambda: tally.out_of_bounds),
        (
            "unrolls_acked_total",
            "UNROLLs that the learner acknowledged.",
            total(lambda link: link.outbox.acked_unrolls),
        ),
        ("unrolls_resent_total", "UNROLLs sent again.", total(lambda link: link.outbox.resent_unrolls)),
        (
            "discarded_lanes_total",
            "Lane-unrolls that fit the learner no more.",
            total(lambda link: link.discarded_lanes),
        ),
        ("pictures_total", "Pictures of evaluations that came.", lambda: server.pictures.count),
        ("actor_restarts_total", "Actor process lives beyond the first.", lambda: server.actors.num_restarts),
    )
    gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("sessions", "Groups that are in.", lambda: server.num_sessions),
        ("lanes", "Lanes of these groups: slots in use.", lambda: server.used_slots),
        (
            "unacked_lanes",
            "Lane-unrolls kept until acknowledged.",
            total(lambda link: link.outbox.unacked_lanes),
        ),
        ("eval_played", "Episodes played of the evaluation under way.", lambda: server.evaluations.progress[0]),
        ("eval_asked", "Episodes of the evaluation under way; 0: none is.", lambda: server.evaluations.progress[1]),
        ("policy_epoch", "Learner epoch of the weights that act.", lambda: unpack_version(server.version)[0]),
        ("policy_step", "Update number of the weights that act.", lambda: unpack_version(server.version)[1]),
        (
            "learner_connected",
            "1 while there is a session at the learner.",
            lambda: int(learner_sessions.main.welcome is not None),
        ),
        ("loop_lag_seconds", "How late the loop's last timer was.", lambda: reactor.statistics().loop_lag_s),
    )
    for name, description, read in counters:
        metrics.read_counter(name.removesuffix("_total"), description, read)
    for name, description, read in gauges:
        metrics.read_gauge(name, description, read)
    metrics.read_counters("groups_ended", "Groups whose session ended.", "reason", lambda: tally.groups_ended)
    metrics.read_counters(
        "dropped_steps", "Steps of unrolls that were cut off: why their group ended.", "reason",
        lambda: tally.dropped_steps,
    )  # fmt: skip
    metrics.read_counters("hellos_refused", "HELLOs that were not served.", "code", lambda: tally.hellos_refused)
    metrics.read_counters(
        "environment_restarts", "Lives of an actor beyond the first.", "actor", lambda: server.actors.restarts
    )
    metrics.read_gauges("environment_lanes", "Lanes of an actor; 0: it was lost.", "actor", server.lanes_by_actor)
    metrics.read_gauges("task_lanes", "Training lanes of a task.", "task", server.lanes_by_task)
    return metrics.histogram("forward_seconds", "One batch in the compute thread.")


def register_audience(metrics: Metrics, audience: ServedStatistics) -> None:
    """Register what a policy that is served without a learner shows beside."""
    metrics.read_counter("served_episodes", "Episodes played with the served policy.", lambda: audience.num_episodes)
    metrics.read_gauge("served_return_mean", "Mean return of the newest 1000 of them.", lambda: audience.return_mean)
