"""`env new`: a folder with a small environment that trains as written, and all that stands around it.

In containers it is an image made from seedbed's actor image: in a clone by compose/custom.yaml, which needs no files
here, elsewhere by files of its own.
"""

import importlib.util
import json
import keyword
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.recipes import read_part

TEMPLATES = "template"
FILES = {  # to be written → template
    "__init__.py": "__init__.py",
    "__main__.py": "__main__.py",
    "env.py": "env.py",
    "service.toml": "service.toml",
    "requirements.txt": "requirements.txt",
    "experiment.toml": "experiment.toml",
    "README.md": "README.md",
    "test_{name}.py": "test.py",
}
IMAGE_FILES = {"Dockerfile": "Dockerfile", "compose.yaml": "compose.yaml", ".dockerignore": "dockerignore"}
RECIPE = "vector-discrete"  # what suits the spaces of env.py as written
CLONE = "../seedbed"  # where the texts suppose it, seen from a folder of the user's own
OWN_CONTAINERS = """\
mkdir -p runs
export COMPOSE_FILE={clone}/compose/compose.yaml:{name}/compose.yaml RUNS=$PWD/runs EXPERIMENT={name}/experiment.toml
docker-compose build keys    # seedbed's own image, which {name}'s is made from
docker-compose up --build"""
OWN_NOTE = """\
`{clone}` is a clone of seedbed; packages of Debian's that the environment needs go into `Dockerfile`, Python's into
`requirements.txt`. Without a clone the image is made from any address that Docker builds from; it dials an inference
that runs anywhere:

```sh
docker build -f compose/Dockerfile --target actor -t seedbed-actor ADDRESS_OF_SEEDBED.git
docker build -t seedbed-actor-{name} {name}
docker run --rm --network host seedbed-actor-{name} container actor {name}/experiment.toml actor.upstream=tcp://127.0.0.1:5555
```"""
CLONE_CONTAINERS = """\
export COMPOSE_FILE=compose/compose.yaml:compose/custom.yaml SERVICE={name} EXPERIMENT=services/{name}/experiment.toml
docker-compose up --build"""
CLONE_NOTE = """\
Python's packages that it needs go into `requirements.txt`, Debian's, one a line, into `packages.txt` beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a service goes, and how its parts name each other there."""

    folder: Path  # relative to the working directory
    package: str  # as `env.id` names it, from the working directory
    module: str  # of env.py, as __main__.py imports it
    command: tuple[str, ...]  # in the service's folder
    run: str  # the same in the working directory
    in_clone: bool  # whose compose/custom.yaml makes the image

    @property
    def env_id(self) -> str:
        """How settings name the new environment: `module:function`."""
        return f"{self.package}.env:make"


def choose_place(name: str, here: Path) -> Place:
    """`services/NAME` in a clone of this project, `NAME` in a folder of the user's own.

    In a clone the package is `seedbed.services.NAME`. Elsewhere it is NAME, found from the working directory, and run
    by its folder (`python NAME`).
    Raises: ConfigError if the name cannot be one, is taken, or the folder is there.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"{name!r} cannot be a package's name: use letters, digits and _, a letter first, e.g. my_env"
        )
    if (here / "services" / "tools" / "cli" / "app.py").is_file():
        place = Place(
            folder=Path("services") / name,
            package=f"seedbed.services.{name}",
            module=f"seedbed.services.{name}.env",
            command=("python", "-m", f"seedbed.services.{name}"),
            run=f"python -m seedbed.services.{name}",
            in_clone=True,
        )
    else:
        if importlib.util.find_spec(name) is not None and not (here / name).exists():
            raise ConfigError(f"{name!r} is the name of an installed module, which it would hide or be hidden by")
        place = Place(
            folder=Path(name),
            package=name,
            module="env",
            command=("python", "."),
            run=f"python {name}",
            in_clone=False,
        )
    if (here / place.folder).exists():
        raise ConfigError(f"{place.folder}: is there already; choose another name, or remove it")
    return place


def write_service(name: str, place: Place, here: Path, *, vector: bool) -> list[Path]:
    """Write the folder; the files written, relative to `here`.

    Raises: ConfigError if it cannot be written.
    """
    image_files = {} if place.in_clone else IMAGE_FILES
    values = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("_")) + ("VectorEnv" if vector else "Env"),
        "env_id": place.env_id,
        "package": place.package,
        "module": place.module,
        "folder": place.folder.as_posix(),
        "command": json.dumps(place.command),
        "run": place.run,
        "containers": (CLONE_CONTAINERS if place.in_clone else OWN_CONTAINERS).format(name=name, clone=CLONE),
        "containers_note": (CLONE_NOTE if place.in_clone else OWN_NOTE).format(name=name, clone=CLONE),
        "image_files": ", ".join(f"`{file}`" for file in ("requirements.txt", *image_files)),
        "test_imports": "\n".join(
            sorted(
                [
                    f"from {place.package}.env import LEFT, RIGHT, make",
                    "from seedbed.services.tools.cli.app import main",
                ]
            )
        ),
        "action": "np.array([action])" if vector else "action",
        "recipe": RECIPE,
        "about": read_part(RECIPE)[0],
    }
    written: list[Path] = []
    try:
        (here / place.folder).mkdir(parents=True)
        for target, template in (FILES | image_files).items():
            source = f"vector_{template}" if vector and template == "env.py" else template
            path = place.folder / target.format(name=name)
            (here / path).write_text(Template(_read(source)).substitute(values), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return written


def _read(template: str) -> str:
    return (files("seedbed.services.tools.cli.env") / TEMPLATES / f"{template}.template").read_text(encoding="utf-8")
