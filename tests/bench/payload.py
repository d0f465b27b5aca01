"""The bytes that the load client sends, encoded before the clock starts, and the check of what comes back.

Every body is 256 bytes and begins with its own number, so a lost, doubled, cut or reordered message is found
afterwards. No body holds a NUL: the client counts frames by counting NULs.
"""

import re

BODY_SIZE = 256
_DIGITS = 10
_FILLER = b"x" * (BODY_SIZE - _DIGITS)
_BODY = re.compile(rb"\n\n(\d{10})x{246}\0")
_RECEIPT = re.compile(rb"\nreceipt-id:(\d+)\n")


def body(number: int) -> bytes:
    """Return the body of message `number`: 256 bytes of ASCII."""
    return b"%010d" % number + _FILLER


def sends(destination: str, count: int, *, receipt_on_last: bool = False) -> bytes:
    """Return `count` transient SEND frames, numbered from 0; the last may ask for the receipt `last`."""
    head = b"SEND\ndestination:%s\ncontent-length:%d\n" % (destination.encode(), BODY_SIZE)
    frames = [b"%s\n%s\0" % (head, body(number)) for number in range(count)]
    if receipt_on_last:
        frames[-1] = b"%sreceipt:last\n\n%s\0" % (head, body(count - 1))
    return b"".join(frames)


def confirmed_sends(destination: str, count: int) -> tuple[bytes, int]:
    """Return `count` persistent SEND frames, each with its number as receipt, and the length that all of them have."""
    head = b"SEND\ndestination:%s\npersistent:true\ncontent-length:%d\nreceipt:" % (destination.encode(), BODY_SIZE)
    frames = b"".join(b"%s%010d\n\n%s\0" % (head, number, body(number)) for number in range(count))
    return frames, len(frames) // count


def complaint_about_messages(received: bytes | bytearray, count: int) -> str | None:
    """Check that `received` holds messages 0 to `count`-1 whole, in order, once each; return None or what is wrong."""
    numbers = [int(number) for number in _BODY.findall(received)]
    if numbers == list(range(count)):
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
