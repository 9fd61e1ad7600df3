"""How does a function do something else for a while? It keeps its identity; its code is exchanged.

So every name that the script has for it (an import, a method, a default) meets the stand-in, and
whoever asks for its parameters is told the same as before.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from diagnose.measure.script.patches import Patches

# No parameter of anybody's has this name.
_STAND_IN = "stand_in_of_diagnose"


def find_functions(code: CodeType) -> list[FunctionType]:
    """Every function that runs this code; closures may have several."""
    return [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]


def can_be_replayed(code: CodeType) -> bool:
    """Generators and coroutines keep running frames, which have no result to replay."""
    flags = code.co_flags
    running = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not flags & running and code.co_name != "<module>"


StandIn = Callable[[Callable[..., Any], Any, Any], Any]


def put_stand_in(patches: Patches, functions: Sequence[FunctionType], stand_in: StandIn) -> None:
    """The stand-in is given the original, its arguments and its keyword arguments."""
    for function in functions:
        original = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        original.__kwdefaults__ = function.__kwdefaults__

        def call(args: Any, kwargs: Any, original: Any = original) -> Any:
            return stand_in(original, args, kwargs)

        patches.set_code(function, _calling(call, function.__code__))


def _template(*args: Any, **kwargs: Any) -> Any:
    stand_in: Any = "stand-in"
    return stand_in(args, kwargs)


def _calling(call: Callable[..., Any], code: CodeType) -> CodeType:
    """Code that calls this object, with as many cells as the closure of the function has.

    Its parameters are those of the function: a framework may look at them to see what to pass.
    """
    template = _with_parameters_of(code)
    constants = tuple(call if each == "stand-in" else each for each in template.co_consts)
    return template.replace(
        co_consts=constants,
        co_freevars=code.co_freevars,
        co_name=code.co_name,
        co_filename=__file__,
    )


def _with_parameters_of(code: CodeType) -> CodeType:
    names = list(code.co_varnames)
    if not all(each.isidentifier() for each in names):  # those of a comprehension are not
        return _template.__code__
    positional, names = names[: code.co_argcount], names[code.co_argcount :]
    by_name, names = names[: code.co_kwonlyargcount], names[code.co_kwonlyargcount :]
    rest = [f"*{names.pop(0)}"] if code.co_flags & inspect.CO_VARARGS else []
    options = [f"**{names.pop(0)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    parameters = list(positional)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    parameters += rest or (["*"] if by_name else [])
    parameters += [*by_name, *options]
    passed = ", ".join([*(f"{each!r}: {each}" for each in by_name), *options])
    source = (
        f"def _({', '.join(parameters)}):\n"
        f" {_STAND_IN} = 'stand-in'\n"
        f" return {_STAND_IN}(({''.join(f'{each}, ' for each in [*positional, *rest])}), "
        f"{{{passed}}})"
    )
    made: dict[str, Any] = {}
    exec(source, made)
    template: CodeType = made["_"].__code__
    return template
