"""Selectors: expressions, and what they say of messages.

The cases follow what ActiveMQ documents and tests of its own selectors, for messages whose headers are all texts, and
the specification of JMS. Where the two differ, JMS and SQL-92 are right here.
"""

import sys
import weakref
from types import SimpleNamespace

import pytest

from gateway.errors import SelectorError
from gateway.message_selectors import selector_parser
from gateway.message_selectors.selector import LONGEST_SELECTOR, Selector, read_selector
from gateway.message_selectors.terms import Evaluate

MESSAGE = [
    (b"name", b"James"),
    (b"location", b"London"),
    (b"rank", b"123"),
    (b"version", b"2"),
    (b"weight", b"2.5"),
    (b"below", b"-7"),
    (b"far", b"1e3"),
    (b"quote", b"'In God We Trust'"),
    (b"foo", b"_foo"),
    (b"punctuation", b"!#$&()*+,-./:;<=>?@[\\]^`{|}~"),
    (b"ending", b"XD7xlJIQn_"),
    (b"lines", b"one\ntwo"),
    (b"yes", b"true"),
    (b"no", b"False"),
    (b"empty", b""),
    (b"city", "Zürich".encode()),
    (b"raw", b"\xff"),
    (b"x-shop", b"8"),
    (b"x", b"12"),
    (b"shop", b"5"),
    (b"$price", b"3"),
    (b"_under", b"4"),
    (b"like", b"reserved"),
    (b'a"b', b"quoted"),
    (b"twice", b"first"),
    (b"twice", b"second"),
    (b"type", b"order"),
    (b"priority", b"9"),
    (b"correlation-id", b"c1"),
    (b"amqp-message-id", b"m1"),
    (b"reply-to", b"/queue/answers"),
    (b"timestamp", b"1700000000"),
    (b"persistent", b"true"),
]
TRUE = True
FALSE = False
UNKNOWN = None


def selector(text: str) -> Selector:
    found = read_selector(text.encode())
    assert found is not None
    return found


