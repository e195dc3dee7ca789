"""Lets the SGLang server start on a plain CPU, where three of its imports have nothing to bind to.

The launcher puts this folder on PYTHONPATH of the engine process alone; Python runs ``sitecustomize`` at start-up, also
in the scheduler processes that the server spawns. On a CPU without AMX, SGLang takes the pure-torch path for every
operation, so the three packages below are imported and never run:

- ``triton``: kernels are defined at import time. ``triton.jit`` gives an object that raises when called.
- ``torchvision``: named by multimodal configurations only.
- ``sgl_kernel``: CUDA only; one name is imported on the CPU path (speculative decoding). It must look as if it had no
  submodules: SGLang falls back to its own code when ``sgl_kernel.scalar_type`` does not import.

``triton.runtime.driver.active`` must raise on use: SGLang takes that as "no GPU" and goes on with the CPU.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

STUBBED_VERSIONS = {"triton": "3.9.0", "torchvision": "0.28.0", "sgl_kernel": "0.4.10"}
"""Top-level packages that are stood in for, and the version each claims: what SGLang 0.5.23 asks for."""

InterpolationMode = enum.Enum("InterpolationMode", "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS")
"""The one torchvision name whose members are read at import time."""


class Inert:
    """Stands in for any class, constant or decorator that is only mentioned."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        is_decorating = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorating else Inert()

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __getitem__(self, key: object) -> Inert:
        return self

    def __or__(self, other: object) -> Inert:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class UnrunnableKernel(Inert):
    """What ``@triton.jit`` makes: it can be imported and indexed, and raises when launched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = function
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"triton kernel {self.__name__} was launched on a machine without triton")


class NoDriver:
    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("0 active drivers")


def _jit(function: Callable[..., Any] | None = None, **options: object) -> Any:
    return UnrunnableKernel if function is None else UnrunnableKernel(function)


def _keep(*args: object, **options: object) -> Callable[[Any], Any]:
    return lambda decorated: decorated


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


WORKING_NAMES: dict[str, dict[str, object]] = {
    "triton": {
        "jit": _jit,
        "autotune": _keep,
        "heuristics": _keep,
        "cdiv": _ceil_div,
        "next_power_of_2": _next_power_of_2,
    },
    "triton.runtime": {"driver": types.SimpleNamespace(active=NoDriver())},
}
"""Names that are used while modules load, by module."""


class StubModule(types.ModuleType):
    """A module that has every attribute asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "triton" and name[0].islower():
            return importlib.import_module(f"triton.{name}")
        value = self._make(name)
        setattr(self, name, value)
        return value

    def _make(self, name: str) -> Any:
        if self.__name__ == "sgl_kernel":
            return _missing_kernel(name)
        if name == "InterpolationMode":
            return InterpolationMode
        return type(name, (Inert,), {}) if name[0].isupper() else Inert()


def _missing_kernel(name: str) -> Callable[..., NoReturn]:
    def call(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs CUDA")

    return call


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last on ``sys.meta_path``: a package that is really installed wins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".", 1)[0] not in STUBBED_VERSIONS or fullname.startswith("sgl_kernel."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []
        module.__dict__["__version__"] = STUBBED_VERSIONS[module.__name__.split(".", 1)[0]]
        module.__dict__.update(WORKING_NAMES.get(module.__name__, {}))


sys.meta_path.append(StubFinder())
for neighbour in ("unpinned", "host_cache"):  # in this folder, which is on the path and no package
    importlib.import_module(neighbour).install()
