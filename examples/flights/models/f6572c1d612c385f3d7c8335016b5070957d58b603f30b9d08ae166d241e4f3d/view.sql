/* mortise
name = "departure"
version = "1"
entity = "tailnum"
event_time = "scheduled_at"
# Weather comes hourly, with gaps of up to 6 h, and the last outcome of an evening becomes known
# some hours before the first departure of the morning. A quiet night is not stale: 6 h.
freshness_s = 21600
# One row in 94 s: a shorter window would hold too few rows to judge a distribution by.
window_s = 172800
owner = "flight data owner"
description = "What is known about a flight at its scheduled departure."

[request.scheduled_at]
dtype = "timestamp"
range = [946684800, 4102444800]
source = "airline schedule"
description = "Scheduled departure. The range is 2000-01-01 to 2100-01-01, in seconds since 1970."
[request.carrier]
dtype = "string"
characters_max = 3
source = "airline schedule"
description = "IATA code of the airline."
[request.flight]
dtype = "int64"
range = [1, 9999]
source = "airline schedule"
[request.tailnum]
dtype = "string"
characters_max = 8
missing = "null"
source = "airline schedule"
description = "Registration of the aircraft; not always known."
[request.origin]
dtype = "string"
values = ["EWR", "JFK", "LGA"]
source = "airline schedule"
[request.dest]
dtype = "string"
characters_max = 4
source = "airline schedule"
[request.distance_mi]
dtype = "int64"
range = [1, 12000]
source = "airline schedule"
[request.sched_dep_local]
dtype = "int64"
range = [0, 2359]
source = "airline schedule"
description = "Scheduled departure on the origin's clock, hours × 100 + minutes."

[fields.carrier]
dtype = "string"
source = "request"
[fields.origin]
dtype = "string"
source = "request"
[fields.dest]
dtype = "string"
source = "request"
[fields.distance_mi]
dtype = "int64"
range = [1, 12000]
source = "request"
[fields.month]
dtype = "int64"
range = [1, 12]
source = "scheduled_at in the origin's zone"
[fields.day_of_week]
dtype = "int64"
range = [1, 7]
source = "scheduled_at in the origin's zone; Monday is 1"
[fields.is_weekend]
dtype = "bool"
source = "scheduled_at in the origin's zone"
[fields.hour_local]
dtype = "int64"
range = [0, 23]
source = "scheduled_at in the origin's zone"
[fields.minute_of_day]
dtype = "int64"
range = [0, 1439]
source = "scheduled_at in the origin's zone"
[fields.dest_hour_local]
dtype = "int64"
range = [0, 23]
missing = "null"
source = "scheduled_at in the destination's zone"
[fields.zone_shift_min]
dtype = "int64"
range = [-1440, 1440]
missing = "null"
source = "destination's clock minus the origin's"
[fields.temp]
dtype = "float64"
range = [-100, 150]
missing = "null"
source = "weather; °F"
[fields.dewp]
dtype = "float64"
range = [-100, 150]
missing = "null"
source = "weather; °F"
[fields.humid]
dtype = "float64"
range = [0, 105]
missing = "null"
source = "weather; per cent"
[fields.wind_speed]
dtype = "float64"
range = [0, 250]
missing = "null"
source = "weather; mi/h"
[fields.wind_gust]
dtype = "float64"
range = [0, 300]
missing = "null"
source = "weather; mi/h, absent when there is none"
[fields.precip]
dtype = "float64"
range = [0, 20]
missing = "null"
source = "weather; in/h"
[fields.pressure]
dtype = "float64"
range = [800, 1100]
missing = "null"
source = "weather; mbar"
[fields.visib]
dtype = "float64"
range = [0, 100]
missing = "null"
source = "weather; mi"
[fields.weather_age_min]
dtype = "int64"
range = [0, 360]
missing = "null"
source = "scheduled_at minus weather.observed_at"
[fields.aircraft_age_years]
dtype = "int64"
range = [-1, 200]
missing = "null"
source = "planes.year"
[fields.aircraft_seats]
dtype = "int64"
range = [1, 1000]
missing = "null"
source = "planes.seats"
[fields.aircraft_last_delay_min]
dtype = "int64"
range = [-1440, 10080]
missing = "null"
source = "flights; arrival delay of the aircraft's last known flight, at most a day ago"
[fields.carrier_late_rate_14d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.carrier_count_14d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.carrier_late_rate_90d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.carrier_count_90d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.route_late_rate_14d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.route_count_14d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.route_late_rate_90d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.route_count_90d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.origin_late_rate_14d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.origin_count_14d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.origin_late_rate_90d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.origin_count_90d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.origin_late_rate_3h]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.origin_count_3h]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.origin_hour_late_rate_14d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.origin_hour_count_14d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
[fields.origin_hour_late_rate_90d]
dtype = "float64"
range = [0, 1]
missing = "null"
source = "flights"
[fields.origin_hour_count_90d]
dtype = "int64"
range = [0, 1000000]
source = "flights"
*/

