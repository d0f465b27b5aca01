"""The bytes that the load client sends, encoded before the clock starts, and the check of what comes back.

Every body begins with its own number, so a lost, doubled, cut or reordered message is found afterwards. No body holds a
NUL: the client counts frames by counting NULs.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BODY_SIZE = 256
_DIGITS = 10
_RECEIPT = re.compile(rb"\nreceipt-id:(\d+)\n")


@dataclass(frozen=True)
class Shape:
    """What all messages of a row have in common: the bytes of a body, and how many headers differ in each message."""

    size: int = BODY_SIZE
    headers: int = 0

    def own_headers(self, number: int) -> Iterator[tuple[str, str]]:
        """Yield the headers of message `number`, which no other message has with these values."""
        for header in range(self.headers):
            yield f"header-{header}", f"value {number:010d} of header {header}"


PLAIN = Shape()


def body(number: int, size: int = BODY_SIZE) -> bytes:
    """Return the body of message `number`, ASCII, `size` bytes long."""
    return b"%010d" % number + b"x" * (size - _DIGITS)


def sends(destination: str, count: int, *, receipt_on_last: bool = False, shape: Shape = PLAIN) -> bytes:
    """Return `count` transient SEND frames, numbered from 0; the last may ask for the receipt `last`."""
    head = b"SEND\ndestination:%s\ncontent-length:%d\n" % (destination.encode(), shape.size)
    heads = [head + _lines(shape, number) for number in range(count)]
    if receipt_on_last:
        heads[-1] += b"receipt:last\n"
    return b"".join(b"%s\n%s\0" % (head, body(number, shape.size)) for number, head in enumerate(heads))


def sends_in_turn(destinations: Sequence[str], count: int) -> list[bytes]:
    """Return `count` transient SEND frames, numbered from 0, to one destination after the other."""
    heads = [b"SEND\ndestination:%s\ncontent-length:%d\n\n" % (name.encode(), BODY_SIZE) for name in destinations]
    return [b"%b%b\0" % (heads[number % len(heads)], body(number)) for number in range(count)]


def confirmed_sends(destination: str, count: int) -> tuple[bytes, int]:
    """Return `count` persistent SEND frames, each with its number as receipt, and the length that all of them have."""
    head = b"SEND\ndestination:%s\npersistent:true\ncontent-length:%d\nreceipt:" % (destination.encode(), BODY_SIZE)
    frames = b"".join(b"%s%010d\n\n%s\0" % (head, number, body(number)) for number in range(count))
    return frames, len(frames) // count


def complaint_about_messages(
    received: bytes | bytearray, count: int, *, size: int = BODY_SIZE, end: bytes = b"\0", in_order: bool = True
) -> str | None:
    """Check that `received` holds messages 0 to `count`-1 whole, once each; return None or what is wrong.

    `end` is the byte that follows a body; `in_order` says whether the order counts.
    """
    numbers = [int(number) for number in re.findall(rb"(?<!\d)(\d{10})x{%d}%b" % (size - _DIGITS, end), received)]
    if (numbers if in_order else sorted(numbers)) == list(range(count)):
        return None
    missing, doubled = count - len(set(numbers)), len(numbers) - len(set(numbers))
    if missing:
        first = min(set(range(count)) - set(numbers))
        lost = f"{missing:,} of {count:,} messages did not arrive whole, the first is number {first:,}"
        return f"{lost}; {doubled:,} came double"
    return f"{doubled:,} messages arrived more than once" if doubled else "the messages arrived out of order"


def complaint_about_receipts(received: bytes | bytearray, count: int) -> str | None:
    """Check that `received` holds one receipt for each of 0 to `count`-1; return None or what is wrong."""
    numbers = [int(number) for number in _RECEIPT.findall(received)]
    if sorted(numbers) == list(range(count)):
        return None
    return f"{len(numbers):,} receipts came for {count:,} messages, {len(set(numbers)):,} of them distinct"


def _lines(shape: Shape, number: int) -> bytes:
    return "".join(f"{name}:{value}\n" for name, value in shape.own_headers(number)).encode()
