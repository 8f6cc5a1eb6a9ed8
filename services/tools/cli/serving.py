"""`seedbed inference --serve RUN`: a run's checkpoint for actors in eval and play mode, without a learner."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from seedbed.inference_svc.config import InferenceSettings
from seedbed.inference_svc.service import serve
from seedbed.inference_svc.serving import ServedPolicy
from seedbed.learner_svc.run.saved_policy import read_policy
from seedbed.services.tools.cli.evaluate import EvaluationSettings, Which, find_checkpoint
from seedbed.services.tools.cli.runs import RECORD
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.service import main_from

EPOCH = 1  # of the versions that actors see: nothing newer ever comes


def read_served(run_dir: Path, which: Which, *, greedy: bool | None) -> ServedPolicy:
    """A run's newest or best policy, ready to be served.

    Args:
      greedy: the most likely actions or sampled ones; none: as the run evaluates.
    Raises: CheckpointError if there is no checkpoint that can be read; ConfigError for a broken config.toml.
    """
    settings = load_settings(EvaluationSettings, run_dir / RECORD)
    checkpoint = find_checkpoint(run_dir, which)
    saved = read_policy(checkpoint)
    return ServedPolicy(
        source=f"{checkpoint.kind} of update {checkpoint.step}, {checkpoint.path}",
        run_id=str(checkpoint.meta["run_id"]),
        run_seed=settings.run.seed,
        version=pack_version(EPOCH, checkpoint.step),
        manifest=saved.manifest.to_json(),
        buffer=saved.flat.tobytes(),
        greedy=settings.eval.greedy if greedy is None else greedy,
    )


def run_served(run_dir: Path, which: Which, words: Sequence[str], *, greedy: bool | None) -> int:
    """Serve until a signal comes; the exit code."""
    served = read_served(run_dir, which, greedy=greedy)
    return main_from("inference", InferenceSettings, partial(serve, served=served), words)
