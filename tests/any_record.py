"""A plausible record of any kind, filled in by its types: for what must draw every kind."""

import msgspec
from msgspec import inspect


def any_record(kind, text="text"):
    """Return a record with every field set: texts are `text`, numbers small, tuples of one or two."""
    return msgspec.convert(_value(inspect.type_info(kind), text), type=kind)


def _value(found, text):
    match found:
        case inspect.StructType():
            values = {field.name: _value(field.type, text) for field in found.fields}
            if found.tag is not None:
                values[found.tag_field] = found.tag
            return values | _version(found)
        case inspect.EnumType():
            return next(iter(found.cls)).value
        case inspect.UnionType():
            return _value(next(t for t in found.types if not isinstance(t, inspect.NoneType)), text)
        case inspect.VarTupleType():
            return [_value(found.item_type, text)]
        case inspect.TupleType():
            return [_value(item, text) for item in found.item_types]
        case inspect.DictType():
            return {text: _value(found.value_type, text)}
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 2
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return text
        case inspect.LiteralType():
            return found.values[0]
        case inspect.AnyType():
            return text
    raise AssertionError(found)


def _version(found):
    return {f.name: f.default for f in found.fields if f.name == "version" and not f.required}
