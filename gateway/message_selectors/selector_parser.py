"""The grammar of selectors, for lark, and the terms that its rules become.

The parser has no recursion, and its time is linear in the text. The closures that it returns call each other as deeply
as the selector is nested, which is bounded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from gateway.errors import SelectorError
from gateway.message_selectors import terms
from gateway.message_selectors.terms import Evaluate, Kind, Term

# The most closures that call each other.
_DEEPEST: Final = 40
# It bounds the time to parse a selector, and to apply it. Each % counts, also in a LIKE, because it makes the regular
# expression longer. A text with a quotation mark counts twice.
_MOST_TOKENS: Final = 200
_TOKEN: Final = re.compile(r"""'[^']*'|"[^"]*"|[\w$.]+|\S""")
# The most characters of a selector that an ERROR repeats.
_SHOWN: Final = 20
_QUOTES: Final = "'\""

# The search condition of SQL-92, as in JMS. NOT applies to the whole comparison after it. ``PART`` is a character in
# a name; a word or a number does not end before one. Words have priority over names.
_GRAMMAR: Final = r"""
?start: any_true
?any_true: all_true (_OR all_true)*
?all_true: condition (_AND condition)*
?condition: NOT condition -> negate
    | predicate
?predicate: sum
    | sum COMPARISON sum -> compared
    | sum negation _BETWEEN sum _AND sum -> between
    | sum negation _IN "(" STRING ("," STRING)* ")" -> is_among
    | sum negation _LIKE STRING [_ESCAPE STRING] -> is_like
    | sum _IS negation _NULL -> is_null
negation: NOT?
?sum: product (SIGN product)* -> computed
?product: factor (OPERATOR factor)* -> computed
?factor: SIGN factor -> signed
    | STRING -> text
    | NUMBER -> number
    | TRUTH -> truth
    | NAME -> header
    | QUOTED_NAME -> quoted_header
    | "(" any_true ")"

COMPARISON: "<>" | "<=" | ">=" | "=" | "<" | ">"
SIGN: "+" | "-"
OPERATOR: "*" | "/" | "%"
STRING: /'(?:[^']|'')*'/
QUOTED_NAME: /"(?:[^"]|"")+"/
NAME: /(?:[^\W\d]|\$)PART*/
NUMBER: (HEXADECIMAL | FRACTION | EXPONENT | INTEGER) /(?![\w$.])/
HEXADECIMAL: /0x[0-9a-f]+l?/i
FRACTION: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?[fd]?/i
EXPONENT: /[0-9]+e[+-]?[0-9]+[fd]?/i
INTEGER: /[0-9]+[lfd]?/i
TRUTH.2: /(?:true|false)(?!PART)/i
NOT.2: /not(?!PART)/i
_AND.2: /and(?!PART)/i
_BETWEEN.2: /between(?!PART)/i
_ESCAPE.2: /escape(?!PART)/i
_IN.2: /in(?!PART)/i
_IS.2: /is(?!PART)/i
_LIKE.2: /like(?!PART)/i
_NULL.2: /null(?!PART)/i
_OR.2: /or(?!PART)/i
%ignore /[ \t\n\r\f]+/
"""


def parse(text: str, *, hyphens: bool) -> Evaluate:
    """Parse a selector. ``hyphens``: names may contain hyphens.

    Raises:
        SelectorError: it is malformed, has too many words, or is too deep.
    """
    if len(_TOKEN.findall(text)) + text.count("%") > _MOST_TOKENS:
        raise SelectorError(f"it has more than {_MOST_TOKENS} words, signs and %")
    try:
        found = grammar(hyphens=hyphens).parse(text)
    except UnexpectedInput as error:
        raise SelectorError(_reason(error, text)) from None
    # lark's types do not tell that the result is a term.
    return _condition(cast(Term, found)).evaluate


def _reason(error: UnexpectedInput, text: str) -> str:
    place = cast(int, error.pos_in_stream)
    is_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    # A quotation mark that is an error begins a text without an end.
    if is_end or (isinstance(error, UnexpectedCharacters) and text[place] in _QUOTES):
        return "it ends too early"
    return f"'{text[place : place + _SHOWN]}' makes no sense at character {place + 1}"


def prepare() -> None:
    """Build both grammars in advance, which takes a tenth of a second."""
    for hyphens in (False, True):
        grammar(hyphens=hyphens)


