"""`seedbed bench`: one module for each thing that is measured; every result is one JSON object on a line."""

import json
from collections.abc import Iterator, Mapping, Sequence

from seedbed.shared.errors import ConfigError

WITHOUT_SETTINGS = ("transport", "replay")
Result = Mapping[str, str | int | float]


def run_bench(name: str, seconds: float, words: Sequence[str], *, curve: bool = False) -> Iterator[str]:
    """Measure one thing; its results as JSON, with `bench` and `machine` first.

    Args:
      name: "transport", "inference", "replay", "cartpole" or "pong".
      seconds: how long; the rates are those of the last half.
      words: `section.key=value` for what runs an experiment.
      curve: of "transport", compare links with keys and without.
    Raises: ConfigError for words or `curve` where they would say nothing.
    """
    if words and name in WITHOUT_SETTINGS:
        raise ConfigError(f"bench {name} runs no experiment and has no settings: leave out {' '.join(words)}")
    if curve and name != "transport":
        raise ConfigError(f"--curve is of bench transport; bench {name} has no such measurement")
    for result in _measure(name, seconds, words, curve):
        yield format_result(name, result)


def format_result(name: str, result: Result) -> str:
    """A result as one line of JSON."""
    from seedbed.services.tools.cli.doctor import machine_label

    return json.dumps({"bench": name, "machine": machine_label(), **result})


def _measure(name: str, seconds: float, words: Sequence[str], curve: bool) -> Iterator[Result]:
    if name == "transport":
        from seedbed.services.tools.cli.bench.transport import measure as measure_transport
        from seedbed.services.tools.cli.bench.transport import measure_curve

        return measure_curve(seconds) if curve else measure_transport(seconds)
    if name == "inference":
        from seedbed.services.tools.cli.bench.inference import measure as measure_inference

        return measure_inference(seconds, words)
    if name == "replay":
        from seedbed.services.tools.cli.bench.replay import measure as measure_replay

        return measure_replay(seconds)
    from seedbed.services.tools.cli.bench.experiment import measure as measure_experiment

    return measure_experiment(name, seconds, words)
