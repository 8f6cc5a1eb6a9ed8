"""The actor's image has no torch in it."""

import subprocess
import sys

MODULES = (
    "seedbed.actor_svc.__main__",
    "seedbed.actor_svc.service",
    "seedbed.actor_svc.envs",
    "seedbed.actor_svc.fleet",
    "seedbed.shared.protocol.sessions",
)


def test_an_actor_imports_no_torch_and_no_other_service() -> None:
    """A fresh interpreter that imports all of it has neither torch nor a sibling service loaded."""
    code = (
        "import importlib, sys\n"
        f"[importlib.import_module(name) for name in {MODULES!r}]\n"
        "ours = [f'seedbed.{name}' for name in ('inference_svc', 'learner_svc', 'services', 'shared.policy')]\n"
        "print(sorted(name for name in sys.modules if name in ('torch', *ours)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
