"""What every table of a configuration is: frozen, without unknown keys; and how it is written as TOML."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedveil.checks import FieldRule, check_values, rules_of
from fedveil.config.options import Option, check_options
from fedveil.errors import FieldError


class Section(BaseModel):
    """A table of the file: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    section: ClassVar[str] = ""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        check_values(self, _of_section(type(self)), self.section)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values as a file has them: without what is None, or empty."""
        values = self.model_dump(exclude_none=True)
        values = {name: value for name, value in values.items() if value not in ((), {})}
        inner = {name: getattr(self, name) for name in values}
        return values | {name: one.to_dict() for name, one in inner.items() if isinstance(one, Section)}

    def differing(self) -> dict[str, Any]:
        """Plain values of the keys that are not at their defaults."""
        own, differing = self.model_dump(), {}
        for name, info in type(self).model_fields.items():
            value, default = getattr(self, name), info.get_default(call_default_factory=True)
            if value is not None and value != default:
                differing[name] = value.differing() if isinstance(value, Section) else own[name]
        return differing


class OpenSection(Section):
    """A table whose other keys belong to what it names; they end up in `options`, defaults filled in."""

    options: dict[str, Any] = Field(default_factory=dict)

    chooser: ClassVar[str] = "name"

    @classmethod
    def accepted(cls, name: str) -> Mapping[str, Option]:
        """The keys of what is named."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {**values.get("options", {}), **{k: v for k, v in values.items() if k not in cls.model_fields}}
        own = {k: v for k, v in values.items() if k in cls.model_fields and k != "options"}
        name = own.get(cls.chooser, cls.model_fields[cls.chooser].default)
        if not isinstance(name, str):
            return own
        beside = [field for field in cls.model_fields if field != "options"]
        return {**own, "options": check_options(cls.section, repr(name), given, cls.accepted(name), beside)}

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        options = values.pop("options", {})
        return {**values, **options}

    def differing(self) -> dict[str, Any]:
        name = str(getattr(self, self.chooser))
        defaults = {key: option.default for key, option in self.accepted(name).items()}
        options = {key: value for key, value in self.options.items() if value != defaults[key]}
        return {**super().differing(), self.chooser: name, "options": options}


@cache
def _of_section(owner: type[Section]) -> list[FieldRule]:
    fields = owner.model_fields.items()
    return rules_of((name, Annotated[i.annotation, *i.metadata] if i.metadata else i.annotation) for name, i in fields)


def dumps(table: Mapping[str, Any]) -> str:
    """Write a table as TOML; None is left out, as TOML has no such value.

    Raises
    ------
    FieldError
        For a value that TOML does not know.
    """
    try:
        return tomli_w.dumps(_written(table))
    except TypeError as error:
        raise FieldError("TOML", type(table).__name__, f"cannot be written: {error}") from error


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items() if one is not None}
    return [_written(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
