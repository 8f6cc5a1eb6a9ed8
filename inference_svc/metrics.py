"""The metrics of an inference service at /metrics: its counters, read at each scrape, and a histogram."""

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import Histogram

from seedbed.inference_svc.counters import COUNTED, InferenceCounters
from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.server import Server
from seedbed.inference_svc.serving import ServedStatistics
from seedbed.inference_svc.upstream import LearnerLink
from seedbed.shared.figures import inference
from seedbed.shared.figures.declare import Metric
from seedbed.shared.figures.service import LOOP_LAG
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.messages import unpack_version
from seedbed.shared.runtime.metrics import Metrics


def register(
    metrics: Metrics, counters: InferenceCounters, server: Server, learner_sessions: LearnerSessions, reactor: Reactor
) -> Histogram:
    """Register all metrics and return the histogram of forward times, which the shell fills."""

    def total(read: Callable[[LearnerLink], float]) -> Callable[[], float]:
        return lambda: learner_sessions.total(read)

    for metric, name in COUNTED.items():
        add = metrics.read_labelled if metric.labels else metrics.read
        add(metric, partial(getattr, counters, name))
    figures: Mapping[Metric, Callable[[], float]] = {
        inference.REFUSED_MESSAGES: lambda: counters.refused_messages + reactor.statistics().oversized,
        inference.DROPPED_MESSAGES: lambda: reactor.statistics().dropped,
        inference.UNROLLS_ACKED: total(lambda link: link.outbox.acked_unrolls),
        inference.UNROLLS_SHARED: total(lambda link: link.outbox.shared_unrolls),
        inference.WEIGHTS_SHARED: total(lambda link: link.shared_weights),
        inference.UNROLLS_RESENT: total(lambda link: link.outbox.resent_unrolls),
        inference.DISCARDED_LANES: total(lambda link: link.discarded_lanes),
        inference.PICTURES: lambda: server.pictures.count,
        inference.ACTOR_RESTARTS: lambda: server.actors.num_restarts,
        inference.SESSIONS: lambda: server.num_sessions,
        inference.LANES: lambda: server.used_slots,
        inference.UNACKED_LANES: total(lambda link: link.outbox.unacked_lanes),
        inference.AWAITED_GROUPS: lambda: len(server.awaited_groups),
        inference.EVAL_PLAYED: lambda: server.evaluations.progress[0],
        inference.EVAL_ASKED: lambda: server.evaluations.progress[1],
        inference.POLICY_EPOCH: lambda: unpack_version(server.version)[0],
        inference.POLICY_STEP: lambda: unpack_version(server.version)[1],
        inference.LEARNER_CONNECTED: lambda: int(learner_sessions.main.welcome is not None),
        LOOP_LAG: lambda: reactor.statistics().loop_lag_s,
    }
    for metric, read in figures.items():
        metrics.read(metric, read)
    metrics.read_labelled(inference.ENVIRONMENT_RESTARTS, lambda: server.actors.restarts)
    metrics.read_labelled(inference.ENVIRONMENT_LANES, server.lanes_by_actor)
    metrics.read_labelled(inference.TASK_LANES, server.lanes_by_task)
    return metrics.histogram(inference.FORWARD_SECONDS.name, inference.FORWARD_SECONDS.meaning)


def register_served(metrics: Metrics, served_statistics: ServedStatistics) -> None:
    """Register the additional metrics of a policy that is served without a learner."""
    metrics.read(inference.SERVED_EPISODES, lambda: served_statistics.num_episodes)
    metrics.read(inference.SERVED_RETURN, lambda: served_statistics.return_mean)