@lru_cache
def grammar(*, hyphens: bool) -> Lark:
    """The grammar, ready to parse. ``hyphens``: names may contain hyphens."""
    part = r"[\w$-]" if hyphens else r"[\w$]"
    return Lark(_GRAMMAR.replace("PART", part), parser="lalr", lexer="basic", transformer=_Meaning())


def _numeric(term: Term) -> Term:
    if term.kind not in (Kind.HEADER, Kind.NUMBER):
        raise SelectorError("only numbers have an order and a sign, and can be computed with")
    return term


def _named(term: Term) -> Term:
    if term.kind is not Kind.HEADER:
        raise SelectorError("in front of IN, LIKE and IS must be the name of a header")
    return term


def _condition(term: Term) -> Term:
    if term.kind not in (Kind.HEADER, Kind.TRUTH):
        raise SelectorError("a number or a text is where a condition must be")
    return _shallow(terms.truth(term))


def _shallow(term: Term) -> Term:
    if term.depth > _DEEPEST:
        raise SelectorError(f"it is nested more than {_DEEPEST} times")
    return term


def _unquoted(token: Token) -> str:
    """A text or a name without its quotes. Two quotes within it stand for one."""
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


def _negated_if(is_negated: bool, term: Term) -> Term:
    return terms.negate(term) if is_negated else term


@v_args(inline=True)
class _Meaning(Transformer[Token, Term]):
    """Turns each rule of the grammar into a term. The parser begins with the innermost rule."""

    def text(self, token: Token) -> Term:
        return terms.constant(_unquoted(token))

    def number(self, token: Token) -> Term:
        number = terms.read_literal(token)
        if number is None:
            raise SelectorError(f"{token[:_SHOWN]} is no number")
        return terms.constant(number)

    def truth(self, token: Token) -> Term:
        return terms.constant(token.lower() == "true")

    def header(self, token: Token) -> Term:
        return terms.header(str(token))

    def quoted_header(self, token: Token) -> Term:
        return terms.header(_unquoted(token))

    def signed(self, sign: Token, term: Term) -> Term:
        return _shallow((terms.negated if sign == "-" else terms.unchanged)(_numeric(term)))

    def computed(self, first: Term, *rest: Token | Term) -> Term:
        if not rest:
            return first
        steps = [(str(sign), term) for sign, term in zip(rest[::2], rest[1::2], strict=True) if isinstance(term, Term)]
        for term in (first, *(term for _, term in steps)):
            if term.kind is not Kind.TEXT or any(sign != "+" for sign, _ in steps):
                _numeric(term)
        return _shallow(terms.computed(first, steps))

    def compared(self, left: Term, operator: Token, right: Term) -> Term:
        if operator not in ("=", "<>"):
            left, right = _numeric(left), _numeric(right)
        return _shallow(terms.compared(left, operator, right))

    def negation(self, word: Token | None = None) -> bool:
        return word is not None

    def between(self, term: Term, is_negated: bool, low: Term, high: Term) -> Term:
        for each in (term, low, high):
            _numeric(each)
        first, second = ("<", ">") if is_negated else (">=", "<=")
        either_or_both = terms.any_true if is_negated else terms.all_true
        return _shallow(either_or_both((terms.compared(term, first, low), terms.compared(term, second, high))))

    def is_among(self, term: Term, is_negated: bool, *tokens: Token) -> Term:
        return _negated_if(is_negated, terms.is_among(_named(term), [_unquoted(token) for token in tokens]))

    def is_like(self, term: Term, is_negated: bool, pattern: Token, escape: Token | None) -> Term:
        character = "" if escape is None else _unquoted(escape)
        if escape is not None and len(character) != 1:
            raise SelectorError("behind ESCAPE must be one character")
        return _negated_if(is_negated, terms.is_like(_named(term), _unquoted(pattern), character))

    def is_null(self, term: Term, is_negated: bool) -> Term:
        return _negated_if(is_negated, terms.is_null(_named(term)))

    def negate(self, _word: Token, term: Term) -> Term:
        return _shallow(terms.negate(_condition(term)))

    def all_true(self, *conditions: Term) -> Term:
        return _shallow(terms.all_true([_condition(each) for each in conditions]))

    def any_true(self, *conditions: Term) -> Term:
        return _shallow(terms.any_true([_condition(each) for each in conditions]))
