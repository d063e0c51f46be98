-- Nexmark, query 17: the prices of each auction and day.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q17 (auction BIGINT, day VARCHAR, total_bids BIGINT, rank1_bids BIGINT, rank2_bids BIGINT, rank3_bids BIGINT,
    min_price BIGINT, max_price BIGINT, avg_price DOUBLE, sum_price BIGINT, PRIMARY KEY (auction, day))
  STORED AS CQL LOCATION 'cassandra://nexmark/q17' OPTIONS ('sink.create' 'true');

INSERT INTO q17
SELECT auction, to_char(date_time, '%Y-%m-%d'), count(*),
  count(*) FILTER (WHERE price < 10000),
  count(*) FILTER (WHERE price >= 10000 AND price < 1000000),
  count(*) FILTER (WHERE price >= 1000000),
  min(price), max(price), avg(price), sum(price)
FROM bid GROUP BY auction, to_char(date_time, '%Y-%m-%d');
