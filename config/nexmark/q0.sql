-- Nexmark, query 0: all bids as they are. What it costs to read and write.

CREATE EXTERNAL TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR,
    date_time TIMESTAMP(3), extra VARCHAR)
  STORED AS JSON LOCATION 'kafka://nexmark_bid';

CREATE EXTERNAL TABLE q0 (auction BIGINT, bidder BIGINT, price BIGINT, date_time TIMESTAMP(3), extra VARCHAR,
    kafka_partition INT, kafka_offset BIGINT, PRIMARY KEY (auction, kafka_partition, kafka_offset))
  STORED AS CQL LOCATION 'cassandra://nexmark/q0' OPTIONS ('sink.create' 'true');

INSERT INTO q0
SELECT auction, bidder, price, date_time, extra, _partition, _offset FROM bid;
