-- Nexmark, query 1: the price of each bid in euros.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q1 (auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), date_time TIMESTAMP(3), extra VARCHAR,
    kafka_partition INT, kafka_offset BIGINT, PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q1' OPTIONS ('sink.create' 'true');

INSERT INTO q1
SELECT auction, bidder, CAST(0.908 AS DECIMAL(4, 3)) * price, date_time, extra, _partition, _offset FROM bid;
