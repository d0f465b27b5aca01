"""Reads Erlang terms into Python values, as `file:consult/1` reads those that a configuration can have.

Numbers, strings, binaries and lists become Python's own (`int`, `float`, `str`, `bytes`, `list`); the others have a
class here. A string becomes a `str`, although Erlang sees a list of numbers: the author of the file meant text. A
binary has texts and bytes, and a list ends with `]`, not with a tail: what only programs write is a mistake, and so are
variables. No mistake repeats quoted text, as it may be a passcode.
"""

from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias

from gateway.migrate.erlang_scanner import TermSyntaxError, Token, scan

_MAX_DEPTH: Final = 100
"""Configurations nest a handful of terms, and Python's stack is limited."""
_SCALARS: Final = ("integer", "float", "+", "-", "atom", "string", "<<")
_DESCRIPTIONS: Final = {
    "integer": "a number", "float": "a number", "string": "a string", "atom": "an atom", ".": "a dot",
}  # fmt: skip
_ODD_SEGMENT: Final = 'A binary here has texts and bytes: <<"text">>, <<"text"/utf8>> or <<1,2,3>>.'


@dataclass(frozen=True)
class Atom:
    """An atom. Its line is for messages and does not count in comparisons; the same holds for `Tuple`."""

    name: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Tuple:
    """A tuple."""

    items: "tuple[Term, ...]"
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Map:
    """A map, as the pairs that were written."""

    pairs: "tuple[tuple[Term, Term], ...]"


@dataclass(frozen=True)
class External:
    """A function by its name: `fun module:name/arity`."""

    module: str
    name: str
    arity: int


Term: TypeAlias = "Atom | Tuple | Map | External | int | float | str | bytes | list[Term]"


def read_terms(text: str) -> list[Term]:
    """All terms of a text, each of which ends with a dot. Raises TermSyntaxError."""
    return _TermParser(text).terms()


class _TermParser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = scan(text)
        self._token = next(self._tokens)
        self._depth = 0

    def terms(self) -> list[Term]:
        found: list[Term] = []
        while self._token.kind:
            found.append(self._term())
            if not self._skip("."):
                self._fail_unexpected("A dot is missing behind the term.")
        return found

    def _term(self) -> Term:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail("This is nested too deeply.")
        term = self._scalar() if self._token.kind in _SCALARS else self._compound()
        self._depth -= 1
        return term

    def _scalar(self) -> Term:
        token = self._token
        if token.kind == "atom":
            self._next()
            return Atom(str(token.value), token.line)
        if token.kind == "string":
            return self._strings()
        return self._binary() if token.kind == "<<" else self._number()

    def _compound(self) -> Term:
        token = self._token
        if self._skip("("):
            term = self._term()
            self._take(")")
            return term
        if self._skip("{"):
            items = self._items("}")
            self._take("}")
            return Tuple(tuple(items), token.line)
        if self._skip("["):
            found = self._items("]")
            self._take("]")
            return found
        if self._skip("#"):
            return self._map()
        if self._skip("fun"):
            return self._function()
        self._fail_unexpected("The text ends in the middle of a term.")

    def _items(self, closing: str) -> list[Term]:
        """Terms between commas, up to the closing sign."""
        if self._token.kind == closing:
            return []
        found = [self._term()]
        while self._skip(","):
            found.append(self._term())
        return found

    def _map(self) -> Term:
        self._take("{")
        pairs: list[tuple[Term, Term]] = []
        while not self._skip("}"):
            if pairs:
                self._take(",")
            key = self._term()
            self._take("=>")
            pairs.append((key, self._term()))
        return Map(tuple(pairs))

    def _function(self) -> Term:
        module = self._function_name()
        self._take(":")
        name = self._function_name()
        self._take("/")
        return External(module, name, self._integer("The number of the function's arguments belongs here."))

    def _function_name(self) -> str:
        if self._token.kind != "atom":
            self._fail("Only a function's name can stand in such a file: fun module:name/1.")
        return str(self._next().value)

    def _number(self) -> int | float:
        sign = -1 if self._token.kind == "-" else 1
        if self._token.kind in ("+", "-"):
            self._next()
        if self._token.kind not in ("integer", "float"):
            self._fail("A number belongs behind the sign.")
        value = self._next().value
        assert not isinstance(value, str)  # noqa: S101 - the kind says so
        return sign * value

    def _strings(self) -> str:
        """Strings that stand side by side are one string."""
        pieces = []
        while self._token.kind == "string":
            pieces.append(str(self._next().value))
        return "".join(pieces)

    def _binary(self) -> bytes:
        self._take("<<")
        segments: list[bytes] = []
        while not self._skip(">>"):
            if segments:
                self._take(",")
            segments.append(self._segment())
        return b"".join(segments)

    def _segment(self) -> bytes:
        """A text in Latin-1 or, with /utf8, in UTF-8; or a byte. Configurations have no other segments."""
        token = self._token
        value = self._strings() if token.kind == "string" else self._number()
        encoding = str(self._next().value) if self._skip("/") else ""
        try:
            if isinstance(value, str) and encoding in ("", "utf8"):
                return value.encode(encoding or "latin-1")
            if isinstance(value, int) and not encoding:
                return bytes([value])
        except ValueError:
            pass
        raise TermSyntaxError(_ODD_SEGMENT, token.line, token.column)

    # Tokens.

    def _next(self) -> Token:
        token = self._token
        if token.kind:
            self._token = next(self._tokens)
        return token

    def _skip(self, kind: str) -> bool:
        """Skip the next token if it is of this kind, and tell whether it was."""
        is_next = self._token.kind == kind
        if is_next:
            self._next()
        return is_next

    def _take(self, kind: str) -> Token:
        if self._token.kind != kind:
            found = f"there is {self._described()}" if self._token.kind else "the text ends"
            self._fail(f"{kind} belongs here, and {found}.")
        return self._next()

    def _integer(self, sentence: str) -> int:
        if self._token.kind != "integer":
            self._fail(sentence)
        return int(self._next().value)

    def _fail(self, sentence: str) -> NoReturn:
        raise TermSyntaxError(sentence, self._token.line, self._token.column)

    def _fail_unexpected(self, sentence_at_end: str) -> NoReturn:
        self._fail(f"There is {self._described()} where it cannot stand." if self._token.kind else sentence_at_end)

    def _described(self) -> str:
        """The next token for a message: only its kind, as its value may be a secret."""
        return _DESCRIPTIONS.get(self._token.kind, self._token.kind)
