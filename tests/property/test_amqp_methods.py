from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame

from gateway.amqp import methods
from gateway.amqp.methods import Close, Method, read_close, read_method
from gateway.amqp.properties import short_string
from gateway.errors import CodecError
from tests.property.amqp_frames import channels, texts

# pamqp refuses others, and a queue without a name has a meaning of its own.
names = st.text("abz019-_.:@#,/ ", max_size=20)
arguments = st.dictionaries(
    st.sampled_from(["x-expires", "x-max-length", "x-stream-filter", "x-stream-offset", "x-queue-type"]),
    st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | texts(40)
    | st.lists(texts(10), max_size=3)
    | st.just(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    max_size=4,
)
flags = st.booleans()


@given(channels, names, names, names, arguments, st.lists(flags, min_size=5, max_size=5), st.integers(0, 0xFFFF))
def test_a_method_is_what_pamqp_writes(
    channel: int,
    queue: str,
    other: str,
    key: str,
    table: dict[str, Any],
    bits: list[bool],
    prefetch: int,
) -> None:
    passive, durable, exclusive, auto_delete, nowait = bits
    queue_of = dict(passive=passive, durable=durable, exclusive=exclusive, auto_delete=auto_delete, nowait=nowait)
    pairs: list[tuple[Method, object]] = [
        (methods.OPEN, commands.Channel.Open()),
        (methods.CLOSE, commands.Channel.Close(200, "", 0, 0)),
        (methods.CLOSE_OK, commands.Channel.CloseOk()),
        (methods.SELECT_CONFIRMS, commands.Confirm.Select()),
        (methods.qos(prefetch), commands.Basic.Qos(prefetch_count=prefetch)),
        (
            methods.consume(queue, "s1", table, nowait=nowait),
            commands.Basic.Consume(queue=queue, consumer_tag="s1", nowait=nowait, arguments=dict(table)),
        ),
        (methods.cancel("s1"), commands.Basic.Cancel("s1")),
        (methods.cancel_ok("s1"), commands.Basic.CancelOk("s1")),
        (
            methods.declare(queue, table, **queue_of),
            commands.Queue.Declare(queue=queue, arguments=dict(table), **queue_of),
        ),
        (methods.bind(queue, other, key), commands.Queue.Bind(queue=queue, exchange=other, routing_key=key)),
        (
            methods.unbind(queue, other, key, table),
            commands.Queue.Unbind(queue=queue, exchange=other, routing_key=key, arguments=dict(table)),
        ),
        (
            methods.delete(queue, if_unused=passive, if_empty=durable),
            commands.Queue.Delete(queue=queue, if_unused=passive, if_empty=durable),
        ),
    ]
    for method, expected in pairs:
        assert method.frame(channel) == frame.marshal(expected, channel)  # type: ignore[arg-type]


def test_a_name_may_be_any_text_that_fits() -> None:
    assert b"\x04a \xc3\xbc" in methods.delete("a \u00fc").frame(1)
    with pytest.raises(CodecError, match="256"):
        methods.delete("x" * 256)


@given(channels, st.integers(0, 0xFFFF), texts(255), st.sampled_from([(0, 0), (50, 10), (60, 20)]))
def test_a_close_is_read_as_pamqp_reads_it(channel: int, code: int, text: str, refused: tuple[int, int]) -> None:
    close = Close(code, text, refused[0] << 16 | refused[1])
    for method in (commands.Channel.Close, commands.Connection.Close):
        data = frame.marshal(method(code, text, *refused), channel)
        assert read_close(data) == close
    assert read_method(commands.Channel.Close.index, data) == close


@given(channels, texts(255))
def test_the_name_of_a_declared_queue_is_read(channel: int, queue: str) -> None:
    """In pamqp there are no answers with unusual names."""
    answer = Method(methods.DECLARE_OK, short_string(queue.encode()) + b"\0\0\0\1\0\0\0\2")
    assert read_method(answer.number, answer.frame(channel)) == queue


@given(st.binary(max_size=14), st.sampled_from([methods.DECLARE_OK, commands.Channel.Close.index]))
def test_a_method_that_is_cut_or_no_text_is_bad_amqp(content: bytes, number: int) -> None:
    """Or it is read: nothing else is raised."""
    data = Method(number, content).frame(1)
    try:
        read_method(number, data)
    except CodecError:
        return
    assert len(content) > content[0 if number == methods.DECLARE_OK else 2]