def selects(text: str) -> bool:
    return selector(text).matches(MESSAGE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Comparisons.
        ("name = 'James'", TRUE),
        ("name = 'james'", FALSE),
        ("name <> 'James'", FALSE),
        ("'James' = name", TRUE),
        ("rank > 100", TRUE),
        ("rank >= 123", TRUE),
        ("rank >= 124", FALSE),
        ("rank < 123", FALSE),
        ("rank <= 123", TRUE),
        ("100 < rank", TRUE),
        ("rank = 123", TRUE),
        ("rank = 123.0", TRUE),
        ("rank = '123'", TRUE),
        ("rank = '123.0'", FALSE),
        ("weight > 2", TRUE),
        ("weight = 2.5", TRUE),
        ("below < 0", TRUE),
        ("far = 1000", TRUE),
        ("version < rank", TRUE),
        ("rank = rank", TRUE),
        ("SessionserverId = 1870414179", UNKNOWN),
        ("city = 'Zürich'", TRUE),
        ("raw <> 'x'", TRUE),
        # Of what is no number nothing is more or less, and it is not equal to one.
        ("name = 5", FALSE),
        ("name <> 5", TRUE),
        ("name < 5", FALSE),
        ("name >= 5", FALSE),
        ("empty = 0", FALSE),
        # Truths.
        ("yes", TRUE),
        ("no", FALSE),
        ("name", FALSE),
        ("absent", UNKNOWN),
        ("yes = TRUE", TRUE),
        ("yes <> TRUE", FALSE),
        ("no = FALSE", TRUE),
        ("name = TRUE", FALSE),
        ("name = FALSE", FALSE),
        ("rank = TRUE", FALSE),
        ("(rank > 100) = yes", TRUE),
        ("TRUE", TRUE),
        ("false", FALSE),
        ("TRUE = 1", FALSE),
        # AND, OR, NOT, and what binds closer.
        ("name = 'James' and rank < 200", TRUE),
        ("name = 'James' and rank > 200", FALSE),
        ("name = 'Foo' AND rank < 200", FALSE),
        ("unknown = 'Foo' and anotherUnknown < 200", UNKNOWN),
        ("name = 'James' or rank > 200", TRUE),
        ("name = 'Foo' Or rank < 200", TRUE),
        ("name = 'Foo' or rank > 200", FALSE),
        ("unknown = 'Foo' or anotherUnknown < 200", UNKNOWN),
        ("(yes OR no) AND yes", TRUE),
        ("(yes OR no) AND no", FALSE),
        ("yes OR no AND no", TRUE),
        ("no AND no OR yes", TRUE),
        ("NOT no AND yes", TRUE),
        ("NOT (yes AND yes)", FALSE),
        ("not rank = 5", TRUE),
        ("not rank between 1 and 2 and yes", TRUE),
        ("NOT NOT yes", TRUE),
        # The tables of three-valued logic.
        ("absent AND yes", UNKNOWN),
        ("yes AND absent", UNKNOWN),
        ("absent AND no", FALSE),
        ("no AND absent", FALSE),
        ("absent AND absent", UNKNOWN),
        ("absent OR yes", TRUE),
        ("yes OR absent", TRUE),
        ("absent OR no", UNKNOWN),
        ("no OR absent", UNKNOWN),
        ("absent OR absent", UNKNOWN),
        ("NOT absent", UNKNOWN),
        # What is not there.
        ("absent = 0", UNKNOWN),
        ("absent <> 0", UNKNOWN),
        ("0 < absent", UNKNOWN),
        ("absent = absent", UNKNOWN),
        ("absent LIKE 'zero'", UNKNOWN),
        ("absent NOT LIKE 'zero'", UNKNOWN),
        ("absent IN ('zero')", UNKNOWN),
        ("absent NOT IN ('zero')", UNKNOWN),
        ("absent BETWEEN 1 AND 2", UNKNOWN),
        ("absent NOT BETWEEN 1 AND 2", UNKNOWN),
        ("rank BETWEEN absent AND 2", FALSE),
        ("rank BETWEEN 1 AND absent", UNKNOWN),
        ("absent IS NULL", TRUE),
        ("absent IS NOT NULL", FALSE),
        ("name IS NULL", FALSE),
        ("name is not null", TRUE),
        ("empty IS NULL", FALSE),
        ("-absent = 0", UNKNOWN),
        ("+absent = 0", UNKNOWN),
        ("absent * 2 = 0", UNKNOWN),
        ("2 / absent = 0", UNKNOWN),
        # BETWEEN and IN.
        ("rank between 100 and 150", TRUE),
        ("rank between 123 and 123", TRUE),
        ("rank between 10 and 120", FALSE),
        ("rank not between 10 and 120", TRUE),
        ("rank not between 10 and 123", FALSE),
        ("rank not between 123 and 200", FALSE),
        ("rank between 120 + 1 and 2 * 75", TRUE),
        ("name between 1 and 2", FALSE),
        ("name not between 1 and 2", FALSE),
        ("name in ('James', 'Bob', 'Gromit')", TRUE),
        ("name in ('Gromit', 'Bob', 'James')", TRUE),
        ("name in ('Gromit', 'Bob', 'Cheddar')", FALSE),
        ("name not in ('Gromit', 'Bob', 'Cheddar')", TRUE),
        ("name NOT IN ('James')", FALSE),
        ("rank IN ('123')", TRUE),
        # Arithmetic.
        ("rank + 2 = 125", TRUE),
        ("125 = (rank + 2)", TRUE),
        ("rank + version = 125", TRUE),
        ("rank + 2 < 124", FALSE),
        ("rank - version = 121", TRUE),
        ("rank - 2 > 122", FALSE),
        ("rank * version = 246", TRUE),
        ("rank / version = 61.5", TRUE),
        ("version / 2 = 1", TRUE),
        ("rank / 3 > 100", FALSE),
        ("rank % 10 = 3", TRUE),
        ("below % 4 = -3", TRUE),
        ("1 + 2 * 3 = 7", TRUE),
        ("(1 + 2) * 3 = 9", TRUE),
        ("10 - 3 - 2 = 5", TRUE),
        ("12 / 3 * 2 = 8", TRUE),
        ("-version + 5 = 3", TRUE),
        ("- -version = 2", TRUE),
        ("+rank = 123", TRUE),
        ("name + '!' = 'James!'", TRUE),
        ("rank / 0 = 1", UNKNOWN),
        ("rank % 0 = 1", UNKNOWN),
        ("name * 2 = 0", UNKNOWN),
        ("-name = 0", UNKNOWN),
        # Literals.
        ("rank = 123L", TRUE),
        ("rank = 0x7b", TRUE),
        ("rank = 0X7BL", TRUE),
        ("rank = 0173", TRUE),
        ("0 = 0", TRUE),
        ("rank = 1.23E2", TRUE),
        ("rank = 123d", TRUE),
        ("weight = 25e-1f", TRUE),
        ("1. < 1.1", TRUE),
        ("-1.1 < 1.", TRUE),
        ("-1.1E1 < 1.E1", TRUE),
        (".1 < .5", TRUE),
        ("-.5E1 < .1E1", TRUE),
        ("4E+10 < 5E+10", TRUE),
        ("4E-10 < 5E-10", TRUE),
        ("-9223372036854775808 < -9223372036854775807", TRUE),
        ("9223372036854775807 + 1 > 9223372036854775806", TRUE),
        ("quote = '''In God We Trust'''", TRUE),
        ("empty = ''", TRUE),
        # LIKE.
        ("quote LIKE '''In G_d We Trust'''", TRUE),
        ("quote LIKE '''In Gd_ We Trust'''", FALSE),
        ("quote NOT LIKE '''In G_d We Trust'''", FALSE),
        ("quote NOT LIKE '''In Gd_ We Trust'''", TRUE),
        ("foo LIKE '%oo'", TRUE),
        ("foo LIKE '%ar'", FALSE),
        ("foo LIKE 'f%'", FALSE),
        ("foo LIKE '%'", TRUE),
        ("foo LIKE '____'", TRUE),
        ("foo LIKE '___'", FALSE),
        ("foo LIKE '!_%' ESCAPE '!'", TRUE),
        ("quote LIKE '!_%' ESCAPE '!'", FALSE),
        ("foo NOT LIKE '!_%' ESCAPE '!'", FALSE),
        ("punctuation LIKE '!#$&()*+,-./:;<=>?@[\\]^`{|}~'", TRUE),
        ("foo LIKE '%_%' ESCAPE '%'", TRUE),
        ("ending LIKE '_D7xlJIQn$_' ESCAPE '$'", TRUE),
        ("ending LIKE '_D7xlJIQn__' ESCAPE '_'", TRUE),
        ("ending LIKE '%D7xlJIQn%_' ESCAPE '%'", TRUE),
        ("ending LIKE '%D7xlJIQn%' ESCAPE '%'", TRUE),
        ("ending LIKE '%D7xlJIQn%%' ESCAPE '%'", FALSE),
        ("ending LIKE '%D7xlJIQn\\_' ESCAPE '\\'", TRUE),
        ("foo LIKE '!foo' ESCAPE '!'", FALSE),
        ("name LIKE '%a%e%'", TRUE),
        ("name LIKE 'J%m%s'", TRUE),
        ("name LIKE 'J%s%s'", FALSE),
        ("name LIKE 'James%James'", FALSE),
        ("name LIKE ''", FALSE),
        ("empty LIKE ''", TRUE),
        ("lines LIKE 'one_two'", TRUE),
        ("lines LIKE 'one%'", TRUE),
        ("city LIKE 'Z_rich'", TRUE),
        ("rank LIKE '1%'", TRUE),
        # Names.
        ("$price + _under = 7", TRUE),
        ("Name = 'James'", UNKNOWN),
        ("x-shop = 7", TRUE),
        ('"x-shop" = 8 and x - shop = 7', TRUE),
        ("\"like\" = 'reserved'", TRUE),
        ('"a""b" = \'quoted\'', TRUE),
        ("hyphenated_props:x-shop = 8 and x - shop = 7", TRUE),
        ("convert_string_expressions:rank > 100", TRUE),
        ("convert_string_expressions:hyphenated_props:x-shop = 8", TRUE),
        ("twice = 'first'", TRUE),
        ("note IS NULL AND islands IS NULL", TRUE),
        # The headers that JMS names.
        ("JMSType = 'order'", TRUE),
        ("JMSPriority > 4", TRUE),
        ("JMSCorrelationID = 'c1'", TRUE),
        ("JMSMessageID = 'm1'", TRUE),
        ("JMSReplyTo = '/queue/answers'", TRUE),
        ("JMSTimestamp = 1700000000000", TRUE),
        ("JMSDeliveryMode = 'PERSISTENT'", TRUE),
        ("type\t=\n'order'\r\f", TRUE),
    ],
)
def test_what_a_selector_says_of_a_message(text: str, value: bool | None) -> None:
    """Three values show in two questions: of what is unknown the opposite is not so, either."""
    prefix = "".join(each for each in ("convert_string_expressions:", "hyphenated_props:") if each in text)
    assert (selects(text), selects(f"{prefix}NOT ({text.removeprefix(prefix)})")) == (value is True, value is False)


