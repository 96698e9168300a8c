"""The stubs (`__init__.pyi`) have the names of the module and of its classes; each public name has
a docstring."""

import ast
import pathlib

import outlast

# What Python itself, MutableMapping and the context managers add.
INHERITED = {"keys", "items", "values", "update"}


def names(nodes):
    """The functions, classes and variables that stubs define."""
    found = {}
    for node in nodes:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def main():
    stubs = pathlib.Path(outlast.__file__).with_name("__init__.pyi").read_text()
    stubs = names(ast.parse(stubs).body)
    assert set(stubs) == set(outlast.__all__) - {"__version__"}, set(stubs) ^ set(outlast.__all__)
    for name, node in stubs.items():
        thing = getattr(outlast, name)
        assert thing.__doc__, name
        if not isinstance(thing, type) or issubclass(thing, Exception):
            continue
        found = {attribute for attribute in dir(thing) if not attribute.startswith("_")}
        wanted = set(names(node.body))
        assert found - INHERITED == wanted, (name, (found - INHERITED) ^ wanted)
        for attribute in wanted:
            assert getattr(thing, attribute).__doc__, (name, attribute)
    print("ok", flush=True)


main()
