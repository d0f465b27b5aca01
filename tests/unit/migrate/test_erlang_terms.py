"""The reader of Erlang terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.migrate.erlang_terms import Atom, External, Map, Term, TermSyntaxError, Tuple, read_terms
from tests.support.erlang_text import formatted

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
atoms = texts.map(Atom)
scalars = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    atoms,
    texts,
    st.binary(max_size=12),
    st.builds(External, texts, texts, st.integers(0, 255)),
)


def compound(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    few = st.lists(inner, max_size=4)
    return st.one_of(
        few,
        few.map(lambda items: Tuple(tuple(items))),
        st.lists(st.tuples(inner, inner), max_size=3).map(lambda pairs: Map(tuple(pairs))),
    )


terms: st.SearchStrategy[Term] = st.recursive(scalars, compound, max_leaves=12)


@given(st.lists(terms, max_size=4))
def test_formatted_terms_are_read_back(found: list[Term]) -> None:
    text = "".join(f"{formatted(term)}.\n" for term in found)
    again = read_terms(text)
    assert again == found
    assert [formatted(term) for term in again] == [formatted(term) for term in found]


WORDS = '<< >> { } [ ] # => , | - : / . fun a 1 "b" utf8 size 1.5 \' $a ( ) unit'.split()


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)))
def test_any_text_is_terms_or_a_mistake_with_a_place(text: str) -> None:
    found: TermSyntaxError | None = None
    try:
        read_terms(text)
    except TermSyntaxError as error:
        found = error
    assert found is None or (1 <= found.line <= text.count("\n") + 1 and found.column >= 1)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("abc", Atom("abc")),
        ("éa@_9", Atom("éa@_9")),
        (r"'it\'s a \"name\"'", Atom("it's a \"name\"")),
        ("42", 42),
        ("-42", -42),
        ("+ 42", 42),
        ("1_000_000", 1_000_000),
        ("16#FF_FF", 65535),
        ("2#1010", 10),
        ("36#Zz", 1295),
        ("1.5", 1.5),
        ("-1_0.0e-3", -0.01),
        ("$a", 97),
        (r"$\n", 10),
        (r"$\^A", 1),
        (r"$\^a", 1),
        (r"$\x41", 65),
        (r"$\x{20AC}", 0x20AC),
        (r"$\101", 65),
        (r"$\s", 32),
        ("$ ", 32),
        ('"a" "b"\n% between\n"c"', "abc"),
        (r'"\x{20AC}\101\^Z\t\e\d\"\\\q"', "€A\x1a\t\x1b\x7f\"\\q"),
        ('"two\nlines"', "two\nlines"),
        ('"a\\\nb"', "a\nb"),
        ("<<>>", b""),
        ("<<1, 2,$a>>", b"\x01\x02a"),
        ('<<"guest">>', b"guest"),
        ('<<"é">>', b"\xe9"),
        ('<<"é"/utf8>>', "é".encode()),
        ('<<"a" "b">>', b"ab"),
        ('<<"ab", 0, "c"/utf8>>', b"ab\0c"),
        ("{}", Tuple(())),
        ("{maybe, else}", Tuple((Atom("maybe"), Atom("else")))),
        ("{a, [b, {c}]}", Tuple((Atom("a"), [Atom("b"), Tuple((Atom("c"),))]))),
        ("#{a => 1, \"k\" => [x]}", Map(((Atom("a"), 1), ("k", [Atom("x")])))),
        ("(({a}))", Tuple((Atom("a"),))),
        ("fun lists:'my map'/2", External("lists", "my map", 2)),
        ("%% only\n  a % a comment\n ", Atom("a")),
    ],
)  # fmt: skip
def test_terms_written_by_hand(text: str, term: Term) -> None:
    assert read_terms(f"{text}.") == [term]
    assert read_terms(f"{text}.\n% the end") == [term]


def test_lines_are_remembered() -> None:
    (term,) = read_terms('[\n {a, "x\ny"},\n\n b\n].')
    assert isinstance(term, list)
    first, second = term
    assert isinstance(first, Tuple)
    assert isinstance(second, Atom)
    assert (first.line, second.line) == (2, 5)


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("[a, b]", (1, 7), "A dot is missing"),
        ("[a,\n b", (2, 3), "] belongs here, and the text ends"),
        ("[a,\n b}.", (2, 3), "] belongs here, and there is }"),
        ("[a,, b].", (1, 4), "There is , where it cannot stand"),
        ("{a, }.", (1, 5), "There is } where it cannot stand"),
        ("a b.", (1, 3), "There is an atom where it cannot stand"),
        ("{a, 'secret}.", (1, 5), "never ends"),
        ('{a,\n  "secret}.\n\n', (2, 3), "never ends"),
        ("{a, Secret}.", (1, 5), "is a variable"),
        ("{a, end}.", (1, 5), "There is end where it cannot stand"),
        ("{a, 1#0}.", (1, 5), "base of a number is 2 to 36"),
        ("{a, 2#2}.", (1, 5), "digit that its base does not have"),
        ("{a, 1.0e999}.", (1, 5), "too large"),
        ("{a, " + "9" * 5000 + "}.", (1, 5), "too long"),
        ('{a, "\\x{110000}"}.', (1, 5), "no character of this number"),
        ('{a, "\\x4"}.', (1, 5), r"written \x41 or \x{20AC}"),
        ("<<1:7>>.", (1, 4), ">> belongs here, and there is :"),
        ('<<"secret€">>.', (1, 3), "has texts and bytes"),
        ('<<"secret"/utf16>>.', (1, 3), "has texts and bytes"),
        ("<<256>>.", (1, 3), "has texts and bytes"),
        ("[a | b].", (1, 4), "] belongs here, and there is |"),
        ("fun (X) -> X end.", (1, 5), "fun module:name/1"),
        ("a ; b.", (1, 3), "cannot stand here"),
        ('{a, """\nx\n"""}.', (1, 5), "three quotes"),
        ("- a.", (1, 3), "A number belongs after the sign"),
        ("[" * 200, (1, 101), "nested too deeply"),
    ],
)
def test_mistakes_have_a_place_and_quote_no_secret(text: str, place: tuple[int, int], sentence: str) -> None:
    with pytest.raises(TermSyntaxError) as raised:
        read_terms(text)
    assert (raised.value.line, raised.value.column) == place
    assert sentence in str(raised.value)
    assert "ecret" not in str(raised.value)