@pytest.mark.parametrize("text", ["", "  ", "convert_string_expressions:", " hyphenated_props: "])
def test_an_empty_selector_is_none(text: str) -> None:
    assert read_selector(text.encode()) is None


CONDITION = "a number or a text is where a condition must be"
NUMBERS = "only numbers have an order and a sign, and can be computed with"
NAME = "in front of IN, LIKE and IS must be the name of a header"
END = "it ends too early"
TOKENS = "it has more than 200 words, signs and %"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3+5", CONDITION),
        ("TRUE AND 3+5", CONDITION),
        ("'James'", CONDITION),
        ("NOT 'James'", CONDITION),
        ("name < 'James'", NUMBERS),
        ("name BETWEEN 'A' AND 'Z'", NUMBERS),
        ("rank > TRUE", NUMBERS),
        ("-'5' = 5", NUMBERS),
        ("'5' - 1 = 4", NUMBERS),
        ("(a = b) + 1 = 2", NUMBERS),
        ("5 IN ('5')", NAME),
        ("'a' LIKE 'a'", NAME),
        ("a + b IS NULL", NAME),
        ("name LIKE 'a' ESCAPE 'ab'", "behind ESCAPE must be one character"),
        ("name LIKE 'a' ESCAPE ''", "behind ESCAPE must be one character"),
        ("=TEST 'test'", "'=TEST 'test'' makes no sense at character 1"),
        ("a = 1 AMD b = 2", "'AMD b = 2' makes no sense at character 7"),
        ("prop1 = prop2 foo AND string = 'Test'", "'foo AND string = 'Te' makes no sense at character 15"),
        ("name LIKE 5", "'5' makes no sense at character 11"),
        ("name IN (1, 2)", "'1, 2)' makes no sense at character 10"),
        ("name IN ()", "')' makes no sense at character 10"),
        ("name = NULL", "'NULL' makes no sense at character 8"),
        ("like = 'x'", "'like = 'x'' makes no sense at character 1"),
        ("a = 1 = 1", "'= 1' makes no sense at character 7"),
        ("a == 1", "'= 1' makes no sense at character 4"),
        ("a != 1", "'!= 1' makes no sense at character 3"),
        ("a = 10x", "'10x' makes no sense at character 5"),
        ("a = 1.2.3", "'1.2.3' makes no sense at character 5"),
        ("a = 0xg", "'0xg' makes no sense at character 5"),
        ("a = 08", "08 is no number"),
        ("a = 1e999", "1e999 is no number"),
        ('"" = 5', END),
        ("a = 'x", END),
        ("a = 1 AND", END),
        ("(a = 1", END),
        ("a = 1)", "')' makes no sense at character 6"),
        ("NOT " * 41 + "TRUE", "it is nested more than 40 times"),
        ("-(" * 41 + "a" + ")" * 41 + " = 1", "it is nested more than 40 times"),
        ("(1 + " * 41 + "a" + ")" * 41 + " = 1", "it is nested more than 40 times"),
        ("(TRUE AND (TRUE OR " * 21 + "TRUE" + "))" * 21, "it is nested more than 40 times"),
        ("a = '" + "x" * LONGEST_SELECTOR + "'", "it has 2054 bytes, and 2048 are allowed"),
        ("yes" + " AND yes" * 100, TOKENS),
        ("a = (((" + "(" * 200, TOKENS),
        ("(" * 100 + "yes" + ")" * 100, TOKENS),
        ("a IN ('x'" + ", 'x'" * 100 + ")", TOKENS),
        ("a LIKE '" + "%_" * 200 + "'", TOKENS),
        ("a > 1" + "0" * 400, "10000000000000000000 is no number"),
        ("a > 0x" + "f" * 400, "0xffffffffffffffffff is no number"),
        ("a > 0x" + "f" * 400 + "L", "0xffffffffffffffffff is no number"),
        ("a > 01" + "7" * 400, "01777777777777777777 is no number"),
        ("a > 1" + "0" * 400 + "d", "10000000000000000000 is no number"),
        ("a > 1" + "0" * 400 + ".", "10000000000000000000 is no number"),
    ],
)
def test_what_is_no_selector_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(SelectorError) as found:
        read_selector(text.encode())
    assert str(found.value) == reason


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(SelectorError, match="it is not UTF-8"):
        read_selector(b"a = '\xff'")


