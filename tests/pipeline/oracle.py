# ruff: noqa: E501, S608 - SQL of its own
"""Every table of the lake, computed a second time: by DuckDB, from the journal's files, with SQL of its own.

Nothing here imports the pipeline. Times are microseconds since the epoch.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

_LINES = r"""
create macro found(line, field) as json_type(line, '$.' || field) not in ('NULL');
create macro integral(line, field) as json_type(line, '$.' || field) in ('BIGINT', 'UBIGINT');

create table raw as
select parse_filename(filename) as file, unnest(string_split(content, chr(10))) as line
from read_text($journal || '/d=*/*.v1.jsonl');

create table lines as
with parsed as (select file, line, case when json_valid(line) then line::json end as j from raw where trim(line) <> '')
select file, line, j from parsed
where coalesce(json_type(j) = 'OBJECT' and integral(j, 't') and integral(j, 'q') and json_type(j, '$.e') = 'VARCHAR'
    and not (json_extract_string(j, 'e') = 'open' and coalesce(json_extract_string(j, 'v'), '') <> '1')
    and coalesce(integral(j, 'l') or not found(j, 'l'), true), false);

create table bad_lines as
select r.file, r.line from raw r anti join lines l on (l.file, l.line) = (r.file, r.line) where trim(r.line) <> '';

create table events_of_journal as
select
    (j->>'t')::bigint as ts, parts[3] as boot, (j->>'q')::bigint as seq, parts[2] as node, parts[1] as impl,
    j->>'e' as event, (j->>'c')::bigint as session, j->>'vh' as vhost, j->>'u' as login, j->>'d' as destination,
    j->>'dk' as dest_kind, j->>'s' as sub_id, j->>'sn' as sub_name, j->>'am' as ack_mode, (j->>'m')::bigint as msg_no,
    case when event in ('send', 'dlv') then coalesce((j->>'b')::bigint, 0) else (j->>'b')::bigint end as body_bytes,
    case when event = 'send' then coalesce((j->>'hn')::int, 0) else (j->>'hn')::int end as header_count,
    case when event = 'send' then coalesce((j->>'p')::boolean, false) end as persistent,
    case when event = 'send' then coalesce((j->>'tx')::boolean, false) end as transacted,
    case when event = 'send' then coalesce((j->>'rc')::boolean, false) end as receipt,
    (j->>'l')::bigint as latency_us, (j->>'ql')::bigint as queue_us,
    case when event = 'dlv' then coalesce((j->>'r')::boolean, false) end as redelivered,
    case when event in ('ack', 'nack') then coalesce((j->>'n')::bigint, 1)
         when event = 'unsub' then coalesce((j->>'n')::bigint, 0) when event = 'drop' then (j->>'n')::bigint end as n,
    j->>'x' as code,
    case when event in ('send', 'conf', 'dlv', 'ack', 'nack') then coalesce((j->>'w')::double, 1.0) end as weight,
    j->>'ip' as peer, case when event = 'conn' then coalesce((j->>'tls')::boolean, false) end as tls,
    j->>'ver' as version, j->>'hb' as heartbeat,
    case when event = 'sub' then coalesce((j->>'pf')::int, 0) end as prefetch,
    case when event = 'sub' then coalesce((j->>'du')::boolean, false) end as durable,
    case when event = 'sub' then coalesce((j->>'ad')::boolean, false) end as auto_delete,
    case when event = 'sub' then coalesce((j->>'ex')::boolean, false) end as exclusive,
    (j->'cnt')::map(varchar, bigint) as counters, (j->'h')::map(varchar, bigint) as histogram,
    case when event = 'end' then map {
        'frames_in': coalesce((j->'f'->>'frames_in')::bigint, 0), 'frames_out': coalesce((j->'f'->>'frames_out')::bigint, 0),
        'bytes_in': coalesce((j->'f'->>'bytes_in')::bigint, 0), 'bytes_out': coalesce((j->'f'->>'bytes_out')::bigint, 0),
        'unacked': coalesce((j->'f'->>'unacked')::bigint, 0), 'max_unacked': coalesce((j->'f'->>'max_unacked')::bigint, 0),
        'us': coalesce((j->'f'->>'us')::bigint, 0)} end as totals,
    (j->'hv')::map(varchar, varchar) as header_values, j->>'gw' as gateway_version, j->>'cfg' as config, file,
    strftime(make_timestamp(ts), '%Y-%m-%d') as d,
    case when event in ('send', 'conf', 'dlv', 'ack', 'nack') then 'message' else 'session' end as level
