"""A plausible record of any kind, filled in by its types: for what must draw every kind."""

import msgspec
from msgspec import inspect


def any_record(kind, text="text"):
    """Return a record with every field set: texts are `text`, tuples of one, numbers small."""
    return msgspec.convert(_value(inspect.type_info(kind), text), type=kind)


def _value(found, text):
    """Return the plain value of a type: of a union its first kind that is not None."""
    match found:
        case inspect.StructType():
            values = {field.name: _value(field.type, text) for field in found.fields}
            tag = {} if found.tag is None else {found.tag_field: found.tag}
            return values | tag | _version(found)
        case inspect.UnionType():
            return _value(next(t for t in found.types if not isinstance(t, inspect.NoneType)), text)
        case inspect.VarTupleType():
            return [_value(found.item_type, text)]
        case inspect.TupleType():
            return [_value(item, text) for item in found.item_types]
        case inspect.DictType():
            return {text: _value(found.value_type, text)}
    return _scalar(found, text)


def _scalar(found, text):
    if isinstance(found, inspect.EnumType):
        return next(iter(found.cls)).value
    if isinstance(found, inspect.LiteralType):
        return found.values[0]
    kinds = {inspect.BoolType: True, inspect.IntType: 2, inspect.FloatType: 0.5}
    return kinds.get(type(found), text)


def _version(found):
    return {f.name: f.default for f in found.fields if f.name == "version" and not f.required}