@pytest.mark.parametrize("text", ["(" * 99 + "yes" + ")" * 99, "yes" + " AND yes" * 99, "1" + "+1" * 98 + " = 99"])
def test_a_long_selector_that_is_not_deep_is_one_like_any_other(text: str) -> None:
    assert selects(text)


def test_a_long_text_that_is_like_nothing_is_found_out_soon() -> None:
    """It would take years if each % were tried at every place."""
    found = selector("x LIKE '" + "%a_a" * 90 + "b'")
    assert not found.matches([(b"x", b"a" * 512)])
    assert found.matches([(b"x", b"a" * 511 + b"b")])


@pytest.mark.parametrize(
    ("pattern", "text", "is_like"),
    [
        ("%aab%", "aaab", True),
        ("%ab%ab%", "abab", True),
        ("%ab%ab%", "aba", False),
        ("ab%ba", "aba", False),
        ("ab%ba", "abba", True),
        ("a_%_a", "aba", False),
        ("a_%_a", "abba", True),
        ("%a_%_a", "xaba", False),
        ("%a_%_a", "xabca", True),
        ("%a_c%", "abbabc", True),
        ("%a_c%", "abbab", False),
        ("%.%", "ab", False),
        ("_._%", "abc", False),
        ("%%", "", True),
        ("_%", "", False),
        ("%_", "", False),
    ],
)
def test_what_is_looked_for_is_found_wherever_it_stands(pattern: str, text: str, is_like: bool) -> None:
    assert selector(f"x LIKE '{pattern}'").matches([(b"x", text.encode())]) is is_like


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [("a%", 4096), ("%aaa%", 4096), ("a_%", 4096), ("%_a", 4096), ("%_a%", 512), ("%a%_", 512)],
)
def test_a_text_that_is_too_long_is_neither_like_nor_unlike(pattern: str, longest: int) -> None:
    assert selector(f"x LIKE '{pattern}'").matches([(b"x", b"a" * longest)])
    longer = [(b"x", b"a" * (longest + 1))]
    assert not selector(f"x LIKE '{pattern}'").matches(longer)
    assert not selector(f"x NOT LIKE '{pattern}'").matches(longer)