from (select *, [regexp_extract(file, '^([a-z]+)-(.+)-([0-9a-f]{16})-[0-9]+-[0-9]+\.v1\.jsonl$', 1), regexp_extract(file, '^([a-z]+)-(.+)-([0-9a-f]{16})-[0-9]+-[0-9]+\.v1\.jsonl$', 2), regexp_extract(file, '^([a-z]+)-(.+)-([0-9a-f]{16})-[0-9]+-[0-9]+\.v1\.jsonl$', 3)] as parts
    from lines);

-- What tables call events.
create table words as select * from (values ('conn', 'connect'), ('sub', 'subscribe'), ('unsub', 'unsubscribe'),
    ('conf', 'confirm'), ('dlv', 'deliver'), ('err', 'error'), ('blk', 'blocked'), ('use', 'feature'), ('drop', 'dropped')) w(short, word);
create table events as
select e.* replace (coalesce((select word from words where short = e.event), e.event) as event) from events_of_journal e;
"""

_ROLLUP = r"""
create macro octave(v) as len([k for k in range(1, 63) if v >= (1::bigint << k::int)]);
create macro bucket(v) as case
    when v is null then null when v < 0 then 0 when v < 16 then v
    else 16 * (octave(v) - 3) + ((v - (1::bigint << octave(v)::int)) >> (octave(v) - 4)::int) end;
