"""The grammar of selectors, for lark, and what its rules make of a text.

The parser has no recursion, and its time is linear in the text. The closures that it makes call each other as deeply as
a selector is nested, which is bounded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from gateway.errors import SelectorError
from gateway.message_selectors import terms
from gateway.message_selectors.terms import Evaluate, Kind, Term

# Closures that may call each other.
_DEEPEST: Final = 40
# It bounds the time that it takes to read a selector, and to ask it. Each % counts, also those of a LIKE: they make its
# regular expression long. A text with a quotation mark counts twice.
_MOST_TOKENS: Final = 200
_TOKEN: Final = re.compile(r"""'[^']*'|"[^"]*"|[\w$.]+|\S""")
# Characters of a selector that an ERROR repeats.
_SHOWN: Final = 20
_QUOTES: Final = "'\""

# SQL-92's search condition as JMS has it. NOT is about the whole comparison behind it. ``PART`` is what a name goes on
# with; a word or a number ends where a name could not go on. Words come before names, which cannot be words.
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
    """What a selector says of the headers of a message. With ``hyphens`` names may have some.

    Raises:
        SelectorError: when it is no selector, or has too many words, or is too deep.
    """
    if len(_TOKEN.findall(text)) + text.count("%") > _MOST_TOKENS:
        raise SelectorError(f"it has more than {_MOST_TOKENS} words, signs and %")
    try:
        found = grammar(hyphens=hyphens).parse(text)
    except UnexpectedInput as error:
        raise SelectorError(_what_is_wrong(error, text)) from None
    # The rules have made a term of it, which lark's types do not tell.
    return _condition(cast(Term, found)).evaluate


def _what_is_wrong(error: UnexpectedInput, text: str) -> str:
    place = cast(int, error.pos_in_stream)
    is_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    # A quotation mark that is not understood begins a text without an end.
    if is_end or (isinstance(error, UnexpectedCharacters) and text[place] in _QUOTES):
        return "it ends too early"
    return f"'{text[place : place + _SHOWN]}' makes no sense at character {place + 1}"


def prepare() -> None:
    """Build both grammars, which takes a tenth of a second, before a text comes."""
    for hyphens in (False, True):
        grammar(hyphens=hyphens)


@lru_cache
def grammar(*, hyphens: bool) -> Lark:
    """The grammar, ready to parse; with ``hyphens`` names may have some."""
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
    """A text, or a name, without its quotes; two of them within stand for one."""
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


@v_args(inline=True)
class _Meaning(Transformer[Token, Term]):
    """Makes a term of what each rule of the grammar has found. The parser begins with the innermost rule."""

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
        found = terms.is_among(_named(term), [_unquoted(token) for token in tokens])
        return terms.negate(found) if is_negated else found

    def is_like(self, term: Term, is_negated: bool, pattern: Token, escape: Token | None) -> Term:
        character = "" if escape is None else _unquoted(escape)
        if escape is not None and len(character) != 1:
            raise SelectorError("behind ESCAPE must be one character")
        found = terms.is_like(_named(term), _unquoted(pattern), character)
        return terms.negate(found) if is_negated else found

    def is_null(self, term: Term, is_negated: bool) -> Term:
        found = terms.is_null(_named(term))
        return terms.negate(found) if is_negated else found

    def negate(self, _word: Token, term: Term) -> Term:
        return _shallow(terms.negate(_condition(term)))

    def all_true(self, *conditions: Term) -> Term:
        return _shallow(terms.all_true([_condition(each) for each in conditions]))

    def any_true(self, *conditions: Term) -> Term:
        return _shallow(terms.any_true([_condition(each) for each in conditions]))