def test_a_joined_text_that_is_too_long_is_unknown() -> None:
    halves = [(b"x", b"a" * 2048), (b"y", b"a" * 2048), (b"z", b"a" * 2049)]
    assert selector("x + y <> 'b'").matches(halves)
    assert not selector("x + z = 'b' OR x + z <> 'b'").matches(halves)


@pytest.mark.parametrize(
    ("sum_", "remainder"),
    [
        ("x % 2", 1),
        ("x % 10", 3),
        ("-x % 10", -3),
        ("x % -10", 3),
        ("-x % -10", -3),
        ("-20 % 10", 0),
        ("(-9223372036854775807 - 1) % 9223372036854775807", -1),
    ],
)
def test_the_remainder_of_large_whole_numbers_is_exact(sum_: str, remainder: int) -> None:
    assert selector(f"{sum_} = {remainder}").matches([(b"x", b"9007199254740993")])


def test_a_refusal_is_remembered_for_a_client_that_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And forgotten, since clients can send any number of bad selectors."""
    read: list[str] = []

    def counted(text: str, *, hyphens: bool) -> Evaluate:
        read.append(text)
        return selector_parser.parse(text, hyphens=hyphens)

    parser = SimpleNamespace(parse=counted)
    monkeypatch.setitem(sys.modules, selector_parser.__name__, parser)
    for text in ["a = remembered ="] * 3 + [f"a = {number} =" for number in range(100)] + ["a = remembered ="]:
        with pytest.raises(SelectorError, match="makes no sense"):
            read_selector(text.encode())
    assert read.count("a = remembered =") == 2


@pytest.mark.parametrize(
    "digits", [b"9" * 5000, b"1e400", b"nan", b"inf", b" 5", b"5 ", b"0x5", b"5L", b"1_0", "٣".encode()]
)
def test_a_header_that_is_no_plain_number_is_none(digits: bytes) -> None:
    assert not selector("x > 0 OR x <= 0 OR x = 5").matches([(b"x", digits)])


def test_numbers_have_a_bound_however_often_they_are_multiplied() -> None:
    found = selector("x" + "*x" * 98 + " > 0")
    assert found.matches([(b"x", b"2")])
    assert not found.matches([(b"x", b"9" * 18)])


def test_a_header_without_a_delivery_mode_is_not_persistent() -> None:
    assert selector("JMSDeliveryMode = 'NON_PERSISTENT' AND JMSTimestamp IS NULL").matches([])


def test_equal_selectors_are_one_while_they_are_in_use() -> None:
    """A selector may take some hundred kilobytes, and thousands of sessions may have the same."""
    text = b"shared = 'by many'"
    first = read_selector(text)
    assert read_selector(bytes(bytearray(text))) is first
    alive = weakref.ref(first) if first is not None else None
    del first
    assert alive is not None
    assert alive() is None
