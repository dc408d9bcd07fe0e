"""The house rules that a parser can see: who imports whom, how long things are, what is not used.

Each rule is a function from a module to its offences, applied to every module of the product, and
each is shown a planted offence, so that a rule that has gone blind is noticed.
"""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ignisd", "state", "pallas_kernels")
MOST_MODULE_LINES = 400
MOST_FUNCTION_LINES = 60

# What a package may not import, by the longest prefix of a module's name that is listed.
FORBIDDEN = {
    "pallas_kernels": ("ignisd", "state"),
    "state": ("ignisd", "asyncio", "logging", "time", "datetime", "starlette", "hypercorn"),
    "ignisd.model": ("ignisd.engine", "ignisd.http", "ignisd.chat", "ignisd.daemon", "ignisd.cli"),
    "ignisd.engine": ("ignisd.http", "ignisd.chat", "ignisd.ember", "ignisd.daemon", "ignisd.cli"),
    "ignisd.chat": (
        "ignisd.engine",
        "ignisd.http",
        "ignisd.model",
        "ignisd.ember",
        "ignisd.daemon",
        "ignisd.cli",
        "jax",
    ),
    "ignisd.http": ("ignisd.model", "ignisd.ember", "ignisd.daemon", "ignisd.cli", "jax"),
    "ignisd.ember": ("ignisd.engine", "ignisd.http", "ignisd.daemon", "ignisd.cli"),
    "ignisd.bench": (
        "ignisd.http",
        "ignisd.model",
        "ignisd.ember",
        "ignisd.daemon",
        "ignisd.cli",
        "jax",
    ),
    "ignisd.settings": ("ignisd.engine", "ignisd.http", "ignisd.chat", "ignisd.model", "jax"),
}
KERNEL_LIBRARIES = {"jax", "numpy", "pallas_kernels"}
OUTERMOST_LOOPS = {"ignisd.engine.loop", "ignisd.daemon"}
READS_ENVIRONMENT = {"ignisd.cli"}
# A benchmark is a program of its own; nothing that serves imports it.
READS_CLOCK = {"ignisd.engine.loop", "pallas_kernels.bench"}
CLOCKLESS = ("state", "pallas_kernels", "ignisd.engine", "ignisd.model")
KERNEL_MATHS = ("pallas_kernels", "ignisd.model", "state.device", "state.images")


