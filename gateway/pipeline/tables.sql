{#
The computed tables of a lake in Spark's SQL: a macro for each. `spark_tables.computed` asks it; names in braces are
DataFrames. Sums are rounded at the end, half away from zero, and limited to 2^53; percentages are of rounded counts.
#}
{% macro whole(sum) %}bigint(greatest(least(round(coalesce({{ sum }}, 0d)), 9007199254740992d), -9007199254740992d)){% endmacro %}
{% macro sum_of(event, code="", column="n") %}
{{ whole("sum(double(" ~ column ~ ")) filter (where event = '" ~ event ~ "'" ~ (" and code = '" ~ code ~ "'" if code) ~ ")") }}
{%- endmacro %}
{% macro percent(part, of) %}if({{ of }} > 0, {{ part }} * 100d / {{ of }}, null){% endmacro %}
{% macro hour(time="ts10") %}timestamp_micros(unix_micros({{ time }}) div 3600000000 * 3600000000){% endmacro %}

{# The buckets of gateway.journal.histogram, as in batches.sql #}
{% macro lowest_of(bucket) %}
if({{ bucket }} < 16, bigint({{ bucket }}), shiftleft(bigint(16 + ({{ bucket }} & 15)), shiftright({{ bucket }}, 4) - 1))
{%- endmacro %}
{% macro highest_of(bucket) %}({{ lowest_of("(" ~ bucket ~ " + 1)") }} - 1){% endmacro %}

{# Tables of traffic, for any number of hours at once #}

{# The roll-up by hour, and without node and sub_name: what the other tables of traffic are made of #}
{% macro hours() %}
select d, {{ hour() }} hour, impl, vhost, login, destination, dest_kind, ack_mode, event, code, bucket, sum(n) n,
    sum(bytes) bytes
from {rollup} group by all
{% endmacro %}

{% macro traffic_10s() %}
select d, ts10, impl, vhost, event, code, bucket, sum(n) n, sum(bytes) bytes from {rollup} group by all
{% endmacro %}

{% macro dest_hour() %}
select d, hour, impl, vhost, destination, dest_kind, {{ sum_of("send") }} sent,
    {{ sum_of("send", column="bytes") }} sent_bytes, {{ whole("sum(n) filter (where event = 'confirm' and code is null)") }} confirmed,
    {{ sum_of("confirm", "rejected") }} rejected, {{ sum_of("deliver") }} delivered,
    {{ sum_of("deliver", column="bytes") }} delivered_bytes, {{ sum_of("deliver", "redelivered") }} redelivered,
    {{ sum_of("ack") }} acked, {{ sum_of("nack", "requeue") }} requeued, {{ sum_of("nack", "discard") }} discarded
from {hours} where destination is not null group by all
{% endmacro %}

{# Percentiles as histogram.percentile: of rows with a bucket and `timed` values in it. From 2^53 on every double is an
integer. #}
{% macro ranked(rows, keys) %}
select *, sum(timed) over (partition by {{ keys }} order by bucket) seen, sum(timed) over (partition by {{ keys }}) total
from {{ rows }}{% endmacro %}
{% macro percentile(share) %}
{% set part = "total * " ~ share ~ "d" %}
{% set rank = "greatest(if(" ~ part ~ " < 9007199254740992d, double(ceil(" ~ part ~ ")), " ~ part ~ "), 1d)" %}
{{ highest_of("coalesce(min(bucket) filter (where timed > 0 and seen >= " ~ rank ~ "), max(bucket) filter (where timed > 0))") }}
{%- endmacro %}

{# For each destination and for all of a virtual host #}
{% macro latency_hour() %}
{% set keys = "d, hour, impl, vhost, destination, event" %}
with counted as (
    select d, hour, impl, vhost, destination, event, bucket, sum(n) n from {hours}
    where bucket is not null and event in ('queue', 'confirm', 'ack', 'connect', 'blocked') group by all),
spread as (
    select * except (destination), explode(if(destination is null or event in ('connect', 'blocked'),
        array(cast(null as string)), array(destination, null))) destination
    from counted),
ranked as ({{ ranked("(select " ~ keys ~ ", bucket, sum(n) timed from spread group by all)", keys) }})
select {{ keys }}, {{ whole("sum(timed)") }} n, {{ percentile(0.5) }} p50_us, {{ percentile(0.95) }} p95_us,
    {{ percentile(0.99) }} p99_us, {{ percentile(0.999) }} p999_us, {{ highest_of("max(bucket)") }} max_us
from ranked group by {{ keys }}
{% endmacro %}

{% macro errors_hour() %}
select d, hour, impl, vhost, login, code, {{ sum_of("error") }} n from {hours} where event = 'error' group by all
{% endmacro %}

{% macro redeliveries_hour() %}
select *, {{ percent("redelivered", "delivered") }} redelivered_pct from (
    select d, hour, impl, vhost, login, destination, {{ sum_of("deliver") }} delivered,
        {{ sum_of("deliver", "redelivered") }} redelivered
    from {hours} where event = 'deliver' group by all)
where redelivered > 0
{% endmacro %}

{# Who sends to whom. What a receiver got in an hour is divided among those who sent there in that hour, by how much each sent: a
line does not say whose message it delivers. A subscription with wildcards gets what its pattern covers. Nobody sent (`sender` is
null): the messages waited in a queue, or came from outside. Nobody got it (`receiver` is null): nobody subscribed, or not yet. #}
{% macro escaped(text) %}regexp_replace({{ text }}, r'([.+?^$()\[\]|\\\x7B\x7D])', r'\\$1'){% endmacro %}
{% macro pattern_of(destination) %}
concat('^', replace(replace(replace(replace({{ escaped(destination) }}, '*', '[^.]+'), r'\.#', r'(?:\..*)?'), r'#\.',
    r'(?:.*\.)?'), '#', '.*'), '$')
{%- endmacro %}
{% macro flows_hour() %}
{% set place = "d, hour, impl, vhost" %}
{% set keys = place ~ ", receiver, sub_name, subscribed" %}
{% set same = "g.d = s.d and g.hour = s.hour and g.impl <=> s.impl and g.vhost <=> s.vhost" %}
with counted as (
    select d, {{ hour() }} hour, impl, vhost, login, destination, sub_name, event, bucket, sum(n) n, sum(bytes) bytes
    from {rollup} where event in ('send', 'deliver', 'queue') and destination is not null group by all),
sent as (
    select {{ place }}, login sender, destination, sum(n) sent, sum(bytes) sent_bytes from counted where event = 'send'
    group by all having sum(n) > 0),
received as (
    select {{ place }}, login receiver, sub_name, destination subscribed, event, bucket, n, bytes,
        if(event = 'queue' and bucket is not null, n, 0d) timed
    from counted where event <> 'send'),
got as (
    select {{ keys }}, coalesce(sum(n) filter (where event = 'deliver'), 0d) got, sum(bytes) got_bytes,
        {{ percentile(0.5) }} p50_us, {{ percentile(0.99) }} p99_us, subscribed rlike '^/(topic|exchange)/.*[*#]' is_wild
    from ({{ ranked("received", keys) }}) group by {{ keys }}),
paired as (
    select g.*, sender, destination, sent from got g left join sent s on {{ same }} and subscribed = destination
    where not is_wild
    union all select g.*, sender, destination, sent from (select * from got where is_wild) g left join sent s
        on {{ same }} and destination rlike {{ pattern_of("subscribed") }})
select {{ place }}, sender, coalesce(destination, subscribed) destination, subscribed, receiver, sub_name,
    got * if(sent is null, 1d, sent / sum(sent) over (partition by {{ keys }})) messages,
    got_bytes * if(sent is null, 1d, sent / sum(sent) over (partition by {{ keys }})) bytes, p50_us, p99_us
from paired
union all
select {{ place }}, sender, destination, null, null, null, sent, sent_bytes, null, null
from sent s left anti join paired g on {{ same }} and g.destination = s.destination
{% endmacro %}

{# Deliveries that had to be acknowledged, and how many were: below 0 if those of an hour before were, too #}
{% macro unacked_hotspots() %}
{% set keys = "d, hour, impl, vhost, login, destination" %}
with wanted as (
    select {{ keys }}, event, code, bucket, sum(n) n, if(event = 'ack' and bucket is not null, sum(n), 0d) timed
    from {hours} where ack_mode in ('client', 'client-individual') and event in ('deliver', 'ack', 'nack')
    group by {{ keys }}, event, code, bucket),
counted as (
    select {{ keys }}, {{ sum_of("deliver") }} deliveries, {{ sum_of("ack") }} acked, {{ sum_of("nack") }} nacked,
        {{ sum_of("deliver", "redelivered") }} redelivered, {{ percentile(0.99) }} p99_ack_us
    from ({{ ranked("wanted", keys) }}) group by {{ keys }}),
unacked as (select *, deliveries - acked - nacked unacked from counted)
select *, {{ percent("greatest(unacked, 0)", "deliveries") }} unacked_pct, {{ percent("redelivered", "deliveries") }} redelivered_pct
from unacked
{% endmacro %}

{# Tables of boots, sessions, features and durable subscriptions, from events #}

{% macro boots() %}
select d, {{ hour("ts") }} hour, node, impl, boot, max(gateway_version) gateway_version, min(ts) first_ts, max(ts) last_ts,
    max(event = 'close') closed, max(seq) - min(seq) + 1 lines, {{ sum_of("dropped") }} dropped
from {lines} group by all
{% endmacro %}

{# Rows of the table that are known, with what some segments say besides. Either may have only a session's beginning or its
end. If the beginning is missing, it is computed from end and duration; the exact one counts more. Its line always has
`tls`. `d` is the day on which the session began. #}
{% macro sessions(columns) %}
{% set totals = ("frames_in", "frames_out", "bytes_in", "bytes_out", "unacked", "max_unacked") %}
with lines as (
    select boot, session,
        max(struct(ts, node, impl, vhost, login, peer, tls, version, heartbeat, latency_us))
            filter (where event = 'connect') begun,
        max(struct(ts, node, impl, vhost, login, code
            {% for name in ("us",) + totals %}, coalesce(try_element_at(totals, '{{ name }}'), 0) {{ name }}{% endfor %}))
            filter (where event = 'end') finish
    from {events} where event in ('connect', 'end') and session is not null group by all),
timed as (select *, coalesce(begun.ts, timestamp_micros(unix_micros(finish.ts) - finish.us)) started from lines),
found as (
    select boot, session, string(date(started)) d, started, finish.ts ended, finish.us duration_us, finish.code end_code,
        begun.latency_us connect_us
        {% for name in ("node", "impl", "vhost", "login") %}, coalesce(begun.{{ name }}, finish.{{ name }}) {{ name }}{% endfor %}
        {% for name in ("peer", "tls", "version", "heartbeat") %}, begun.{{ name }}{% endfor %}
        {% for name in totals %}, finish.{{ name }}{% endfor %}
    from timed)
select boot, session
    {% for name in columns if name not in ("boot", "session") %}
    , if(known.tls is null, coalesce(found.{{ name }}, known.{{ name }}), coalesce(known.{{ name }}, found.{{ name }})) {{ name }}
    {% endfor %}
from {known} known full join found using (boot, session)
{% endmacro %}

{% macro features_used() %}
select d, {{ hour("ts") }} hour, impl, vhost, login, version, code feature, count(distinct boot, session) sessions, min(ts) first_seen,
    max(ts) last_seen
from {events} where event = 'feature' group by all
{% endmacro %}

{# The durable subscriptions in the events of each hour. Times come from events at level session; those of messages, from the
roll-up, are exact to 10 seconds only. The time of a line counts, unless messages were counted in earlier 10 seconds. #}
{% set subscription = "vhost, login, sub_name, destination" %}
{% macro last(event) %}max(line) filter (where line.event = '{{ event }}'){% endmacro %}
{% macro durable_days() %}
with found as (
    select d, {{ hour() }} hour, {{ subscription }}, event, ts10, n, null ts, null line from {rollup} where sub_name is not null
    union all select d, {{ hour("ts") }}, {{ subscription }}, null, null, null, ts, struct(ts, seq, boot, event, code)
    from {events} where sub_name is not null),
summed as (
    select d, hour, {{ subscription }},
        if(min(ts) < min(ts10) + interval 10 seconds, min(ts), coalesce(min(ts10), min(ts))) first_seen,
        greatest(max(ts), max(ts10)) last_connected, max(ts10) filter (where event = 'deliver') last_delivery,
        max(ts10) filter (where event in ('ack', 'nack')) last_ack, {{ sum_of("deliver") }} deliveries,
        {{ sum_of("ack") }} acks, {{ last("subscribe") }} sub, {{ last("unsubscribe") }} unsub
    from found group by all)
select * except (sub, unsub), sub.ts last_sub, sub.boot last_sub_boot, unsub.ts last_unsub, unsub.code last_unsub_code
from summed
{% endmacro %}

{# Durable subscriptions as they are now, "now" being the time of the newest line of all boots. That ignores lines from a
clock that is more than a day ahead, unless all lines are. A boot runs if it has not closed and its node has not started
another. Times are in microseconds. #}
{% macro durable_subs(idle_after, abandoned_after, now) %}
with known as (
    select {{ subscription }}, min(first_seen) first_seen, max(last_connected) last_connected,
        max(last_delivery) last_delivery, max(last_ack) last_ack, sum(deliveries) deliveries, sum(acks) acks,
        max(struct(last_sub at, last_sub_boot boot)) filter (where last_sub is not null) sub,
        max(struct(last_unsub at, last_unsub_code code)) filter (where last_unsub is not null) unsub
    from {days} group by all),
runs as (select impl, node, boot, min(first_ts) begun, max(closed) closed from {boots} group by all),
running as (
    select distinct boot from (select *, max(begun) over (partition by impl, node) latest from runs)
    where not closed and begun = latest),
newest as (
    select coalesce(max(last_ts) filter (where unix_micros(last_ts) <= {{ now + 86_400_000_000 }}), max(last_ts)) as_of
    from {boots}),
judged as (
    select known.*, (sub is not null and (unsub is null or sub.at > unsub.at) and boot is not null) connected,
        greatest(unix_micros(as_of) - unix_micros(last_connected), 0) away
    from known left join running on boot = sub.boot cross join newest)
select *, if(connected, 0, away) / {{ 86_400_000_000 }}d days_idle,
    case when unsub.code = 'deleted' and (sub is null or unsub.at > sub.at) then 'deleted'
        when connected or away < {{ idle_after }} then 'active' when away < {{ abandoned_after }} then 'idle'
        else 'abandoned' end verdict
from judged
{% endmacro %}
