CREATE EXTERNAL TABLE o (k VARCHAR, v BIGINT, d DOUBLE) STORED AS JSON LOCATION 'kafka://o';
CREATE EXTERNAL TABLE r (t TIMESTAMP, k VARCHAR, a DOUBLE, b BIGINT, c BOOLEAN, PRIMARY KEY (t, k)) STORED AS JSON LOCATION 'blackhole://';
INSERT INTO r SELECT date_trunc('minute', _timestamp), coalesce(k, 'x'), avg(d) FILTER (WHERE v > 1), count(DISTINCT v),
  bool_and(v IS NULL) FROM o GROUP BY date_trunc('minute', _timestamp), coalesce(k, 'x');