@dataclass(frozen=True)
class Module:
    """A parsed source file and its dotted name."""

    name: str
    source: str
    tree: ast.Module

    @staticmethod
    def of(name: str, source: str) -> "Module":
        return Module(name, source, ast.parse(source))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of every import; `from a import b` counts as a.b and as a."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                yield node.lineno, node.module or "."
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def within_any(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(within(name, prefix) for prefix in prefixes)


def import_direction(module: Module) -> Iterator[str]:
    owners = [prefix for prefix in FORBIDDEN if within(module.name, prefix)]
    banned = FORBIDDEN[max(owners, key=len)] if owners else ()
    for line, name in module.imports():
        if within_any(name, banned):
            yield f"line {line} imports {name}"


def kernel_libraries(module: Module) -> Iterator[str]:
    if not within(module.name, "pallas_kernels"):
        return
    for line, name in module.imports():
        top = name.partition(".")[0]
        if top not in KERNEL_LIBRARIES and top not in sys.stdlib_module_names:
            yield f"line {line} imports {name}; kernels know jax and numpy only"


def module_length(module: Module) -> Iterator[str]:
    lines = len(module.source.splitlines())
    if lines > MOST_MODULE_LINES:
        yield f"{lines} lines; at most {MOST_MODULE_LINES}"


def function_length(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                first = node.body[0]
                assert first.end_lineno is not None
                lines -= first.end_lineno - first.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines of code; at most {MOST_FUNCTION_LINES}"


def generic_name(module: Module) -> Iterator[str]:
    """`state` is a package: it is imported by its modules, and nothing else is called so."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            if any(within(alias.name, "state") and not alias.asname for alias in node.names):
                yield f"line {node.lineno} binds the bare name state"
        elif isinstance(node, ast.ImportFrom) and node.module == "state":
            yield f"line {node.lineno} imports from the bare package state"
        if within_any(module.name, KERNEL_MATHS):
            continue
        if isinstance(node, ast.arg) and node.arg == "state":
            yield f"line {node.lineno} calls an argument state"
        if isinstance(node, ast.Name) and node.id == "state" and isinstance(node.ctx, ast.Store):
            yield f"line {node.lineno} calls a variable state"


def broad_except(module: Module) -> Iterator[str]:
    """A handler that ends by raising again only cleans up, and may see everything."""
    if module.name in OUTERMOST_LOOPS:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = list(ast.walk(node.type)) if node.type else []
            names = {part.id for part in caught if isinstance(part, ast.Name)}
            broad = not caught or names & {"Exception", "BaseException"}
            last = node.body[-1]
            if broad and not (isinstance(last, ast.Raise) and last.exc is None):
                yield f"line {node.lineno} catches everything"


def guarded_import(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Try) and any(
            isinstance(inner, ast.Import | ast.ImportFrom) for inner in node.body
        ):
            yield f"line {node.lineno} tries an import"


def hidden_inputs(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            spelled = f"{node.value.id}.{node.attr}"
            if spelled in {"os.environ", "os.getenv"} and module.name not in READS_ENVIRONMENT:
                yield f"line {node.lineno} reads the environment"
    if within_any(module.name, CLOCKLESS) and module.name not in READS_CLOCK:
        for line, name in module.imports():
            if within_any(name, ("time", "datetime", "random", "secrets")):
                yield f"line {line} imports {name}; time and chance are passed in"


def machine_paths(module: Module) -> Iterator[str]:
    for number, line in enumerate(module.source.splitlines(), 1):
        if re.search(r"(?<![\w.])/(work|root|home)/", line):
            yield f"line {number} names a folder of one machine"


Rule = Callable[[Module], Iterator[str]]

# A rule with a module that breaks it.
PLANTED: list[tuple[Rule, str, str]] = [
    (import_direction, "state.pages", "from ignisd.errors import ConfigError"),
    (import_direction, "state.pages", "import logging"),
    (import_direction, "ignisd.chat.parse", "from ignisd import engine"),
    (import_direction, "ignisd.engine.loop", "def f():\n  from ignisd.http.app import build"),
    (import_direction, "ignisd.http.app", "import jax.numpy as jnp"),
    (import_direction, "ignisd.bench.own", "from ignisd.http.app import build_app"),
    (import_direction, "pallas_kernels.dispatch", "from state.spec import PAGE_TOKENS"),
    (kernel_libraries, "pallas_kernels.testing", "import hypothesis"),
    (module_length, "ignisd.cli", "x = 1\n" * 401),
    (function_length, "ignisd.cli", 'def f():\n  """Text."""\n' + "  x = 1\n" * 60),
    (generic_name, "ignisd.daemon", "import state.pages"),
    (generic_name, "ignisd.daemon", "from state import pages"),
    (generic_name, "ignisd.daemon", "def f(state): pass"),
    (generic_name, "state.pages", "state = 1"),
    (broad_except, "ignisd.cli", "try:\n  f()\nexcept Exception:\n  pass"),
    (broad_except, "ignisd.cli", "try:\n  f()\nexcept (OSError, BaseException):\n  pass"),
    (broad_except, "ignisd.cli", "try:\n  f()\nexcept:\n  pass"),
    (broad_except, "ignisd.cli", "try:\n  f()\nexcept Exception as e:\n  raise X from e"),
    (guarded_import, "ignisd.cli", "try:\n  import uvloop\nexcept ImportError:\n  uvloop = None"),
    (hidden_inputs, "ignisd.http.app", "import os\nos.environ['HOME']"),
    (hidden_inputs, "ignisd.engine.scheduler", "from time import monotonic"),
    (machine_paths, "ignisd.cli", f"x = '/{'home'}/someone/model'"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in PLANTED))


def product_modules() -> list[Module]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module.of(name, path.read_text()))
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_product_keeps_the_rule(rule: Rule):
    modules = product_modules()
    assert {module.name for module in modules} >= set(PACKAGES)
    offences = [f"{module.name}: {text}" for module in modules for text in rule(module)]
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize(("rule", "name", "source"), PLANTED)
def test_the_rule_sees_a_planted_offence(rule: Rule, name: str, source: str):
    assert list(rule(Module.of(name, source)))


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (broad_except, "ignisd.cli", "try:\n  f()\nexcept BaseException:\n  undo()\n  raise"),
        (broad_except, "ignisd.engine.loop", "try:\n  f()\nexcept Exception:\n  pass"),
        (import_direction, "ignisd.chat.parse", "from state.spec import PAGE_TOKENS"),
        (generic_name, "pallas_kernels.causal_conv.xla", "def f(state): pass"),
        (generic_name, "ignisd.http.app", "app.state.x = 1"),
        (hidden_inputs, "ignisd.engine.loop", "import time"),
    ],
)
def test_the_rule_lets_the_meant_exceptions_pass(rule: Rule, name: str, source: str):
    assert not list(rule(Module.of(name, source)))


def test_the_modules_of_the_tests_are_no_longer_than_those_of_the_product():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert not list(module_length(Module.of(path.stem, path.read_text()))), path


def test_every_dependency_is_used():
    """Imported, or asked for its version, which a library without an interface of its own is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    modules = product_modules()
    imported = {name.partition(".")[0] for module in modules for _, name in module.imports()}
    quoted = {name for name in names if any(f'"{name}"' in module.source for module in modules)}
    assert not names - imported - quoted


def test_tests_name_no_folder_of_one_machine():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__):
            assert not list(machine_paths(Module.of(path.stem, path.read_text()))), path


def test_every_folder_with_code_is_a_package():
    """A folder without `__init__.py` would work from a checkout and be missing once installed."""
    for package in PACKAGES:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            assert (folder / "__init__.py").is_file(), folder


def test_the_import_names_belong_to_this_project():
    owners = importlib.metadata.packages_distributions()
    for package in PACKAGES:
        assert set(owners.get(package, [])) <= {"ignisd"}, f"{package} is also installed by others"