create macro upper_end(b) as case
    when b < 16 then b::bigint
    else (1::bigint << (b // 16 + 3)::int) + ((b % 16 + 1)::bigint << (b // 16 - 1)::int) - 1 end;

create view stat as select * from events where event = 'stat';
create macro cnt(counters, name) as coalesce(counters[name], 0);

create view timed_stat as
select * exclude (entry), split_part(entry.key, ':', 1) as metric, split_part(entry.key, ':', 2)::int as b, entry.value as many
from (select *, unnest(map_entries(histogram)) as entry from stat where histogram is not null);

create view untimed_stat as
select s.*, m.metric, greatest(cnt(s.counters, m.metric) - coalesce(
    (select sum(t.many) from timed_stat t where t.boot = s.boot and t.seq = s.seq and t.metric = m.metric), 0), 0) as many
from stat s, (values ('conf'), ('ack')) m(metric);

create view counted as
          select e.* exclude (event, code, n), event, code, null::int as bucket, 1.0::double as n, 0.0::double as bytes
          from events e where event in ('end', 'error', 'feature', 'unsubscribe')
union all select e.* exclude (event, code, n), event, null, null, 1.0, 0.0 from events e where event in ('open', 'close', 'subscribe')
union all select e.* exclude (event, code, n), event, null, null, n::double, 0.0 from events e where event = 'dropped'
union all select e.* exclude (event, code, n), event, null, bucket(latency_us), 1.0, 0.0 from events e where event = 'connect'
union all select e.* exclude (event, code, n), event, code, bucket(latency_us), 1.0, 0.0 from events e where event = 'blocked'
union all select e.* exclude (event, code, n), event, null, null, weight, weight * body_bytes from events e where event = 'send'
union all select e.* exclude (event, code, n), event, 'rejected', null, weight, 0.0
          from events e where event = 'confirm' and code = 'rejected'
union all select e.* exclude (event, code, n), event, null, bucket(latency_us), weight, 0.0
          from events e where event = 'confirm' and code is null
union all select e.* exclude (event, code, n), event, if(redelivered, 'redelivered', null), null, weight, weight * body_bytes
          from events e where event = 'deliver'
union all select e.* exclude (event, code, n), event, null, bucket(latency_us), n * weight, 0.0 from events e where event = 'ack'
union all select e.* exclude (event, code, n), event, code, null, n * weight, 0.0 from events e where event = 'nack'
union all select s.* exclude (event, code, n), 'send', null, null, cnt(counters, 'send'), cnt(counters, 'send_bytes') from stat s
union all select s.* exclude (event, code, n), 'confirm', 'rejected', null, cnt(counters, 'rejected'), 0.0 from stat s
union all select s.* exclude (event, code, n), 'deliver', null, null, cnt(counters, 'dlv') - cnt(counters, 'redelivered'),
          cnt(counters, 'dlv_bytes') from stat s
union all select s.* exclude (event, code, n), 'deliver', 'redelivered', null, cnt(counters, 'redelivered'), 0.0 from stat s
union all select s.* exclude (event, code, n), 'nack', 'requeue', null, cnt(counters, 'requeue'), 0.0 from stat s
union all select s.* exclude (event, code, n), 'nack', 'discard', null, cnt(counters, 'discard'), 0.0 from stat s
union all select e.* exclude (event, code, n), 'queue', null, bucket(queue_us), weight, 0.0
          from events e where event = 'deliver' and queue_us is not null
union all select t.* exclude (event, code, n, metric, b, many), if(metric = 'conf', 'confirm', metric), null, b, many, 0.0
          from timed_stat t where metric in ('conf', 'ack', 'queue')
union all select u.* exclude (event, code, n, metric, many), if(metric = 'conf', 'confirm', metric), null, null, many, 0.0
          from untimed_stat u;

create table rollup_10s as
select d, ts - ts % 10000000 as ts10, impl, node, vhost, login, destination, dest_kind, sub_name, ack_mode, event, code,
    bucket::int as bucket, sum(n) as n, sum(bytes) as bytes
from counted where n <> 0 or bytes <> 0
group by all;

create view by_hour as select *, ts10 - ts10 % 3600000000 as hour from rollup_10s;
"""

_TRAFFIC = r"""
create table traffic_10s as
select d, ts10, impl, vhost, event, code, bucket, sum(n) as n, sum(bytes) as bytes from rollup_10s group by all;

create macro whole(x) as coalesce(round(x)::bigint, 0);

create table dest_hour as
select d, hour, impl, vhost, destination, dest_kind,
    whole(sum(n) filter (event = 'send')) as sent, whole(sum(bytes) filter (event = 'send')) as sent_bytes,
    whole(sum(n) filter (event = 'confirm' and code is null)) as confirmed,
    whole(sum(n) filter (event = 'confirm' and code = 'rejected')) as rejected,
    whole(sum(n) filter (event = 'deliver')) as delivered, whole(sum(bytes) filter (event = 'deliver')) as delivered_bytes,
    whole(sum(n) filter (event = 'deliver' and code = 'redelivered')) as redelivered,
    whole(sum(n) filter (event = 'ack')) as acked,
    whole(sum(n) filter (event = 'nack' and code = 'requeue')) as requeued,
    whole(sum(n) filter (event = 'nack' and code = 'discard')) as discarded
from by_hour where destination is not null group by all;

-- A group's percentile is the end of the first of its buckets up to which at least `rank` values lie.
create view latencies as
select d, hour, impl, vhost, destination, event, bucket, sum(n) as n
from by_hour where bucket is not null and destination is not null and event in ('confirm', 'ack', 'queue') group by all
union all
select d, hour, impl, vhost, null, event, bucket, sum(n)
from by_hour where bucket is not null and event in ('confirm', 'ack', 'queue', 'connect', 'blocked') group by all;

create macro rank(share, total) as least(total, greatest(1, ceil(share::double * total)));

create table latency_hour as
with upto as (
    select a.d, a.hour, a.impl, a.vhost, a.destination, a.event, a.bucket, any_value(a.n) as n, sum(b.n) as seen
    from latencies a join latencies b on b.bucket <= a.bucket
        and (b.d, b.hour, b.impl, b.event) = (a.d, a.hour, a.impl, a.event)
        and b.vhost is not distinct from a.vhost and b.destination is not distinct from a.destination
    group by a.d, a.hour, a.impl, a.vhost, a.destination, a.event, a.bucket),
ends as (select *, sum(n) over (partition by d, hour, impl, vhost, destination, event) as total from upto)
select d, hour, impl, vhost, destination, event, round(sum(n))::bigint as n,
    upper_end(min(bucket) filter (seen >= rank(0.5, total))) as p50_us,
    upper_end(min(bucket) filter (seen >= rank(0.95, total))) as p95_us,
    upper_end(min(bucket) filter (seen >= rank(0.99, total))) as p99_us,
    upper_end(min(bucket) filter (seen >= rank(0.999, total))) as p999_us,
    upper_end(max(bucket)) as max_us
from ends group by d, hour, impl, vhost, destination, event;

create table errors_hour as
select d, hour, impl, vhost, login, code, round(sum(n))::bigint as n from by_hour where event = 'error' group by all;

create table redeliveries_hour as
select *, 100.0::double * redelivered / delivered as redelivered_pct
from (select d, hour, impl, vhost, login, destination, whole(sum(n)) as delivered,
        whole(sum(n) filter (code = 'redelivered')) as redelivered
    from by_hour where event = 'deliver' group by all)
where redelivered > 0;

create macro covers(pattern, name) as pattern = name or (regexp_matches(pattern, '^/(topic|exchange)/.*[*#]') and regexp_full_match(
    name, replace(replace(replace(replace(replace(pattern, '.', '[.]'), '*', '[^.]+'), '[.]#', '([.].*)?'), '#[.]', '(.*[.])?'), '#', '.*')));

create table flows_hour as
with sent as (
    select d, hour, impl, vhost, login as sender, destination, sum(n) as n, sum(bytes) as bytes from by_hour
    where event = 'send' and destination is not null group by all having sum(n) > 0),
got as (
    select d, hour, impl, vhost, login as receiver, sub_name, destination as subscribed,
        coalesce(sum(n) filter (event = 'deliver'), 0) as n, sum(bytes) as bytes,
        list({'b': bucket, 'n': n}) filter (event = 'queue' and bucket is not null) as waits
    from by_hour where event in ('deliver', 'queue') and destination is not null group by all),
timed as (
    select * exclude (waits), list_aggregate([w.n for w in waits], 'sum') as many, list_sort(list_distinct([w.b for w in waits])) as buckets, waits
    from got),
judged as (
    select * exclude (many, buckets, waits),
        upper_end([b for b in buckets if list_aggregate([w.n for w in waits if w.b <= b], 'sum') >= rank(0.5, many)][1]) as p50_us,
        upper_end([b for b in buckets if list_aggregate([w.n for w in waits if w.b <= b], 'sum') >= rank(0.99, many)][1]) as p99_us
    from timed),
pairs as (
    select g.*, s.sender, s.destination, s.n / sum(s.n) over (partition by g.d, g.hour, g.impl, g.vhost, g.receiver, g.sub_name, g.subscribed) as part
    from judged g left join sent s on (s.d, s.hour, s.impl) = (g.d, g.hour, g.impl) and s.vhost is not distinct from g.vhost
        and covers(g.subscribed, s.destination))
select d, hour, impl, vhost, sender, coalesce(destination, subscribed) as destination, subscribed, receiver, sub_name,
    n * coalesce(part, 1) as messages, bytes * coalesce(part, 1) as bytes, p50_us, p99_us
from pairs
union all
select s.d, s.hour, s.impl, s.vhost, s.sender, s.destination, null, null, null, s.n, s.bytes, null, null
from sent s where not exists (
    select 1 from got g where (s.d, s.hour, s.impl) = (g.d, g.hour, g.impl) and s.vhost is not distinct from g.vhost
        and covers(g.subscribed, s.destination));

create table unacked_hotspots as
with acks as (
    select d, hour, impl, vhost, login, destination, bucket, sum(n) as n from by_hour
    where event = 'ack' and bucket is not null and ack_mode in ('client', 'client-individual') group by all),
found as (
    select d, hour, impl, vhost, login, destination, whole(sum(n) filter (event = 'deliver')) as deliveries,
        whole(sum(n) filter (event = 'ack')) as acked, whole(sum(n) filter (event = 'nack')) as nacked,
        whole(sum(n) filter (event = 'deliver' and code = 'redelivered')) as again
    from by_hour where ack_mode in ('client', 'client-individual') and event in ('deliver', 'ack', 'nack') group by all)
select d, hour, impl, vhost, login, destination, deliveries, acked, nacked, deliveries - acked - nacked as unacked,
    case when deliveries > 0 then 100.0::double * greatest(0, deliveries - acked - nacked) / deliveries end as unacked_pct,
    (select upper_end(min(a.bucket)) from acks a where (a.d, a.hour, a.impl) = (f.d, f.hour, f.impl) and a.vhost is not distinct from f.vhost
        and a.login is not distinct from f.login and a.destination is not distinct from f.destination
        and (select sum(x.n) from acks x where (x.d, x.hour, x.impl) = (a.d, a.hour, a.impl) and x.vhost is not distinct from a.vhost
                and x.login is not distinct from a.login and x.destination is not distinct from a.destination
                and x.bucket <= a.bucket)
            >= rank(0.99, (select sum(y.n) from acks y where (y.d, y.hour, y.impl) = (a.d, a.hour, a.impl)
                and y.vhost is not distinct from a.vhost and y.login is not distinct from a.login
                and y.destination is not distinct from a.destination))) as p99_ack_us,
    case when deliveries > 0 then 100.0::double * again / deliveries end as redelivered_pct
from found f;
"""

_SESSIONS = r"""
create table boots as
select d, ts - ts % 3600000000 as hour, node, impl, boot, max(gateway_version) as gateway_version, min(ts) as first_ts, max(ts) as last_ts,
    count(*) filter (event = 'close') > 0 as closed, max(seq) - min(seq) + 1 as lines,
    coalesce(sum(n) filter (event = 'dropped'), 0)::bigint as dropped
from events group by all;

create table sessions as
with begun as (select * from events where event = 'connect'), ended as (select * from events where event = 'end')
select strftime(make_timestamp(coalesce(c.ts, e.ts - e.totals['us'])), '%Y-%m-%d') as d, coalesce(c.node, e.node) as node, coalesce(c.impl, e.impl) as impl,
    coalesce(c.boot, e.boot) as boot, coalesce(c.session, e.session) as session, coalesce(c.vhost, e.vhost) as vhost,
    coalesce(c.login, e.login) as login, c.peer, c.tls, c.version, c.heartbeat,
    coalesce(c.ts, e.ts - e.totals['us']) as started, e.ts as ended, e.totals['us'] as duration_us, e.code as end_code,
    e.totals['frames_in'] as frames_in, e.totals['frames_out'] as frames_out, e.totals['bytes_in'] as bytes_in,
    e.totals['bytes_out'] as bytes_out, e.totals['unacked'] as unacked, e.totals['max_unacked'] as max_unacked,
    c.latency_us as connect_us
from begun c full join ended e on c.boot = e.boot and c.session = e.session;

create table features_used as
select d, ts - ts % 3600000000 as hour, impl, vhost, login, version, code as feature,
    count(distinct boot || '/' || session) as sessions, min(ts) as first_seen, max(ts) as last_seen
from events where event = 'feature' group by all;
"""

_DURABLE = r"""
create table durable_days as
with seen as (
    select d, ts - ts % 3600000000 as hour, vhost, login, sub_name, destination, event, code, boot, seq, ts as t, level = 'session' as exact
    from events where sub_name is not null),
times as (
    -- What only a message tells is known to 10 seconds.
    select d, hour, vhost, login, sub_name, destination, min(if(exact, t, null)) as first_exact, max(if(exact, t, null)) as last_exact,
        min(if(exact, null, t - t % 10000000)) as first_slot,
        max(if(exact, null, t - t % 10000000)) as last_slot
    from seen group by all),
traffic as (
    select d, ts10 - ts10 % 3600000000 as hour, vhost, login, sub_name, destination, max(ts10) filter (event = 'deliver') as last_delivery,
        max(ts10) filter (event in ('ack', 'nack')) as last_ack, whole(sum(n) filter (event = 'deliver')) as deliveries,
        whole(sum(n) filter (event = 'ack')) as acks
    from rollup_10s where sub_name is not null group by all),
subs as (
    select d, hour, vhost, login, sub_name, destination, arg_max(t, (t, seq, boot)) as t, arg_max(boot, (t, seq, boot)) as boot
    from seen where event = 'subscribe' group by all),
unsubs as (
    select d, hour, vhost, login, sub_name, destination, arg_max(t, (t, seq, boot)) as t, arg_max(code, (t, seq, boot)) as code
    from seen where event = 'unsubscribe' group by all)
select t.d, t.hour, t.vhost, t.login, t.sub_name, t.destination,
    case when first_slot is null or first_exact - first_exact % 10000000 <= first_slot then first_exact else first_slot
        end as first_seen,
    greatest(last_exact, last_slot) as last_connected, last_delivery, last_ack, coalesce(deliveries, 0) as deliveries,
    coalesce(acks, 0) as acks, s.t as last_sub, s.boot as last_sub_boot, u.t as last_unsub, u.code as last_unsub_code
from times t
left join traffic r on (r.d, r.hour, r.sub_name) = (t.d, t.hour, t.sub_name) and r.vhost is not distinct from t.vhost
    and r.login is not distinct from t.login and r.destination is not distinct from t.destination
left join subs s on (s.d, s.hour, s.sub_name) = (t.d, t.hour, t.sub_name) and s.vhost is not distinct from t.vhost
    and s.login is not distinct from t.login and s.destination is not distinct from t.destination
left join unsubs u on (u.d, u.hour, u.sub_name) = (t.d, t.hour, t.sub_name) and u.vhost is not distinct from t.vhost
    and u.login is not distinct from t.login and u.destination is not distinct from t.destination;

create table durable_subs as
with runs as (select impl, node, boot, min(first_ts) as began, bool_or(closed) as closed from boots group by all),
living as (
    select boot from runs r where not closed and not exists (
        select 1 from runs later where (later.impl, later.node) = (r.impl, r.node) and later.began > r.began)),
whole_life as (
    select vhost, login, sub_name, destination, min(first_seen) as first_seen, max(last_connected) as last_connected,
        max(last_delivery) as last_delivery, max(last_ack) as last_ack, sum(deliveries)::bigint as deliveries,
        sum(acks)::bigint as acks, max(last_sub) as sub, arg_max(last_sub_boot, last_sub) as sub_boot, max(last_unsub) as unsub,
        arg_max(last_unsub_code, last_unsub) as unsub_code
    from durable_days group by all),
judged as (
    select *, coalesce(sub is not null and (unsub is null or sub > unsub) and sub_boot in (select boot from living), false)
            as connected,
        greatest((select coalesce(max(last_ts) filter (last_ts <= $now + 86400000000), max(last_ts)) from boots)
            - last_connected, 0) as away
    from whole_life)
select vhost, login, sub_name, destination, first_seen, last_connected, last_delivery, last_ack, deliveries, acks, connected,
    case when connected then 0.0 else away / 86400e6 end::double as days_idle,
    case when unsub_code = 'deleted' and (sub is null or unsub > sub) then 'deleted'
         when connected or away < $idle_after then 'active' when away < $abandoned_after then 'idle'
         else 'abandoned' end as verdict
from judged;
"""

Row = dict[str, object]


class Oracle:
    """The expected tables.

    Args:
        journal: its directory.
        idle_after: microseconds.
        abandoned_after: microseconds.
        now: what time it is, microseconds.
    """

    def __init__(
        self,
        journal: Path,
        idle_after: int = 86_400_000_000,
        abandoned_after: int = 7 * 86_400_000_000,
        now: int = 1 << 60,
    ) -> None:
        self._connection = duckdb.connect()
        values = {
            "$journal": f"'{journal}'",
            "$idle_after": str(idle_after),
            "$abandoned_after": str(abandoned_after),
            "$now": str(now),
        }
        for text in (_LINES, _ROLLUP, _TRAFFIC, _SESSIONS, _DURABLE):
            script = text
            for name, value in values.items():
                script = script.replace(name, value)
            self._connection.execute(script)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def rows(self, table: str) -> list[Row]:
        """A table's rows."""
        return self.answer(f"select * from {table}")

    def answer(self, query: str) -> list[Row]:
        """The answer to a query over the tables."""
        found = self._connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