-- What happened to a flight, and when that was known. The data has no landing instant, so an
-- outcome counts as known an hour after the flight can have arrived: at its scheduled departure
-- plus its departure delay plus its air time (6 h where there is none: cancelled, diverted) plus
-- 60 minutes. Late is more than 15 minutes; a flight that never arrived counts, but not as late.
WITH outcome AS (
    SELECT
        carrier,
        origin,
        dest,
        tailnum,
        sched_dep_local // 100 AS hour_local,
        CAST(
            scheduled_at
            + to_minutes(greatest(coalesce(dep_delay_min, 0), 0) + coalesce(air_time_min, 360) + 60)
            AS TIMESTAMPTZ
        ) AS known_at,
        arr_delay_min,
        CASE WHEN arr_delay_min > 15 THEN 1 ELSE 0 END AS late
    FROM flights
),

-- Running totals per key. The frame is RANGE, so outcomes known at one instant share one value,
-- and a window of history is the difference of two of them.
by_carrier AS (
    SELECT
        carrier,
        known_at,
        CAST(sum(late) OVER known AS BIGINT) AS late,
        CAST(count(*) OVER known AS BIGINT) AS flown
    FROM outcome
    WINDOW known AS (
        PARTITION BY carrier ORDER BY known_at
        RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),

by_route AS (
    SELECT
        origin,
        dest,
        known_at,
        CAST(sum(late) OVER known AS BIGINT) AS late,
        CAST(count(*) OVER known AS BIGINT) AS flown
    FROM outcome
    WINDOW known AS (
        PARTITION BY origin, dest ORDER BY known_at
        RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),

by_origin AS (
    SELECT
        origin,
        known_at,
        CAST(sum(late) OVER known AS BIGINT) AS late,
        CAST(count(*) OVER known AS BIGINT) AS flown
    FROM outcome
    WINDOW known AS (
        PARTITION BY origin ORDER BY known_at
        RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),

by_origin_hour AS (
    SELECT
        origin,
        hour_local,
        known_at,
        CAST(sum(late) OVER known AS BIGINT) AS late,
        CAST(count(*) OVER known AS BIGINT) AS flown
    FROM outcome
    WINDOW known AS (
        PARTITION BY origin, hour_local ORDER BY known_at
        RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
),

by_aircraft AS (
    SELECT tailnum, known_at, CAST(max(arr_delay_min) AS BIGINT) AS arr_delay_min
    FROM outcome
    WHERE tailnum IS NOT NULL AND arr_delay_min IS NOT NULL
    GROUP BY tailnum, known_at
),

-- The request on the clocks of both airports.
flight AS (
    SELECT
        r.scheduled_at,
        r.carrier,
        r.tailnum,
        r.origin,
        r.dest,
        r.distance_mi,
        r.sched_dep_local // 100 AS hour_local,
        timezone(departs.tzone, r.scheduled_at) AS origin_clock,
        timezone(arrives.tzone, r.scheduled_at) AS dest_clock
    FROM request AS r
    LEFT JOIN airports AS departs ON departs.faa = r.origin
    LEFT JOIN airports AS arrives ON arrives.faa = r.dest
),

-- An observation older than six hours says nothing about the weather now.
known AS (
    SELECT
        f.*,
        w.observed_at >= f.scheduled_at - INTERVAL 6 HOUR AS is_weather_known,
        w.observed_at,
        w.temp,
        w.dewp,
        w.humid,
        w.wind_speed,
        w.wind_gust,
        w.precip,
        w.pressure,
        w.visib,
        p.year AS built_year,
        p.seats,
        a.known_at >= f.scheduled_at - INTERVAL 1 DAY AS is_aircraft_known,
        a.arr_delay_min,
        coalesce(c.flown, 0) - coalesce(c14.flown, 0) AS carrier_count_14d,
        coalesce(c.flown, 0) - coalesce(c90.flown, 0) AS carrier_count_90d,
        CAST(coalesce(c.late, 0) - coalesce(c14.late, 0) AS DOUBLE) AS carrier_late_14d,
        CAST(coalesce(c.late, 0) - coalesce(c90.late, 0) AS DOUBLE) AS carrier_late_90d,
        coalesce(d.flown, 0) - coalesce(d14.flown, 0) AS route_count_14d,
        coalesce(d.flown, 0) - coalesce(d90.flown, 0) AS route_count_90d,
        CAST(coalesce(d.late, 0) - coalesce(d14.late, 0) AS DOUBLE) AS route_late_14d,
        CAST(coalesce(d.late, 0) - coalesce(d90.late, 0) AS DOUBLE) AS route_late_90d,
        coalesce(o.flown, 0) - coalesce(o14.flown, 0) AS origin_count_14d,
        coalesce(o.flown, 0) - coalesce(o90.flown, 0) AS origin_count_90d,
        coalesce(o.flown, 0) - coalesce(o3.flown, 0) AS origin_count_3h,
        CAST(coalesce(o.late, 0) - coalesce(o14.late, 0) AS DOUBLE) AS origin_late_14d,
        CAST(coalesce(o.late, 0) - coalesce(o90.late, 0) AS DOUBLE) AS origin_late_90d,
        CAST(coalesce(o.late, 0) - coalesce(o3.late, 0) AS DOUBLE) AS origin_late_3h,
        coalesce(h.flown, 0) - coalesce(h14.flown, 0) AS origin_hour_count_14d,
        coalesce(h.flown, 0) - coalesce(h90.flown, 0) AS origin_hour_count_90d,
        CAST(coalesce(h.late, 0) - coalesce(h14.late, 0) AS DOUBLE) AS origin_hour_late_14d,
        CAST(coalesce(h.late, 0) - coalesce(h90.late, 0) AS DOUBLE) AS origin_hour_late_90d
    FROM flight AS f
    LEFT JOIN planes AS p ON p.tailnum = f.tailnum
    ASOF LEFT JOIN weather AS w
        ON w.origin = f.origin AND w.observed_at < f.scheduled_at
    ASOF LEFT JOIN by_aircraft AS a
        ON a.tailnum = f.tailnum AND a.known_at < f.scheduled_at
    ASOF LEFT JOIN by_carrier AS c
        ON c.carrier = f.carrier AND c.known_at < f.scheduled_at
    ASOF LEFT JOIN by_carrier AS c14
        ON c14.carrier = f.carrier AND c14.known_at < f.scheduled_at - INTERVAL 14 DAY
    ASOF LEFT JOIN by_carrier AS c90
        ON c90.carrier = f.carrier AND c90.known_at < f.scheduled_at - INTERVAL 90 DAY
    ASOF LEFT JOIN by_route AS d
        ON d.origin = f.origin AND d.dest = f.dest AND d.known_at < f.scheduled_at
    ASOF LEFT JOIN by_route AS d14
        ON d14.origin = f.origin AND d14.dest = f.dest
        AND d14.known_at < f.scheduled_at - INTERVAL 14 DAY
    ASOF LEFT JOIN by_route AS d90
        ON d90.origin = f.origin AND d90.dest = f.dest
        AND d90.known_at < f.scheduled_at - INTERVAL 90 DAY
    ASOF LEFT JOIN by_origin AS o
        ON o.origin = f.origin AND o.known_at < f.scheduled_at
    ASOF LEFT JOIN by_origin AS o3
        ON o3.origin = f.origin AND o3.known_at < f.scheduled_at - INTERVAL 3 HOUR
    ASOF LEFT JOIN by_origin AS o14
        ON o14.origin = f.origin AND o14.known_at < f.scheduled_at - INTERVAL 14 DAY
    ASOF LEFT JOIN by_origin AS o90
        ON o90.origin = f.origin AND o90.known_at < f.scheduled_at - INTERVAL 90 DAY
    ASOF LEFT JOIN by_origin_hour AS h
        ON h.origin = f.origin AND h.hour_local = f.hour_local AND h.known_at < f.scheduled_at
    ASOF LEFT JOIN by_origin_hour AS h14
        ON h14.origin = f.origin AND h14.hour_local = f.hour_local
        AND h14.known_at < f.scheduled_at - INTERVAL 14 DAY
    ASOF LEFT JOIN by_origin_hour AS h90
        ON h90.origin = f.origin AND h90.hour_local = f.hour_local
        AND h90.known_at < f.scheduled_at - INTERVAL 90 DAY
)

SELECT
    CAST(k.carrier AS VARCHAR) AS carrier,
    CAST(k.origin AS VARCHAR) AS origin,
    CAST(k.dest AS VARCHAR) AS dest,
    CAST(k.distance_mi AS BIGINT) AS distance_mi,
    CAST(month(k.origin_clock) AS BIGINT) AS month,
    CAST(isodow(k.origin_clock) AS BIGINT) AS day_of_week,
    CAST(isodow(k.origin_clock) >= 6 AS BOOLEAN) AS is_weekend,
    CAST(hour(k.origin_clock) AS BIGINT) AS hour_local,
    CAST(hour(k.origin_clock) * 60 + minute(k.origin_clock) AS BIGINT) AS minute_of_day,
    CAST(hour(k.dest_clock) AS BIGINT) AS dest_hour_local,
    CAST((epoch_us(k.dest_clock) - epoch_us(k.origin_clock)) // 60000000 AS BIGINT)
        AS zone_shift_min,
    CAST(CASE WHEN k.is_weather_known THEN k.temp END AS DOUBLE) AS temp,
    CAST(CASE WHEN k.is_weather_known THEN k.dewp END AS DOUBLE) AS dewp,
    CAST(CASE WHEN k.is_weather_known THEN k.humid END AS DOUBLE) AS humid,
    CAST(CASE WHEN k.is_weather_known THEN k.wind_speed END AS DOUBLE) AS wind_speed,
    CAST(CASE WHEN k.is_weather_known THEN k.wind_gust END AS DOUBLE) AS wind_gust,
    CAST(CASE WHEN k.is_weather_known THEN k.precip END AS DOUBLE) AS precip,
    CAST(CASE WHEN k.is_weather_known THEN k.pressure END AS DOUBLE) AS pressure,
    CAST(CASE WHEN k.is_weather_known THEN k.visib END AS DOUBLE) AS visib,
    CAST(
        CASE WHEN k.is_weather_known
            THEN (epoch_us(k.scheduled_at) - epoch_us(k.observed_at)) // 60000000
        END AS BIGINT
    ) AS weather_age_min,
    CAST(year(k.origin_clock) - k.built_year AS BIGINT) AS aircraft_age_years,
    CAST(k.seats AS BIGINT) AS aircraft_seats,
    CAST(CASE WHEN k.is_aircraft_known THEN k.arr_delay_min END AS BIGINT)
        AS aircraft_last_delay_min,
    CAST(k.carrier_late_14d / nullif(k.carrier_count_14d, 0) AS DOUBLE) AS carrier_late_rate_14d,
    CAST(k.carrier_count_14d AS BIGINT) AS carrier_count_14d,
    CAST(k.carrier_late_90d / nullif(k.carrier_count_90d, 0) AS DOUBLE) AS carrier_late_rate_90d,
    CAST(k.carrier_count_90d AS BIGINT) AS carrier_count_90d,
    CAST(k.route_late_14d / nullif(k.route_count_14d, 0) AS DOUBLE) AS route_late_rate_14d,
    CAST(k.route_count_14d AS BIGINT) AS route_count_14d,
    CAST(k.route_late_90d / nullif(k.route_count_90d, 0) AS DOUBLE) AS route_late_rate_90d,
    CAST(k.route_count_90d AS BIGINT) AS route_count_90d,
    CAST(k.origin_late_14d / nullif(k.origin_count_14d, 0) AS DOUBLE) AS origin_late_rate_14d,
    CAST(k.origin_count_14d AS BIGINT) AS origin_count_14d,
    CAST(k.origin_late_90d / nullif(k.origin_count_90d, 0) AS DOUBLE) AS origin_late_rate_90d,
    CAST(k.origin_count_90d AS BIGINT) AS origin_count_90d,
    CAST(k.origin_late_3h / nullif(k.origin_count_3h, 0) AS DOUBLE) AS origin_late_rate_3h,
    CAST(k.origin_count_3h AS BIGINT) AS origin_count_3h,
    CAST(k.origin_hour_late_14d / nullif(k.origin_hour_count_14d, 0) AS DOUBLE)
        AS origin_hour_late_rate_14d,
    CAST(k.origin_hour_count_14d AS BIGINT) AS origin_hour_count_14d,
    CAST(k.origin_hour_late_90d / nullif(k.origin_hour_count_90d, 0) AS DOUBLE)
        AS origin_hour_late_rate_90d,
    CAST(k.origin_hour_count_90d AS BIGINT) AS origin_hour_count_90d
FROM known AS k
