"""The floors of the code: who may import whom, and what nobody may use, read from the source of every package."""

import ast
import graphlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("actor_svc", "inference_svc", "learner_svc")
PACKAGES = ("shared", *SERVICES, "services")
PROGRAMS = ("benchmarks", "compose")  # started by hand or by a build, imported by nobody
MAY_IMPORT = {  # of our own packages; `services` is on top
    "shared": {"shared"},
    "actor_svc": {"shared", "actor_svc"},
    "inference_svc": {"shared", "inference_svc"},
    "learner_svc": {"shared", "learner_svc"},
    "services": set(PACKAGES),
}
MAY_IMPORT_TORCH = ("shared/policy/", "inference_svc/", "learner_svc/", "services/tools/cli/")
TORCH = {"torch", "safetensors"}
ONLY_IN = {"zmq": "shared/net/", "msgpack": "shared/protocol/codec.py"}
CODE_FROM_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}  # reading runs code
MAY_LOAD_MODULES = {"shared/runtime/modules.py"}  # `module:name` of the configuration
MAY_MAKE_DTYPES = {  # from names that `seedbed.shared.protocol.leaves.DTYPES` or an environment's own space gave
    "actor_svc/group.py",
    "learner_svc/sources/sequences.py",
    "shared/policy/distributions.py",
    "shared/protocol/layout.py",
    "shared/protocol/leaves.py",
    "shared/protocol/space_wire.py",
    "shared/protocol/spaces.py",
}
SHELLS = {  # where the loop is; everything else takes `now` and returns
    "actor_svc/service.py",
    "inference_svc/service.py",
    "learner_svc/finished.py",
    "learner_svc/ranks/rank_service.py",
    "learner_svc/service.py",
    "learner_svc/training.py",
    "services/tools/cli/bench/transport_peers.py",
    "services/tools/monitor/links.py",
    "services/tools/monitor/service.py",
    "services/tools/monitor/web.py",
    "services/tools/cli/env/link.py",
    "shared/runtime/service.py",
}
MAY_CATCH_ALL = {  # each says why
    "actor_svc/backends/backend.py",
    "shared/runtime/modules.py",
    "shared/runtime/service.py",
    "shared/runtime/worker.py",
}
VAGUE_NAMES = {"utils", "util", "helpers", "common", "base", "misc", "manager"}


def _sources(*folders: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py"))


FILES = _sources(*PACKAGES)
EVERYTHING = FILES + _sources("tests", *PROGRAMS)


def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), file)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of every import, wherever it stands, ours without "seedbed."; `from a import b` may name a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_within(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            yield _within(node.module)
            yield from (f"{_within(node.module)}.{alias.name}" for alias in node.names)


def _within(name: str) -> str:
    """The name of a module of ours as its folder has it; another's as it is, but for one that is called like ours."""
    if _top(name) in PACKAGES:
        return f"without seedbed: {name}"
    return name.removeprefix("seedbed.")


def _calls(tree: ast.AST) -> Iterator[str]:
    """The text of whatever is called, as "torch.load"."""
    return (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _methods(file: str) -> set[str]:
    """The methods of a file's classes, as "Class.method"."""
    classes = [node for node in _tree(file).body if isinstance(node, ast.ClassDef)]
    return {f"{node.name}.{x.name}" for node in classes for x in node.body if isinstance(x, ast.FunctionDef)}


def _top(name: str) -> str:
    return name.partition(".")[0]


def test_the_packages_are_where_this_test_looks_for_them() -> None:
    """Every Python file of the project is in a folder that is checked here."""
    known = {*PACKAGES, *PROGRAMS, "tests"}
    found = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith((".", "build"))}
    assert found <= known
    assert not list(ROOT.glob("*.py"))


def test_our_packages_are_imported_by_their_whole_name() -> None:
    """A user's project may have packages called `shared` and `services`."""
    assert {path.name for path in (ROOT / "src" / "seedbed").iterdir()} >= {"__init__.py", *PACKAGES}
    wrong = [(file, name) for file in EVERYTHING for name in _imports(_tree(file)) if name.startswith("without")]
    assert wrong == []


def test_no_imports_run_in_a_circle() -> None:
    """Neither within functions nor for types alone."""
    modules = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in FILES}
    graph = {module: modules.keys() & set(_imports(_tree(file))) - {module} for module, file in modules.items()}
    packages = {module for module, file in modules.items() if file.endswith("__init__.py")}
    for module, imported in graph.items():
        # `from package import module` also names the package, which has run by then
        graph[module] = {name for name in imported if not (name in packages and module.startswith(f"{name}."))}
    graphlib.TopologicalSorter(graph).prepare()  # a circle raises CycleError with its modules


@pytest.mark.parametrize("package", PACKAGES)
def test_siblings_never_import_each_other(package: str) -> None:
    """Each package imports only those on the floors below it, even within functions."""
    ours = set(PACKAGES)
    wrong = [
        (file, name)
        for file in _sources(package)
        for name in _imports(_tree(file))
        if _top(name) in ours - MAY_IMPORT[package]
    ]
    assert wrong == []


