"""`env new`: a folder with a small environment that trains as written, and all that stands around it."""

import importlib.util
import json
import keyword
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from shared.errors import ConfigError

TEMPLATES = "template"
FILES = {  # to be written → template
    "__init__.py": "__init__.py",
    "__main__.py": "__main__.py",
    "env.py": "env.py",
    "service.toml": "service.toml",
    "requirements.txt": "requirements.txt",
    "Dockerfile": "Dockerfile",
    "compose.yaml": "compose.yaml",
    "experiment.toml": "experiment.toml",
    "README.md": "README.md",
    "test_{name}.py": "test.py",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a service goes, and how its parts name each other there."""

    folder: Path  # relative to the working directory
    package: str  # as `env.id` names it, from the working directory
    module: str  # of env.py, as __main__.py imports it
    command: tuple[str, ...]  # in the service's folder
    docker_command: tuple[str, ...]  # in the working directory
    context: str  # the working directory, from the folder
    seedbed: str  # what pip installs in the image

    @property
    def env_id(self) -> str:
        """`module:function` of the environment."""
        return f"{self.package}.env:make"


def choose_place(name: str, here: Path) -> Place:
    """`services/NAME` in a clone of this project, `NAME` in a folder of the user's own.

    In a clone the package is `services.NAME`. Elsewhere it is NAME, found from the working directory, and run by its
    folder (`python NAME`), so that nothing of the user's stands before our packages `services` and `shared`.
    Raises: ConfigError if the name cannot be one, is taken, or the folder is there.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"{name!r} cannot be a package's name: use letters, digits and _, a letter first, e.g. my_env"
        )
    if (here / "services" / "cli" / "app.py").is_file():
        place = Place(
            folder=Path("services") / name,
            package=f"services.{name}",
            module=f"services.{name}.env",
            command=("python", "-m", f"services.{name}"),
            docker_command=("python", "-m", f"services.{name}"),
            context="../..",
            seedbed=".",
        )
    else:
        if importlib.util.find_spec(name) is not None and not (here / name).exists():
            raise ConfigError(f"{name!r} is the name of an installed module, which it would hide or be hidden by")
        place = Place(
            folder=Path(name),
            package=name,
            module="env",
            command=("python", "."),
            docker_command=("python", name),
            context="..",
            seedbed="seedbed",
        )
    if (here / place.folder).exists():
        raise ConfigError(f"{place.folder}: is there already; choose another name, or remove it")
    return place


def write_service(name: str, place: Place, here: Path, *, vector: bool) -> list[Path]:
    """Write the folder; the files written, relative to `here`.

    Raises: ConfigError if it cannot be written.
    """
    values = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")) + ("VectorEnv" if vector else "Env"),
        "env_id": place.env_id,
        "package": place.package,
        "module": place.module,
        "folder": place.folder.as_posix(),
        "context": place.context,
        "seedbed": place.seedbed,
        "command": json.dumps(place.command),
        "docker_command": json.dumps(place.docker_command),
        "run": " ".join(place.docker_command),
        "test_imports": "\n".join(
            sorted([f"from {place.package}.env import LEFT, RIGHT, make", "from services.cli.app import main"])
        ),
        "action": "np.array([action])" if vector else "action",
    }
    written: list[Path] = []
    try:
        (here / place.folder).mkdir(parents=True)
        for target, template in FILES.items():
            source = f"vector_{template}" if vector and template == "env.py" else template
            path = place.folder / target.format(name=name)
            (here / path).write_text(Template(_read(source)).substitute(values), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return written


def _read(template: str) -> str:
    return (files("services.cli.env") / TEMPLATES / f"{template}.template").read_text(encoding="utf-8")
