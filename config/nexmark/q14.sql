-- Nexmark, query 14: bids of some prices, by the time of day, and how often a letter is in their text.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q14 (auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), bid_time_type VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR, c_counts BIGINT, kafka_partition INT, kafka_offset BIGINT,
    PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q14' OPTIONS ('sink.create' 'true');

INSERT INTO q14
SELECT auction, bidder, euros,
  CASE
    WHEN hour >= 8 AND hour <= 18 THEN 'dayTime'
    WHEN hour <= 6 OR hour >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END,
  date_time, extra, length(extra) - length(replace(extra, 'c', '')), _partition, _offset
FROM (SELECT auction, bidder, CAST(0.908 AS DECIMAL(4, 3)) * price AS euros, date_part('hour', date_time) AS hour,
             date_time, extra, _partition, _offset
      FROM bid)
WHERE euros > 1000000 AND euros < 50000000;