def test_torch_is_only_where_policies_are() -> None:
    """Actors and the protocol work without torch, so nothing there may import it or what needs it."""
    wrong = [
        (file, name)
        for file in FILES
        if not file.startswith(MAY_IMPORT_TORCH)
        for name in _imports(_tree(file))
        if _top(name) in TORCH or name.startswith("shared.policy")
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_foreign_library_has_one_home(library: str) -> None:
    """Sockets are known to the transport alone, MessagePack to the codec alone."""
    wrong = [
        file
        for file in FILES
        if not file.startswith(ONLY_IN[library])
        for name in _imports(_tree(file))
        if _top(name) == library
    ]
    assert wrong == []


def test_nothing_turns_data_into_code() -> None:
    """No pickle in any form, no eval or exec, no torch.load: data from a peer or a disk stays data."""
    wrong = []
    for file in EVERYTHING:
        tree = _tree(file)
        wrong += [(file, name) for name in _imports(tree) if _top(name) in CODE_FROM_DATA]
        wrong += [(file, call) for call in _calls(tree) if call in ("eval", "exec", "compile", "__import__")]
        wrong += [(file, call) for call in _calls(tree) if call in ("torch.load", "np.load", "numpy.load")]
    assert wrong == []


def test_modules_are_loaded_by_name_only_for_the_configuration() -> None:
    """`module:function` works for environments and networks; nothing else imports what a text names."""
    found = {file for file in FILES if any("import_module" in call for call in _calls(_tree(file)))}
    assert found == MAY_LOAD_MODULES


def test_dtypes_come_from_a_whitelist() -> None:
    """`np.dtype(text)` stands only where the text was checked against the protocol's list before."""
    found = {file for file in FILES if any(call in ("np.dtype", "numpy.dtype") for call in _calls(_tree(file)))}
    assert found == MAY_MAKE_DTYPES


def test_only_shells_are_asynchronous() -> None:
    """Decisions are plain synchronous code: `async def` stands in the files that own a loop."""
    found = {file for file in FILES if any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(_tree(file)))}
    assert found == SHELLS


def test_nothing_else_catches_everything() -> None:
    """A broad `except` hides bugs: there is one at the top of services, of threads, and around foreign environments."""
    broad = {"Exception", "BaseException"}
    found = {
        file
        for file in FILES
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) in broad)
    }
    assert found == MAY_CATCH_ALL


def test_no_file_is_a_drawer_of_odds_and_ends() -> None:
    """Every module is named after its one idea."""
    assert [file for file in EVERYTHING if Path(file).stem in VAGUE_NAMES] == []


def test_a_large_class_says_why() -> None:
    """More than 20 methods or 15 attributes: its docstring has a sentence that begins with "Large because"."""
    silent = []
    for file in FILES:
        for node in ast.walk(_tree(file)):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            attributes = {
                item.attr
                for item in ast.walk(node)
                if isinstance(item, ast.Attribute)
                and isinstance(item.ctx, ast.Store)
                and ast.unparse(item.value) == "self"
            }
            is_large = len(methods) > 20 or len(attributes) > 15
            if is_large and "Large because" not in (ast.get_docstring(node) or ""):
                silent.append((file, node.name, len(methods), len(attributes)))
    assert silent == []


def test_a_class_name_is_used_once() -> None:
    """So that whoever searches for it finds one class."""
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("file", _sources(*PROGRAMS, "docs"))
def test_programs_import_what_there_is(file: str) -> None:
    """They are started by hand: nobody else would notice that a name has moved."""
    missing = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ImportFrom) and _top(node.module or "") == "seedbed":
            module = importlib.import_module(node.module or "")
            names = [name.name for name in node.names]
            missing += [name for name in names if not hasattr(module, name) and not _is_module(f"{node.module}.{name}")]
    assert missing == []


def _is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def test_programs_beside_us_import_nothing_of_ours() -> None:
    """The peers run in environments of their own, where this project is not installed."""
    ours = set(PACKAGES)
    assert [(f, name) for f in _sources("benchmarks/peers") for name in _imports(_tree(f)) if _top(name) in ours] == []


def test_the_base_install_covers_the_actor() -> None:
    """What an actor imports at the top of its modules is standard library, its own, or a base dependency."""
    installed = {
        "gymnasium", "msgpack", "numpy", "prometheus_client", "psutil", "pydantic", "pydantic_core",
        "zmq", "rich", "structlog", "typer", "uvloop",
    }  # fmt: skip
    allowed = installed | set(PACKAGES) | sys.stdlib_module_names
    files = [file for file in _sources("shared", "actor_svc") if not file.startswith("shared/policy/")]
    wrong = [
        (file, name)
        for file in files
        for node in _tree(file).body
        for name in (_imports(node) if isinstance(node, ast.Import | ast.ImportFrom) else ())
        if _top(name) not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/architecture.md",
        "docs/algorithms.md",
        "docs/benchmarks.md",
        "docs/environments.md",
        "docs/networks.md",
        "docs/security.md",
    ],
)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    """A newcomer who follows a path from the pages finds something there."""
    words = (ROOT / page).read_text(encoding="utf-8").replace("`", " ").replace("(", " ").replace(")", " ").split()
    named = {
        word.rstrip(".,;:") for word in words if word.startswith((*(f"{x}/" for x in PACKAGES), "docs/", "tests/"))
    }
    missing = [name for name in sorted(named) if not any(c in name for c in "*<{…") and not (ROOT / name).exists()]
    assert missing == []


def test_the_walk_through_the_code_leads_through_functions_that_exist() -> None:
    """Each room of "An observation's way" is a function of the file that it names, and there are at most twenty.

    What it names beside the room, on the way to the next, is a method of a class of ours.
    """
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [line for line in page.partition("## An observation's way")[2].splitlines() if re.match(r"\| \d+ \|", line)]
    assert 0 < len(rooms) <= 20
    anywhere = set().union(*(_methods(file) for file in FILES))
    missing = []
    for room in rooms:
        found = re.match(r"\| \d+ \| `(\w+\.\w+)` in `([\w/]+\.py)` \|", room)
        assert found is not None, room
        missing += [] if found[1] in _methods(found[2]) else [(found[2], found[1])]
        missing += [("", name) for name in re.findall(r"`([A-Z]\w+\.\w+)`", room) if name not in anywhere]
    assert missing == []
