"""An evaluation's episodes → its figures."""

from learner_svc.run import EvaluationResult
from shared.protocol.layout import Array


def measure(versions: Array, statistics: Array) -> EvaluationResult:
    """Figures of packed versions i64 [N], all the same, and statistics f32 [N, K] (return, length, …)."""
    returns, lengths = statistics[:, 0].astype(float), statistics[:, 1].astype(float)
    ordered = sorted(returns.tolist())
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return EvaluationResult(
        version=int(versions[0]),
        episodes=len(ordered),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_median=median,
        return_min=ordered[0],
        return_max=ordered[-1],
        length_mean=float(lengths.mean()),
    )
