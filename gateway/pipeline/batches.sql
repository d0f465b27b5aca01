{#
What a batch adds to a lake, in Spark's SQL: a macro for each table. `spark_tables.computed` asks it; names in braces are
DataFrames, so a brace of its own is char(123) or char(125).
#}
{% macro texts(names) %}{% for name in names %}'{{ name }}'{{ ", " if not loop.last }}{% endfor %}{% endmacro %}

{# Lines #}

{% set line %}
e string, t bigint, q bigint, c bigint, vh string, u string, d string, dk string, s string, sn string, am string, m bigint,
b bigint, hn int, p boolean, tx boolean, rc boolean, l bigint, ql bigint, r boolean, n bigint, x string, w double, ip string,
tls boolean, ver string, hb string, pf int, du boolean, ad boolean, ex boolean, cnt map<string,bigint>, h map<string,bigint>,
f struct<frames_in:bigint, frames_out:bigint, bytes_in:bigint, bytes_out:bigint, unacked:bigint, max_unacked:bigint, us:bigint>,
hv map<string,string>, gw string, cfg string, v int
{% endset %}
{% set totals = ("frames_in", "frames_out", "bytes_in", "bytes_out", "unacked", "max_unacked", "us") %}
{% macro from_json(value, schema) %}
from_json({{ value }}, '{{ schema }}', map('columnNameOfCorruptRecord', '_bad', 'allowSingleQuotes', 'false',
    'allowNonNumericNumbers', 'false')){% endmacro %}

{# The parser stops after the first object. If the first closing brace is the text's last character, nothing can follow; most
lines are so. Otherwise the text is parsed inside an array, and inside an object: anything that follows breaks one of the
two, or becomes another element. #}
{% macro is_single_object() %}
(value rlike r'\A[^\x7D]*\x7D\z' or coalesce(
    size({{ from_json("concat('[', trim(value), ']')", "array<struct<e string>>") }}) = 1 and
    {{ from_json("concat(char(123), '\"x\":', trim(value), char(125))", "x string, _bad string") }}._bad is null, false))
{%- endmacro %}

{# HOT: every line passes here, so it uses only functions that Spark compiles. Spark sorts NaN above all numbers. The sum of a
thousand counts of 2^53 still fits into 64 bits. A bucket is at most 800, that of the largest latency. #}
{% macro is_out_of_range() %}
{% for count in ("q", "m", "b", "hn", "l", "ql", "n") %}{{ count }} < 0 or {{ count }} > {{ 2 ** 53 }} or {% endfor %}
{% for total in totals %}f.{{ total }} < 0 or f.{{ total }} > {{ 2 ** 53 }} or {% endfor %}
{% for counts in ("cnt", "h") %}
array_min(map_values({{ counts }})) < 0 or array_max(map_values({{ counts }})) > {{ 2 ** 53 }} or
{% endfor %}
w <= 0 or w > 1000000 or
array_join(map_keys(h), ' ') rlike r'(?:conf|ack|nack|queue):\s*(?:-|\+?0*(?:[1-9]\d\d\d|9\d\d|8[1-9]\d|80[1-9]))'
{%- endmacro %}

{# All lines, blank ones too, with their fields as columns of their own, and `reason`: why a line is bad, null for a good one.
A line is good if it is exactly one JSON object with integers `t` (a time between the years 1970 and 9999) and `q`, a name
`e`, and no known field of a wrong type; on an `open` line `v` must be that of this schema. Unknown fields are ignored. A
number or boolean in place of a string is converted to one, but a name begins with a letter. #}
{% macro parsed() %}
select *, case
    when not is_valid_utf8(value) then 'not UTF-8'
    when trim(value) = '' then 'blank'
    when _bad is null and not {{ is_single_object() }} then 'more than one JSON object'
    when _bad is not null then 'not a JSON object, or a field of a wrong type'
    when t is null then 'no integer t'
    when t < 0 or t > 253402300799999999 then 't is out of range'
    when q is null then 'no integer q'
    when e is null or not (e >= 'A' and e < '[' or e >= 'a' and e < char(123)) or e in ('true', 'false') then 'no name e'
    when e = 'open' and not v <=> {{ version }} then 'of another schema version'
    when {{ is_out_of_range() }} then 'a number is out of range' end reason
from (select * except (j), j.* from (select *, {{ from_json("value", (line ~ ", _bad string") | replace("\n", " ")) }} j from {lines}))
{%- endmacro %}

{# Missing fields have the schema's default, in rows of those events. `impl`, `node` and `boot` come with the lines. #}
{% macro default(field, events, value) %}if(e in ({{ texts(events) }}) and {{ field }} is null, {{ value }}, {{ field }}){% endmacro %}
{% macro events() %}
select timestamp_micros(t) ts, boot, q seq, impl, node,
    case e {% for short, word in words.items() %}when '{{ short }}' then '{{ word }}' {% endfor %}else e end event,
    c session, vh vhost, u login, d destination, dk dest_kind, s sub_id, sn sub_name, am ack_mode, m msg_no,
    {{ default("b", ("send", "dlv"), 0) }} body_bytes, {{ default("hn", ("send",), 0) }} header_count,
    {{ default("p", ("send",), "false") }} persistent, {{ default("tx", ("send",), "false") }} transacted,
    {{ default("rc", ("send",), "false") }} receipt, l latency_us, ql queue_us,
    {{ default("r", ("dlv",), "false") }} redelivered,
    if(e in ('ack', 'nack'), coalesce(n, 1), {{ default("n", ("unsub",), 0) }}) n, x code,
    {{ default("w", message_events, "1d") }} weight, ip peer, {{ default("tls", ("conn",), "false") }} tls,
    ver version, hb heartbeat, {{ default("pf", ("sub",), 0) }} prefetch, {{ default("du", ("sub",), "false") }} durable,
    {{ default("ad", ("sub",), "false") }} auto_delete, {{ default("ex", ("sub",), "false") }} exclusive,
    cnt counters, h histogram,
    if(e = 'end' or f is not null, map({% for name in totals %}'{{ name }}', coalesce(f.{{ name }}, 0)
        {{- ", " if not loop.last }}{% endfor %}), null) totals,
    hv header_values, gw gateway_version, cfg config, file,
    string(date_from_unix_date(int(t div 86400000000))) d,
    if(e in ({{ texts(message_events) }}), 'message', 'session') level
from ({{ parsed() }}) where reason is null
{% endmacro %}

{# `day` is that of the segment. #}
{% macro bad_lines() %}
select file, make_valid_utf8(value) line, reason, current_timestamp() seen, day d from ({{ parsed() }})
where reason is not null
{% endmacro %}

{#
The roll-up of a batch's events. Its rows can be added up in any order, across batches too: counts and bytes are sums, and
latencies are counts by histogram bucket. A message line counts with its weight; the `stat` lines of a session at level session
count what it did. No session writes both, so nothing is counted twice.
#}

{# The buckets of gateway.journal.histogram, with integers only, so that both agree bit for bit. A number has floor(log2) + 1
binary digits; a logarithm could round the wrong way. Null has no bucket, and a value below 0 counts as 0. #}
{% macro bucket_of(value) %}
{% set counted = "greatest(" ~ value ~ ", 0)" %}
{% set shift = "greatest(length(bin(" ~ counted ~ ")) - 5, 0)" %}
if({{ value }} is null, null, cast(shiftleft({{ shift }}, 4) + shiftright({{ counted }}, {{ shift }}) as int)){% endmacro %}

{% set who = "impl, node, vhost, login, destination, dest_kind, sub_name, ack_mode" %}
{% set slot = "unix_micros(ts) div 10000000 slot" %}{# Spark groups by numbers faster than by timestamps. #}
{% macro row(event, n, code="null", bytes="0", bucket="null") %}
struct('{{ event }}' event, cast({{ code }} as string) code, cast({{ bucket }} as int) bucket, double({{ n }}) n,
    double({{ bytes }}) bytes){% endmacro %}
{% macro counter(name) %}coalesce(try_element_at(counters, '{{ name }}'), 0){% endmacro %}
{% macro of_metric(name) %}filter(histogram, each -> each.metric = '{{ name }}'){% endmacro %}
{% macro untimed(name) %}
greatest({{ counter(name) }} - aggregate({{ of_metric(name) }}, 0d, (total, each) -> total + each.n), 0d){% endmacro %}
{% macro roll_up() %}
with lines as (
    -- one row for each line that is one event
    select {{ slot }}, {{ who }}, event,
        case when event in ('end', 'unsubscribe', 'error', 'blocked', 'feature', 'nack', 'confirm') then code
            when event = 'deliver' and redelivered then 'redelivered' end code,
        if(event in ('connect', 'blocked', 'ack') or event = 'confirm' and code is null, {{ bucket_of("latency_us") }},
            null) bucket,
        case when event in ('ack', 'nack') then coalesce(n, 0) * coalesce(weight, 1d) when event = 'dropped' then n
            when event in ('send', 'confirm', 'deliver') then coalesce(weight, 1d) else 1d end n,
        if(event in ('send', 'deliver'), coalesce(weight, 1d) * coalesce(body_bytes, 0), 0d) bytes
    from {events}
    where event in ('open', 'close', 'dropped', 'connect', 'end', 'feature', 'subscribe', 'unsubscribe', 'error', 'blocked',
        'send', 'confirm', 'deliver', 'ack', 'nack') and not (event in ('dropped', 'ack', 'nack') and coalesce(n, 0) = 0)
    -- how long messages were in their queues: a second row for a delivery that tells
    union all select {{ slot }}, {{ who }}, 'queue', null, {{ bucket_of("queue_us") }}, coalesce(weight, 1d), 0d
    from {events} where event = 'deliver' and queue_us is not null),
stat as (
    -- a histogram is an array, without malformed keys
    select {{ slot }}, {{ who }}, counters, coalesce(filter(
        transform(map_entries(histogram), each -> struct(substring_index(each.key, ':', 1) metric,
            try_cast(substring_index(each.key, ':', -1) as int) bucket, each.value n)),
        each -> each.bucket between 0 and 800), array()) histogram
    from {events} where level = 'session' and event = 'stat'),
stat_rows as (
    select slot, {{ who }}, inline(concat(
        array(
            {{ row("send", counter("send"), bytes=counter("send_bytes")) }},
            {{ row("confirm", untimed("conf")) }}, {{ row("confirm", counter("rejected"), "'rejected'") }},
            {{ row("deliver", counter("dlv") ~ " - " ~ counter("redelivered"), bytes=counter("dlv_bytes")) }},
            {{ row("deliver", counter("redelivered"), "'redelivered'") }}, {{ row("ack", untimed("ack")) }},
            {{ row("nack", counter("requeue"), "'requeue'") }}, {{ row("nack", counter("discard"), "'discard'") }}),
        {% for metric, event in (("conf", "confirm"), ("ack", "ack"), ("queue", "queue")) %}
        transform({{ of_metric(metric) }}, each -> {{ row(event, "each.n", bucket="each.bucket") }})
            {{- "," if not loop.last }}
        {% endfor %}
        )) from stat),
-- Most rows differ in their bucket, so a partial aggregation before the exchange, as Spark would do, does not pay. If all
-- deliveries were redeliveries, their bytes are on a row that counts no message.
spread as (
    select /*+ repartition(slot, login, destination) */ * from (
        select * from lines union all select * from stat_rows where n <> 0 or bytes <> 0)),
summed as (
    select slot, {{ who }}, event, code, bucket, sum(n) n, sum(bytes) bytes from spread
    group by slot, {{ who }}, event, code, bucket)
select string(date_from_unix_date(int(slot div 8640))) d, timestamp_micros(slot * 10000000) ts10, * except (slot) from summed
{% endmacro %}

{# What the plan of a batch says about the events of each segment. Of the end of a session, its beginning is computed from
its time and duration, which come from different clocks that may be adjusted by five minutes; a session that began near the
end of an hour counts for both hours. #}
{% macro by_segment() %}
select file, count(*) events, min(seq) first, max(seq) last, min_by(event, seq) first_event,
    min(d) filter (where event = 'open') opened, unix_micros(max(ts)) newest, collect_set(d) days,
    collect_set(string(date_format(ts, "yyyy-MM-dd'T'HH"))) hours
    {% for bound in (-300_000_000, 300_000_000) %}
    , collect_set(date_format(timestamp_micros(unix_micros(ts) - coalesce(try_element_at(totals, 'us'), 0) + {{ bound }}),
        "yyyy-MM-dd'T'HH"))
        filter (where event in ('connect', 'end')) {{ "earliest_sessions" if bound < 0 else "latest_sessions" }}
    {% endfor %}
from {events} group by file
{% endmacro %}
