{#
The questions of the report, in the SQL of DataFusion; `LakeQueries` fills in the span and asks them. `in_all` is how many
rows there are without the limit. Times are microseconds since the epoch, UTC.
#}
{% set most_rows, most_found = 500, 100 %}{# of a table and of a rule; others are counted #}
{% set drawn_ends = 16 %}{# of a side of the drawing of flows; the last one may be all others #}
{% set layers = 7 %}{# of stacked bars that can be told apart: each has a colour and a hatch of its own #}
{% macro us(column) %}cast({{ column }} AS bigint){% endmacro %}
{% macro bin(width) %}at - ((at % {{ width }}) + {{ width }}) % {{ width }}{% endmacro %}{# before the epoch, too #}
{% macro days() %}d BETWEEN '{{ span.start | day }}' AND '{{ (span.end - 1) | day }}'{% endmacro %}
{% macro during(begin, length) %}
{{ days() }} AND {{ us(begin) }} > {{ span.start - length }} AND {{ us(begin) }} < {{ span.end }}{% endmacro %}
{% macro touched(first, last) %}
coalesce({{ first }} < {{ span.end }}, true) AND coalesce({{ last }} >= {{ span.start }}, true){% endmacro %}
{% macro n_of(event, column="n") %}coalesce(sum({{ column }}) FILTER (WHERE event = '{{ event }}'), 0){% endmacro %}
{% macro texts(names) %}{% for name in names %}'{{ name }}'{{ ", " if not loop.last }}{% endfor %}{% endmacro %}

{# Buckets are those of gateway.journal.histogram. A percentile is the upper end of its bucket. #}
{% macro lowest(bucket) %}
CASE WHEN {{ bucket }} < 16 THEN {{ bucket }} ELSE (16 + ({{ bucket }} & 15)) << (({{ bucket }} >> 4) - 1) END
{%- endmacro %}
{% macro highest(bucket) %}{{ lowest("(" ~ bucket ~ " + 1)") }} - 1{% endmacro %}
{% macro percentiles(keys, source) %}
SELECT {{ keys }}, n, amount, {{ highest("b50") }} AS p50, {{ highest("b95") }} AS p95, {{ highest("b99") }} AS p99,
       {{ highest("b100") }} AS longest
FROM (
    SELECT {{ keys }}, max(whole) AS n, sum(n * ({{ lowest("bucket") }} + {{ highest("bucket") }}) / 2.0) AS amount,
           {% for part in (50, 95, 99) %}
           coalesce(min(bucket) FILTER (WHERE seen >= ceil({{ part / 100 }} * whole)), max(bucket)) AS b{{ part }},
           {% endfor %}
           max(bucket) AS b100
    FROM (
        SELECT *, sum(n) OVER (PARTITION BY {{ keys }} ORDER BY bucket) AS seen,
               sum(n) OVER (PARTITION BY {{ keys }}) AS whole
        FROM (SELECT {{ keys }}, cast(bucket AS bigint) AS bucket, sum(n) AS n FROM {{ source }}
              WHERE bucket IS NOT NULL AND n > 0 GROUP BY {{ keys }}, bucket))
    GROUP BY {{ keys }}){% endmacro %}

{# The lake #}

{% macro known_days() %}SELECT min(d) AS first, max(d) AS last FROM traffic_10s{% endmacro %}
{% macro known_times(first_day, last_day) %}
SELECT {{ us("min(ts10)") }} AS first, {{ us("max(ts10)") }} AS last FROM traffic_10s
WHERE d IN ('{{ first_day }}', '{{ last_day }}'){% endmacro %}
{% macro known_boots() %}
SELECT {{ us("min(first_ts)") }} AS first, {{ us("max(last_ts)") }} AS last FROM boots{% endmacro %}

{# The newest line of each node, of those that wrote in a week: a node that is silent for longer counts as gone. A time that is
ahead of the ingest's clock counts as that of the ingest, so that a wrong clock hides nothing; `ahead` is by how much. #}
{% macro fresh_nodes(now) %}
SELECT node, impl, max(least({{ us("newest") }}, {{ us("ingested") }})) AS last,
       max({{ us("newest") }} - {{ us("ingested") }}) FILTER (WHERE {{ us("ingested") }} > {{ now - 86_400_000_000 }}) AS ahead
FROM segments WHERE newest IS NOT NULL AND d >= '{{ (now - 8 * 86_400_000_000) | day }}' GROUP BY node, impl{% endmacro %}
{% macro newest_of_nodes(now) %}
SELECT max(last) AS last FROM ({{ fresh_nodes(now) }}){% endmacro %}

{# What other questions ask: views of the tables within the span #}

{% macro views() %}
CREATE OR REPLACE VIEW slots AS
    SELECT {{ us("ts10") }} AS at, vhost, event, code, bucket, coalesce(n, 0.0) AS n, coalesce(bytes, 0.0) AS bytes
    FROM traffic_10s WHERE event IS NOT NULL AND {{ during("ts10", 10_000_000) }};
CREATE OR REPLACE VIEW periods AS SELECT {{ bin(span.period) }} AS at, event, code, bucket, n FROM slots;
-- A row for each run of a gateway, over all its days. followed: the same gateway has started again since.
CREATE OR REPLACE VIEW all_runs AS
    SELECT *, max(first) OVER (PARTITION BY impl, node) > first AS followed
    FROM (SELECT boot, min(node) AS node, min(impl) AS impl, min(gateway_version) AS gateway_version,
                 {{ us("min(first_ts)") }} AS first, {{ us("max(last_ts)") }} AS last,
                 coalesce(bool_or(closed), false) AS closed, coalesce(sum(lines), 0) AS lines,
                 coalesce(sum(dropped), 0) AS dropped
          FROM boots WHERE boot IS NOT NULL AND first_ts IS NOT NULL AND last_ts IS NOT NULL GROUP BY boot);
CREATE OR REPLACE VIEW runs AS
    SELECT *, followed AND NOT closed AS lost FROM all_runs WHERE {{ touched("first", "last") }};
CREATE OR REPLACE VIEW destinations AS
    SELECT vhost, destination, min(dest_kind) AS dest_kind
           {% for column in ("sent", "sent_bytes", "confirmed", "rejected", "delivered", "delivered_bytes",
                             "redelivered", "acked", "requeued", "discarded") %}
           , coalesce(sum({{ column }}), 0) AS {{ column }}
           {% endfor %}
    FROM dest_hour WHERE {{ during("hour", 3_600_000_000) }} GROUP BY vhost, destination;
CREATE OR REPLACE VIEW answers AS
    SELECT *, greatest(deliveries - acked - nacked, 0) AS unacked
    FROM (SELECT vhost, login, destination, coalesce(sum(deliveries), 0) AS deliveries, coalesce(sum(acked), 0) AS acked,
                 coalesce(sum(nacked), 0) AS nacked, max(p99_ack_us) AS p99_ack_us
          FROM unacked_hotspots WHERE {{ days() }} GROUP BY vhost, login, destination);
CREATE OR REPLACE VIEW durables AS
    SELECT vhost, login, sub_name, destination, coalesce(verdict, 'unknown') AS verdict,
           coalesce(connected, false) AS connected, coalesce(days_idle, 0.0) AS days_idle,
           coalesce({{ us("first_seen") }}, {{ us("last_connected") }}) AS first,
           coalesce({{ us("last_connected") }}, {{ us("first_seen") }}) AS last,
           {{ us("last_delivery") }} AS last_delivery, {{ us("last_ack") }} AS last_ack,
           coalesce(deliveries, 0) AS deliveries, coalesce(acks, 0) AS acks
    FROM durable_subs WHERE coalesce({{ us("first_seen") }}, {{ us("last_connected") }}) < {{ span.end }};
-- The name of a rule is a use that the gateway answers differently, which a tap saw.
CREATE OR REPLACE VIEW uses AS
    SELECT *, CASE WHEN feature LIKE '%/%' THEN '≠' WHEN feature IN ({{ texts(features) }}) THEN '' ELSE '!' END AS mark
    FROM (SELECT vhost, login, version, feature, coalesce(sum(sessions), 0) AS sessions FROM features_used
          WHERE feature IS NOT NULL AND {{ days() }} AND {{ touched(us("first_seen"), us("last_seen")) }}
          GROUP BY vhost, login, version, feature){% endmacro %}

{# All that has happened, in bins: small, and read once. #}
{% macro counts() %}
CREATE OR REPLACE TABLE counts AS
    SELECT {{ bin(width) }} AS at, vhost, event, code, bucket, sum(n) AS n, sum(bytes) AS bytes FROM slots
    GROUP BY 1, 2, 3, 4, 5
{%- endmacro %}
{% macro bins(width) %}
(SELECT value AS at, greatest(least(value + {{ width }}, {{ span.end }}) - greatest(value, {{ span.start }}), 10000000)
        / 1000000.0 AS seconds,
        (greatest(value, {{ span.start }}) + least(value + {{ width }}, {{ span.end }})) / 2 AS middle
 FROM generate_series({{ span.bins(width)[0] }}, {{ span.bins(width)[-1] }}, {{ width }})){% endmacro %}

{# The page #}

{% macro totals() %}
SELECT {{ n_of("send") }} AS sent, {{ n_of("send", "bytes") }} AS sent_bytes, {{ n_of("deliver") }} AS delivered,
       {{ n_of("deliver", "bytes") }} AS delivered_bytes, {{ n_of("ack") }} AS acked, {{ n_of("nack") }} AS refused,
       {{ n_of("error") }} AS errors
FROM counts{% endmacro %}

{# A gateway that was killed has not written the end of its sessions: they ended with it. At equal times ends come first:
a session that follows another one does not overlap with it. #}
{% macro session_totals() %}
WITH lives AS (
    SELECT {{ us("s.started") }} AS begun,
           coalesce({{ us("s.ended") }}, CASE WHEN b.closed OR b.followed THEN b.last END) AS ended
    FROM sessions s LEFT JOIN all_runs b ON s.boot = b.boot),
kept AS (SELECT * FROM lives WHERE begun IS NOT NULL AND {{ touched("begun", "ended") }}),
changes AS (SELECT greatest(begun, {{ span.start }}) AS at, 1 AS change FROM kept
            UNION ALL SELECT ended, -1 FROM kept WHERE ended IS NOT NULL),
running AS (SELECT change, sum(change) OVER (ORDER BY at, change) AS open FROM changes)
SELECT count(*) FILTER (WHERE change > 0) AS total, coalesce(max(open), 0) AS at_once FROM running{% endmacro %}

{% macro nodes() %}
SELECT node, impl, string_agg(DISTINCT gateway_version, ', ') AS versions, count(*) OVER () AS in_all
FROM runs GROUP BY node, impl ORDER BY impl, node LIMIT 12{% endmacro %}

{# A line for each node, those that have been silent for longest first. #}
{% macro node_table() %}
SELECT r.node, r.impl, string_agg(DISTINCT gateway_version, ', ') AS versions, count(*) AS boots, min(first) AS first,
       max(last) AS last, coalesce(sum(lines), 0) AS lines, coalesce(sum(dropped), 0) AS dropped,
       coalesce(max(s.sessions), 0) AS sessions, coalesce(max(bytes_in), 0) AS bytes_in,
       coalesce(max(bytes_out), 0) AS bytes_out, count(*) OVER () AS in_all
FROM runs r LEFT JOIN (
    SELECT node, impl, count(*) AS sessions, sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out FROM sessions
    WHERE {{ touched(us("started"), us("ended")) }} GROUP BY node, impl) s ON r.node = s.node AND r.impl = s.impl
GROUP BY r.node, r.impl ORDER BY last, node LIMIT {{ most_rows }}{% endmacro %}

{# The last 24 hours of the span, those before, and those a week before, whether or not the span has them. #}
{% macro days_compared() %}
{% set day, end = 86_400_000_000, span.end %}
SELECT CASE period WHEN 0 THEN 'The last 24 hours' WHEN 1 THEN 'The 24 hours before' ELSE 'A week before' END AS time,
       {{ n_of("send") }} AS sent, {{ n_of("deliver") }} AS delivered, {{ n_of("ack") }} AS acked,
       coalesce(sum(n) FILTER (WHERE event = 'deliver' AND code = 'redelivered'), 0) AS redelivered,
       {{ n_of("error") }} AS errors, {{ n_of("connect") }} AS sessions
FROM (SELECT ({{ end }} - 1 - {{ us("ts10") }}) / {{ day }} AS period, event, code, n FROM traffic_10s
      WHERE d >= '{{ (end - 8 * day) | day }}' AND d <= '{{ (end - 1) | day }}' AND {{ us("ts10") }} < {{ end }})
WHERE period IN (0, 1, 7) GROUP BY period ORDER BY period{% endmacro %}

{% macro boots() %}
SELECT *, CASE WHEN closed THEN 'yes' WHEN lost THEN 'no, and it started again' ELSE 'not yet' END AS state,
       count(*) OVER () AS in_all
FROM runs ORDER BY first, node, boot LIMIT {{ most_rows }}{% endmacro %}

{% macro traffic() %}
SELECT b.at, middle, {{ n_of("send") }} AS sent, {{ n_of("send") }} / seconds AS sent_per_second,
       {{ n_of("deliver") }} AS delivered, {{ n_of("deliver") }} / seconds AS delivered_per_second,
       {{ n_of("ack") }} AS acked, {{ n_of("ack") }} / seconds AS acked_per_second
FROM {{ bins(width) }} b LEFT JOIN counts c ON b.at = c.at GROUP BY b.at, seconds, middle ORDER BY b.at{% endmacro %}

{% macro latencies() %}{{ percentiles("event", "counts") }}{% endmacro %}
{# The slowest virtual host of each kind of latency, of those with at least 20 measurements if there is one. #}
{% macro slowest_vhosts() %}
SELECT event, vhost, p99, vhosts FROM (
    SELECT *, count(*) OVER (PARTITION BY event) AS vhosts,
           row_number() OVER (PARTITION BY event ORDER BY n >= 20 DESC, p99 DESC, vhost) AS place
    FROM ({{ percentiles("event, vhost", "counts") }}))
WHERE place = 1{% endmacro %}
{% macro latency_bins(event) %}
SELECT b.at, middle, coalesce(n, 0) AS n, p50, p95, p99
FROM {{ bins(width) }} b LEFT JOIN ({{ percentiles("event, at", "counts") }}) l ON b.at = l.at AND event = '{{ event }}'
ORDER BY b.at{% endmacro %}

{# Hours with fewer than 20 measurements say nothing about a destination. #}
{% macro slowest() %}
SELECT * FROM (
    SELECT vhost, destination, event, {{ us("hour") }} AS hour, n, p50_us, p99_us,
           row_number() OVER (PARTITION BY vhost, destination, event ORDER BY p99_us DESC, hour) AS place
    FROM latency_hour WHERE destination IS NOT NULL AND n >= 20 AND {{ during("hour", 3_600_000_000) }})
WHERE place = 1 ORDER BY p99_us DESC, destination, event LIMIT 20{% endmacro %}

{% macro busiest() %}
WITH placed AS (SELECT *, row_number() OVER (ORDER BY sent + delivered DESC, vhost, destination) AS place
                FROM destinations)
SELECT CASE WHEN count(*) = 1 THEN min(destination) ELSE count(*) || ' others together' END AS destination,
       CASE WHEN count(*) = 1 AND (SELECT count(DISTINCT vhost) FROM destinations) > 1 THEN min(vhost) END AS vhost,
       sum(sent) AS sent, sum(delivered) AS delivered
FROM placed GROUP BY least(place, 16) ORDER BY min(place){% endmacro %}

{# What was sent and delivered nowhere is no loss: on a topic that is what happens without a subscription. #}
{% macro destination_table() %}
WITH heard AS (
    SELECT vhost AS of_vhost, destination AS name, coalesce(sum(messages) FILTER (WHERE subscribed IS NOT NULL), 0) AS heard
    FROM flows_hour WHERE {{ during("hour", 3_600_000_000) }} GROUP BY vhost, destination)
SELECT d.*, CASE WHEN sent = 0 OR delivered > 0 OR heard IS NULL THEN NULL WHEN heard > 0 THEN 'delivered to wildcards'
                 WHEN dest_kind IN ('topic', 'exchange') THEN 'nobody subscribed here' ELSE 'nobody consumed here' END AS remark,
       count(*) OVER () AS in_all
FROM destinations d LEFT JOIN heard ON destination = name AND vhost IS NOT DISTINCT FROM of_vhost
ORDER BY sent + delivered DESC, vhost, destination LIMIT {{ most_rows }}{% endmacro %}

{# What was archived in each hour, beside what the traffic says was sent there in it, and by destination. #}
{% macro archived() %}
WITH kept AS (
    SELECT vhost, destination, hour, count(*) AS kept, sum(body_bytes) AS kept_bytes
    FROM (SELECT *, date_trunc('hour', archived) AS hour FROM messages WHERE destination IS NOT NULL)
    WHERE {{ during("hour", 3_600_000_000) }} GROUP BY vhost, destination, hour),
traffic AS (
    SELECT vhost, destination, hour, sum(sent) AS sent, sum(sent_bytes) AS sent_bytes
    FROM dest_hour LEFT SEMI JOIN kept USING (vhost, destination)
    WHERE {{ during("hour", 3_600_000_000) }} GROUP BY vhost, destination, hour)
SELECT coalesce(k.vhost, t.vhost) AS vhost, coalesce(k.destination, t.destination) AS destination,
       {{ us("coalesce(k.hour, t.hour)") }} AS hour, coalesce(kept, 0) AS kept, coalesce(kept_bytes, 0) AS kept_bytes,
       coalesce(sent, 0) AS sent, coalesce(sent_bytes, 0) AS sent_bytes
FROM kept k FULL JOIN traffic t ON k.vhost = t.vhost AND k.destination = t.destination AND k.hour = t.hour{% endmacro %}
{% macro archived_hours() %}
SELECT *, count(*) OVER () AS in_all FROM ({{ archived() }}) ORDER BY hour, vhost, destination LIMIT {{ most_rows }}
{%- endmacro %}
{% macro archived_destinations() %}
SELECT vhost, destination, sum(kept) AS kept, sum(sent) AS sent FROM ({{ archived() }})
GROUP BY vhost, destination ORDER BY kept DESC, vhost, destination LIMIT 16{% endmacro %}

{# Who sends to whom: the busiest ends by name, all others of their kind as one. #}
{% macro flow_end(column) %}
(SELECT {{ column }} AS name, CASE WHEN place < {{ drawn_ends }} OR many = {{ drawn_ends }} THEN {{ column }}
        ELSE (many - {{ drawn_ends - 1 }}) || ' others' END AS shown
 FROM (SELECT {{ column }}, row_number() OVER (ORDER BY sum(messages) DESC, {{ column }}) AS place,
              count(*) OVER () AS many
       FROM flows GROUP BY {{ column }})){% endmacro %}
{% macro flows() %}
WITH flows AS (
    SELECT coalesce(sender, '(nobody)') AS sender, destination, messages, bytes,
           CASE WHEN subscribed IS NULL THEN '(nobody)' ELSE coalesce(sub_name, receiver, '(none)') END AS receiver
    FROM flows_hour WHERE messages > 0 AND {{ during("hour", 3_600_000_000) }})
SELECT s.shown AS sender, d.shown AS destination, r.shown AS receiver, sum(messages) AS messages, sum(bytes) AS bytes
FROM flows f JOIN {{ flow_end("sender") }} s ON f.sender = s.name
JOIN {{ flow_end("destination") }} d ON f.destination = d.name JOIN {{ flow_end("receiver") }} r ON f.receiver = r.name
GROUP BY 1, 2, 3 ORDER BY messages DESC, 1, 2, 3{% endmacro %}
{% macro flow_table() %}
SELECT sender, vhost, destination, subscribed, receiver, sub_name, sum(messages) AS messages, sum(bytes) AS bytes,
       max(p99_us) AS p99_us, count(*) OVER () AS in_all
FROM flows_hour WHERE messages > 0 AND {{ during("hour", 3_600_000_000) }}
GROUP BY sender, vhost, destination, subscribed, receiver, sub_name
ORDER BY messages DESC, sender, destination, receiver LIMIT {{ most_rows }}{% endmacro %}

{# Errors by code: the most frequent codes have a layer of their own, all others share the last one. #}
{% macro coded() %}
(SELECT code, n, cast(CASE WHEN many <= {{ layers }} OR place < {{ layers }} THEN place ELSE {{ layers }} END AS int) AS layer
 FROM (SELECT code, sum(n) AS n, row_number() OVER (ORDER BY sum(n) DESC, code) AS place, count(*) OVER () AS many
       FROM counts WHERE event = 'error' GROUP BY code)){% endmacro %}
{% macro error_layers() %}
SELECT layer, min(code) AS code, count(*) AS codes, sum(n) AS n FROM {{ coded() }} GROUP BY layer ORDER BY layer
{%- endmacro %}
{% macro error_bars() %}
WITH coded AS {{ coded() }},
binned AS (SELECT layer, {{ bin(wide) }} AS at, sum(c.n) AS n FROM counts c
           JOIN coded e ON c.event = 'error' AND c.code IS NOT DISTINCT FROM e.code GROUP BY 1, 2)
SELECT b.at, middle, e.layer, coalesce(n, 0) AS n
FROM {{ bins(wide) }} b CROSS JOIN (SELECT DISTINCT layer FROM coded) e
LEFT JOIN binned f ON b.at = f.at AND e.layer = f.layer ORDER BY b.at, e.layer{% endmacro %}

{% macro errors_by_login() %}
SELECT vhost, login, code, coalesce(sum(n), 0) AS n, count(*) OVER () AS in_all
FROM errors_hour WHERE {{ during("hour", 3_600_000_000) }} GROUP BY vhost, login, code
ORDER BY n DESC, vhost, login, code LIMIT {{ most_rows }}{% endmacro %}

{% macro redeliveries() %}
SELECT *, coalesce(redelivered / nullif(cast(delivered AS double), 0), 0) AS share, count(*) OVER () AS in_all
FROM (SELECT vhost, login, destination, coalesce(sum(delivered), 0) AS delivered,
             coalesce(sum(redelivered), 0) AS redelivered
      FROM redeliveries_hour WHERE {{ during("hour", 3_600_000_000) }} GROUP BY vhost, login, destination)
ORDER BY redelivered DESC, vhost, login, destination LIMIT {{ most_rows }}{% endmacro %}

{% macro unanswered() %}
SELECT *, coalesce(unacked / nullif(cast(deliveries AS double), 0), 0) AS share, count(*) OVER () AS in_all
FROM answers ORDER BY unacked DESC, vhost, login, destination LIMIT {{ most_rows }}{% endmacro %}

{# Those that need attention first. #}
{% macro urgency() %}array_position(make_array('abandoned', 'idle', 'active', 'deleted'), verdict){% endmacro %}
{% macro verdicts() %}SELECT verdict, count(*) AS n FROM durables GROUP BY verdict ORDER BY {{ urgency() }}{% endmacro %}
{% macro durable_table() %}
SELECT *, CASE WHEN NOT connected THEN last END AS left_at,
       CASE WHEN NOT connected THEN days_idle * {{ 86_400_000_000.0 }} END AS idle, count(*) OVER () AS in_all
FROM durables ORDER BY {{ urgency() }}, days_idle DESC, sub_name, destination LIMIT {{ most_rows }}{% endmacro %}

{# Sessions by client and feature, of the first clients by name; `client` counts clients from 1. #}
{% macro used_features() %}
WITH counted AS (SELECT *, dense_rank() OVER (ORDER BY vhost, login, version) AS client FROM uses)
SELECT *, (SELECT max(client) FROM counted) AS in_all FROM counted WHERE client <= {{ most_rows }} ORDER BY client, feature
{%- endmacro %}
{% macro feature_names() %}
SELECT feature, mark FROM uses GROUP BY feature, mark
ORDER BY array_position(make_array({{ texts(features) }}), feature), feature LIMIT {{ most_rows }}{% endmacro %}

{% macro holds() %}
SELECT c.code, c.n, coalesce(amount, 0) AS amount, p50, p99, longest
FROM (SELECT code, sum(n) AS n FROM counts WHERE event = 'blocked' GROUP BY code) c
LEFT JOIN ({{ percentiles("event, code", "counts") }}) t ON event = 'blocked' AND c.code IS NOT DISTINCT FROM t.code
ORDER BY c.n DESC, c.code{% endmacro %}

{# What stands out: a question for each of `findings.RULES`. `attention` tells whether a row needs it, if that depends. #}

{% macro lake_lag() %}
{# A lake without lines is late, too: else nobody would hear that none ever came. #}
{% set age = none if newest is none else now - newest %}
SELECT {{ "cast(NULL AS bigint)" if age is none else age // 1_000_000 }} AS lag_seconds
WHERE {{ lag is not none and (age is none or age > lag) }}{% endmacro %}

{# A node whose last boot has closed is not expected to write. While the whole lake is late, that is said once. #}
{% macro node_silent() %}
SELECT f.node, f.impl, last, ({{ now }} - last) / 1000000 AS lag_seconds, count(*) OVER () AS in_all
FROM ({{ fresh_nodes(now) }}) f
WHERE {{ lag is not none and newest is not none and now - newest <= lag }}
      AND {{ now }} - last BETWEEN {{ (lag or 0) + 1 }} AND {{ 7 * 86_400_000_000 }}
      AND (node, impl) NOT IN (SELECT (node, impl) FROM all_runs WHERE closed AND NOT followed)
ORDER BY last, node LIMIT {{ most_found }}{% endmacro %}
{% macro clock_ahead() %}
SELECT node, impl, ahead / 1000000 AS ahead_seconds, count(*) OVER () AS in_all
FROM ({{ fresh_nodes(now) }}) WHERE ahead > 300000000 ORDER BY ahead DESC, node LIMIT {{ most_found }}{% endmacro %}
{% macro newest_by_node() %}SELECT * FROM ({{ fresh_nodes(now) }}) ORDER BY impl, node{% endmacro %}

{% macro runs_that(where) %}
SELECT node, impl, boot, first, last, dropped, count(*) OVER () AS in_all
FROM runs WHERE {{ where }} ORDER BY first, node, boot LIMIT {{ most_found }}{% endmacro %}
{% macro journal_not_closed() %}{{ runs_that("lost") }}{% endmacro %}
{% macro journal_lines_dropped() %}{{ runs_that("dropped > 0") }}{% endmacro %}

{% macro abandoned_subscription() %}
SELECT vhost, login, sub_name, destination, days_idle, count(*) OVER () AS in_all FROM durables
WHERE verdict = 'abandoned' ORDER BY days_idle DESC, sub_name, destination LIMIT {{ most_found }}{% endmacro %}

{# From a tenth of all deliveries on, if there are at least 20. #}
{% macro unacknowledged() %}
SELECT *, count(*) OVER () AS in_all
FROM (SELECT vhost, destination, sum(unacked) AS unacked, sum(deliveries) AS deliveries FROM answers
      GROUP BY vhost, destination)
WHERE unacked >= 20 AND unacked >= 0.1 * deliveries ORDER BY unacked DESC, vhost, destination LIMIT {{ most_found }}
{%- endmacro %}

{# From a twentieth of all deliveries on, if there are at least 10. #}
{% macro redelivered() %}
{{ destinations_that("redelivered >= 10 AND redelivered >= 0.05 * delivered", "redelivered") }}{% endmacro %}
{% macro rejected() %}{{ destinations_that("rejected > 0", "rejected") }}{% endmacro %}
{% macro destinations_that(where, order) %}
SELECT vhost, destination, delivered, redelivered, rejected, count(*) OVER () AS in_all FROM destinations
WHERE {{ where }} ORDER BY {{ order }} DESC, vhost, destination LIMIT {{ most_found }}{% endmacro %}

{# The worst period of each code, if it has at least 10, and 5 times the mean of the others, of which there are 2 or more;
a period without any counts as 0. #}
{% macro jumps(where) %}
{% set others = span.bins(span.period) | length - 1 %}
SELECT code, at, n, usual, count(*) OVER () AS in_all
FROM (SELECT *, (whole - n) / {{ others or 1 }} AS usual
      FROM (SELECT *, sum(n) OVER (PARTITION BY code) AS whole,
                   row_number() OVER (PARTITION BY code ORDER BY n DESC, at) AS place
            FROM (SELECT code, at, sum(n) AS n FROM periods WHERE {{ where }} GROUP BY code, at)))
WHERE place = 1 AND n >= 10 AND n >= 5 * usual AND {{ others }} >= 2 ORDER BY whole DESC, code LIMIT {{ most_found }}
{%- endmacro %}
{% macro error_jump() %}{{ jumps("event = 'error'") }}{% endmacro %}
{% macro redelivery_jump() %}{{ jumps("event = 'deliver' AND code = 'redelivered'") }}{% endmacro %}

{# The worst period's p99, if it is 10 ms or more and 3 times that of the median period; of 3 or more periods with 100 or
more latencies. #}
{% macro slow_latency() %}
SELECT event, at, p99 AS p99_us, usual AS usual_p99_us
FROM (SELECT event, at, p99, row_number() OVER (PARTITION BY event ORDER BY p99 DESC, at) AS place,
             count(*) OVER (PARTITION BY event) AS periods,
             median(cast(p99 AS double)) OVER (PARTITION BY event) AS usual
      FROM ({{ percentiles("event, at", "periods") }})
      WHERE event IN ({{ texts(latency_events) }}) AND n >= 100)
WHERE place = 1 AND periods >= 3 AND p99 >= 10000 AND p99 >= 3 * usual
ORDER BY array_position(make_array({{ texts(latency_events) }}), event){% endmacro %}

{% macro marked(mark) %}
SELECT feature, sum(sessions) AS sessions, count(*) OVER () AS in_all FROM uses WHERE mark = '{{ mark }}'
GROUP BY feature ORDER BY feature LIMIT {{ most_found }}{% endmacro %}
{% macro departure() %}{{ marked("≠") }}{% endmacro %}
{% macro unknown_feature() %}{{ marked("!") }}{% endmacro %}

{# The busiest second where messages have lines of their own, or the busiest ten seconds. Lines are read of the ten
busiest times ten seconds only. #}
{% macro busiest_slots() %}
SELECT at, {{ n_of("send") }} AS sent, {{ n_of("deliver") }} AS delivered FROM slots
WHERE event IN ('send', 'deliver') GROUP BY at HAVING sum(n) > 0 ORDER BY sum(n) DESC, at LIMIT 10{% endmacro %}
{% macro peak() %}
{% set slots = rows("busiest_slots") or [{"at": 0, "sent": 0, "delivered": 0}] %}
WITH found AS (
    SELECT {{ slots[0].at }} AS at, 10 AS seconds, {{ slots[0].sent }} AS sent, {{ slots[0].delivered }} AS delivered
    UNION ALL
    SELECT {{ bin(1_000_000) }}, 1, {{ n_of("send") }}, {{ n_of("deliver") }}
    FROM (SELECT {{ us("ts") }} AS at, event, coalesce(weight, 1.0) AS n FROM events
          WHERE level = 'message' AND d IN ({{ texts(slots | map(attribute="at") | map("day") | unique) }}) AND (
              {% for slot in slots %}
              {{ "OR " if not loop.first }}ts BETWEEN to_timestamp_micros({{ slot.at }})
                                       AND to_timestamp_micros({{ slot.at + 9_999_999 }})
              {% endfor %}))
    GROUP BY 1),
rated AS (SELECT *, (sent + delivered) / cast(seconds AS double) AS messages_per_second FROM found)
SELECT at, seconds, messages_per_second, sent / cast(seconds AS double) AS sent_per_second,
       delivered / cast(seconds AS double) AS delivered_per_second,
       {{ "false" if peak_limit is none else "messages_per_second > %r" % peak_limit }} AS attention
FROM rated WHERE messages_per_second > 0 ORDER BY messages_per_second DESC, seconds, at LIMIT 1{% endmacro %}

{% macro largest_destination() %}
SELECT vhost, destination, sent, delivered, share
FROM (SELECT *, (sent + delivered) / cast(sum(sent + delivered) OVER () AS double) AS share FROM destinations)
WHERE sent + delivered > 0 ORDER BY sent + delivered DESC, vhost, destination LIMIT 1{% endmacro %}

{% macro several_recorders() %}
SELECT string_agg(DISTINCT coalesce(impl, '(none)'), ', ') AS kinds FROM runs
HAVING count(DISTINCT coalesce(impl, '(none)')) > 1{% endmacro %}

{# What a comparison is of #}

{% macro part(event, code, of) %}
coalesce(sum(n) FILTER (WHERE event = '{{ event }}' AND code = '{{ code }}'), 0) / nullif({{ n_of(of) }}, 0)
{%- endmacro %}
{% macro figures() %}
SELECT {{ n_of("send") }} / {{ span.length / 1_000_000 }} AS "send.rate",
       {{ n_of("deliver") }} / {{ span.length / 1_000_000 }} AS "deliver.rate",
       {{ n_of("ack") }} / {{ span.length / 1_000_000 }} AS "ack.rate",
       {{ rows("session_totals")[0].total }} / {{ span.length / 1_000_000 }} AS "sessions.rate",
       {{ n_of("send", "bytes") }} / nullif({{ n_of("send") }}, 0) AS "send.bytes",
       {{ n_of("deliver", "bytes") }} / nullif({{ n_of("deliver") }}, 0) AS "deliver.bytes",
       {{ n_of("deliver") }} / nullif({{ n_of("send") }}, 0) AS "deliver.per_send",
       {{ part("deliver", "redelivered", "deliver") }} AS "deliver.redelivered",
       {{ part("confirm", "rejected", "send") }} AS "confirm.rejected",
       {{ part("nack", "discard", "deliver") }} AS "nack.discard",
       {{ part("nack", "requeue", "deliver") }} AS "nack.requeue",
       {{ n_of("error") }} / nullif({{ n_of("connect") }}, 0) AS "error.all"
FROM counts{% endmacro %}
{% macro error_shares() %}
SELECT code, sum(n) / nullif((SELECT sum(n) FROM counts WHERE event = 'connect'), 0) AS share
FROM counts WHERE event = 'error' AND code <> '' GROUP BY code{% endmacro %}
